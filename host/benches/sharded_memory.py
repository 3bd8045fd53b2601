#!/usr/bin/env python3
"""Measures the peak memory of each rank of a run that divides a model, beside what `rlhost plan` says.

    cargo build --features rlhost/mpi
    python host/benches/sharded_memory.py target/debug/rlhost [--sizes 135M 0.6B] [--ranks 4] [--stages 0 1 2 3] [--steps 2]

Models have random weights in the shapes of SmolLM2-135M, Qwen3-0.6B and Qwen2.5-1.5B, with a tokenizer of bytes. Each run learns
completions (`rlhost sft`) for a few steps, whole, in f32, with AdamW unless --optim names another optimizer. A rank's peak is VmHWM, read
while the run goes on.
"""

import argparse
import array
import json
import os
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path

COMMON = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16",
          "max_position_embeddings": 2048}
SHAPES = {
    "135M": {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152},
    "0.6B": {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936},
    "1.5B": {"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
             "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151936},
}


def tensors(shape):
    """Yields the name and the dimensions of each tensor of a model of this shape, as transformers names them."""
    hidden, inner, head = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = head * shape["num_attention_heads"], head * shape["num_key_value_heads"]
    yield "model.embed_tokens.weight", [shape["vocab_size"], hidden]
    for layer in range(shape["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        for part, out, of in [("q", queries, hidden), ("k", keys, hidden), ("v", keys, hidden), ("o", hidden, queries)]:
            yield f"{name}self_attn.{part}_proj.weight", [out, of]
            if shape["model_type"] == "qwen2" and part != "o":
                yield f"{name}self_attn.{part}_proj.bias", [out]
        if shape["model_type"] == "qwen3":
            yield f"{name}self_attn.q_norm.weight", [head]
            yield f"{name}self_attn.k_norm.weight", [head]
        for part, out, of in [("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)]:
            yield f"{name}mlp.{part}_proj.weight", [out, of]
        yield f"{name}input_layernorm.weight", [hidden]
        yield f"{name}post_attention_layernorm.weight", [hidden]
    yield "model.norm.weight", [hidden]


def make(rlhost, place, size):
    """Writes a model of this size in bf16: matrices of repeated random numbers, and ones for norms."""
    folder = place / size
    small = {**COMMON, **SHAPES[size], "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 300}
    (place / "small.json").write_text(json.dumps(small))
    (place / "corpus.jsonl").write_text('{"text": "nothing"}\n')
    subprocess.run([rlhost, "new-model", str(folder), "--config", str(place / "small.json"), "--corpus", str(place / "corpus.jsonl"),
                    "--quiet"], check=True)
    (folder / "config.json").write_text(json.dumps({**COMMON, **SHAPES[size]}))
    rng, header, at = random.Random(1), {}, 0
    for name, dims in tensors(SHAPES[size]):
        count = 1
        for dim in dims:
            count *= dim
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + 2 * count]}
        at += 2 * count
    halves = [array.array("f", [rng.gauss(0, 0.02)]).tobytes()[2:] for _ in range(1 << 18)]
    block, one = b"".join(halves), array.array("f", [1.0]).tobytes()[2:]
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, entry in header.items():
            left = entry["data_offsets"][1] - entry["data_offsets"][0]
            if len(entry["shape"]) == 1 and name.endswith("norm.weight"):
                file.write(one * (left // 2))
                continue
            while left > 0:
                file.write(block[:left])
                left -= min(left, len(block))
    return folder, at // 2


def peak(process):
    """Returns the peak of a process's memory in bytes, and its rank; None if it has ended."""
    try:
        status, environ = Path(f"/proc/{process}/status").read_text(), Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    rank = re.search(rb"OMPI_COMM_WORLD_RANK=(\d+)", environ)
    return (int(rank[1]) if rank else 0, 1024 * int(found[1])) if found else None


def children(of):
    """Returns the processes that a process has started, and theirs."""
    own = subprocess.run(["ps", "--ppid", str(of), "-o", "pid="], capture_output=True, text=True).stdout.split()
    return [child for pid in own for child in [pid, *children(pid)]]


def run(arguments, command, place):
    """Runs a command to its end; returns the peaks by rank, and whether it succeeded."""
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "RAYON_NUM_THREADS": "1"}
    peaks = {}
    with open(place / "log", "w") as log:
        process = subprocess.Popen(command, cwd=place, env=env, stdout=log, stderr=log)
        while process.poll() is None:
            for child in children(process.pid):
                found = peak(child)
                if found and Path(f"/proc/{child}/comm").exists():
                    peaks[found[0]] = max(peaks.get(found[0], 0), found[1])
            time.sleep(0.1)
    return peaks, process.returncode == 0


def planned(arguments, model, rows, stage):
    """Returns what `rlhost plan` says of the largest rank, in bytes."""
    command = [arguments.rlhost, "plan", "--algorithm", "sft", "--learn-from", "dataset", "--model", str(model), "--ranks", str(arguments.ranks), "--zero-stage", str(stage),
               "--optim", arguments.optim, *rows, "--json"]
    said = subprocess.run(command, capture_output=True, text=True)
    return json.loads(said.stdout)["peak"] if said.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rlhost", type=lambda path: str(Path(path).resolve()))
    parser.add_argument("--sizes", nargs="+", default=["135M", "0.6B"], choices=SHAPES)
    parser.add_argument("--stages", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--optim", default="adamw_torch")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        with open(place / "rows.jsonl", "w") as rows:
            for i in range(64):
                text = ("abcdefgh" * arguments.tokens)[i % 8:][:arguments.tokens - 8]
                rows.write(json.dumps({"prompt": f"row {i:02} ", "completion": text}) + "\n")
        print(f"{'model':>6} {'parameters':>11} {'stage':>5} {'largest rank':>13} {'all ranks':>11} {'planned':>9}  ended")
        for size in arguments.sizes:
            model, count = make(arguments.rlhost, place, size)
            for stage in arguments.stages:
                rows = ["--per-device-train-batch-size", "1", "--max-length", str(arguments.tokens)]
                common = ["sft", "--model", str(model), "--dataset", "rows.jsonl", "--max-steps", str(arguments.steps),
                          "--save-strategy", "no", "--output-dir", f"{size}-{stage}", "--zero-stage", str(stage),
                          "--optim", arguments.optim, "--num-threads", "1", *rows]
                command = ["mpirun", "-n", str(arguments.ranks), "--oversubscribe", "--bind-to", "none", arguments.rlhost, *common]
                peaks, ended = run(arguments, command, place)
                said = planned(arguments, model, rows, stage)
                planned_gb = f"{said / 1e9:9.2f}" if said else f"{'-':>9}"
                print(f"{size:>6} {count / 1e6:10.1f}M {stage:>5} {max(peaks.values()) / 1e9:10.2f} GB "
                      f"{sum(peaks.values()) / 1e9:8.2f} GB {planned_gb}  {'yes' if ended else 'no: ' + (place / 'log').read_text()[-300:]}",
                      flush=True)
                subprocess.run(["rm", "-rf", str(place / f"{size}-{stage}")], check=True)
            subprocess.run(["rm", "-rf", str(model)], check=True)


if __name__ == "__main__":
    main()
