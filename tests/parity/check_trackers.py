"""Reads what `rlhost export-run` writes with the clients of MLflow, Weights & Biases and Trackio.

    pip install mlflow-skinny trackio wandb
    python tests/parity/check_trackers.py target/debug/rlhost > tests/parity/check_trackers.txt

wandb has no reader of offline runs in Python; the log is unpacked here, its checksums are compared, and its records are parsed with the
client's own protobuf classes and compared with a run that the client wrote itself. The last output is in check_trackers.txt."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from importlib.metadata import version

place = pathlib.Path(tempfile.mkdtemp())
os.environ.update(MLFLOW_ALLOW_FILE_STORE="true", TRACKIO_DIR=str(place / "trackio"), WANDB_SILENT="true", MLFLOW_DISABLE_TELEMETRY="true")
rlhost = str(pathlib.Path(sys.argv[1]).resolve())
run = place / "run"
arguments = ["--plugin", "tldr_length_reward.wasm", "--max-steps", "6", "--logging-steps", "2", "--max-completion-length", "16"]
few = ["--per-device-train-batch-size", "8", "--eval-steps", "3", "--eval-pass-threshold", "-8", "--report-to", "all"]
prompts = place / "prompts.jsonl"
prompts.write_text("".join(json.dumps({"prompt": f"prompt {i}"}) + "\n" for i in range(4)))
held_out = ["--eval-dataset", str(prompts), "--output-dir", str(run)]
subprocess.run([rlhost, "-q", "grpo", *arguments, *few, *held_out], check=True, cwd=place)
rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
wanted = {(row["step"], name): value for row in rows for name, value in row.items() if name not in ("step", "time")}
print(f"{len(rows)} rows, {len(wanted)} values")


def compare(what, got, name_of):
    want = {(step, name_of(name)): value for (step, name), value in wanted.items()}
    assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())[:10]
    for key, value in want.items():
        assert abs(got[key] - value) <= 1e-9 * max(1, abs(value)), (key, got[key], value)
    print(f"{what}: all {len(got)} values are there")


import mlflow

mlflow.set_tracking_uri(f"file://{run}/mlruns")
client = mlflow.MlflowClient()
[experiment] = [e for e in client.search_experiments() if e.name == "rlhost"]
[info] = client.search_runs([experiment.experiment_id])
assert (info.info.run_name, info.info.status) == ("run", "FINISHED"), info.info
assert info.data.params["max_steps"] == "6" and info.data.params["plugin.0.path"].endswith("tldr_length_reward.wasm"), info.data.params
got = {(m.step, name): m.value for name in info.data.metrics for m in client.get_metric_history(info.info.run_id, name)}


def in_mlflow(name):
    return name.replace("@", "_").replace("/stderr", ".stderr") if name.startswith(("eval_pass@", "eval_maj@")) else name


compare(f"mlflow {version('mlflow-skinny')}", got, in_mlflow)
print(f"    run {info.info.run_name}, {info.info.status}, {len(info.data.params)} params, tags {sorted(info.data.tags)}")
for name in list(info.data.metrics)[:4]:
    print(f"    {name} = {info.data.metrics[name]}")

subprocess.run([sys.executable, str(run / "run-trackio.py")], check=True, stdout=subprocess.DEVNULL)
import trackio

api = trackio.Api()
[logged] = api.runs("rlhost")
got = {}
from trackio.sqlite_storage import SQLiteStorage

for log in SQLiteStorage.get_logs("rlhost", "run"):
    got.update({(log["step"], name): value for name, value in log.items() if name not in ("step", "timestamp")})
compare(f"trackio {version('trackio')}", got, lambda name: in_mlflow(name).replace("pass_", "pass@").replace("maj_", "maj@"))
print(f"    run {logged.name}, {len(api.runs('rlhost'))} in the project")

import wandb
from wandb.proto import wandb_internal_pb2 as pb


def records(path):
    data, at, whole = path.read_bytes(), 7, b""
    assert data[:7] == b":W&B\xe1\xbe\x00"
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        checksum, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part = data[at + 7 : at + 7 + length]
        at += 7 + length
        assert zlib.crc32(part, zlib.crc32(bytes([kind]))) == checksum
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            record = pb.Record()
            record.ParseFromString(whole)
            yield record


def history(path):
    got = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            step = record.history.step.num
            for item in record.history.item:
                name = item.key or item.nested_key[0]
                if not name.startswith("_"):
                    got[step, name] = json.loads(item.value_json)
    return got


[offline] = (run / "wandb").glob("offline-run-*/run-*.wandb")
kinds = [record.WhichOneof("record_type") for record in records(offline)]
print("wandb's records:", ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)))
[begun] = [record.run for record in records(offline) if record.WhichOneof("record_type") == "run"]
config = {item.key: json.loads(item.value_json) for item in begun.config.update}
assert (begun.project, begun.display_name, config["max_steps"]) == ("rlhost", "run", 6), begun
compare(f"wandb {version('wandb')}", history(offline), lambda name: name)
settings = wandb.Settings(disable_git=True, x_disable_stats=True, x_disable_meta=True, console="off")
own = wandb.init(project="rlhost", name="own", mode="offline", dir=str(place), settings=settings)
for (step, name), value in sorted(wanted.items()):
    own.log({name: value}, step=step)
own.finish()
[written] = (place / "wandb").glob("offline-run-*/run-*.wandb")
# The client's process may write on after `finish`.
for _ in range(100):
    if any(record.WhichOneof("record_type") == "exit" for record in records(written)):
        break
    time.sleep(0.1)
assert history(written) == history(offline)
print("    the client's own offline run has the same history")
