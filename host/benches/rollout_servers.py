#!/usr/bin/env python3
"""What a second rollout server gives: GRPO whose completions are written by one `rlhost serve`, and by two, each on a core of its own.

    cargo build
    python3 host/benches/rollout_servers.py target/debug/rlhost [--rounds 3] [--steps 4] [--hidden-size 384] [--layers 8]

The servers are pinned to the first two cores, one each, and the trainer has both: it waits while completions are written, and the servers
wait while it trains. Each run learns an adapter, publishes it after each update, and generates 32 completions of 128 tokens for prompts of
a few words. Printed are the seconds of a step and of its generation (`time/rollout`), the medians over the steps after the first of all
rounds, which alternate, and what is expected of two servers: generation takes as long as on one server with half of the completions, which
is more than half of the time since weights are read as often, and the rest takes as long as it does with one server.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

COMPLETIONS, SAMPLES, TOKENS = 32, 8, 128
PORT = 8341


def make(rlhost, place, size, layers):
    config = {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": size, "num_hidden_layers": layers,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": size * 43 // 16, "vocab_size": 257,
        "max_position_embeddings": 2048, "rope_theta": 1e6, "tie_word_embeddings": True,
    }
    (place / "config.json").write_text(json.dumps(config))
    prompts = [{"prompt": f"Row {row}: tell me what comes after it."} for row in range(COMPLETIONS)]
    (place / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (place / "corpus.jsonl").write_text("".join(json.dumps({"text": row["prompt"]}) + "\n" for row in prompts))
    # A vocabulary of bytes: what the model samples is random in any case.
    command = [rlhost, "-q", "new-model", place / "model", "--config", place / "config.json", "--corpus", place / "corpus.jsonl", "--vocab-size", 257]
    subprocess.run([*map(str, command)], check=True)


def serve(rlhost, place, core):
    """Starts a server on a core, and waits until it listens."""
    port = PORT + core
    command = ["taskset", "-c", core, rlhost, "-q", "serve", "--model", place / "model", "--port", port, "--allow-weight-updates", "--num-threads", 1]
    server = subprocess.Popen([*map(str, command)])
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
            return server
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.1)
    server.kill()
    sys.exit("a server does not start")


def train(rlhost, place, name, servers, completions, steps):
    """Runs some steps; returns the seconds of each after the first, and those of its generation."""
    command = [rlhost, "-q", "grpo", "--model", place / "model", "--dataset", place / "prompts.jsonl", "--plugin", "tldr_length_reward.wasm"]
    command += ["--per-device-train-batch-size", completions, "--num-generations", SAMPLES, "--max-completion-length", TOKENS, "--lora-r", 8]
    command += ["--max-steps", steps, "--logging-steps", 1, "--output-dir", place / name, "--rollout-sync-dir", place]
    for core in range(servers):
        command += ["--rollout-server", f"http://127.0.0.1:{PORT + core}"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr[-3000:]}")
    rows = [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().splitlines()]
    return [(row["step_time"], row["time/rollout"]) for row in rows[1:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    if os.cpu_count() < 2:
        sys.exit("two cores are needed")
    kinds = {"1 server": (1, COMPLETIONS), "2 servers": (2, COMPLETIONS), "1 server, half": (1, COMPLETIONS // 2)}
    times = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        make(args.rlhost, place, args.hidden_size, args.layers)
        servers = [serve(args.rlhost, place, core) for core in range(2)]
        try:
            for number in range(args.rounds):
                for kind, (count, completions) in kinds.items():
                    rows = train(args.rlhost, place, f"{kind} {number}", count, completions, args.steps)
                    times[kind] += rows
                    print(f"{kind:15}: " + ", ".join(f"{rollout:.2f} of {step:.2f} s" for step, rollout in rows), flush=True)
        finally:
            for server in servers:
                server.terminate()
                server.wait()
    median = {kind: [statistics.median(column) for column in zip(*rows)] for kind, rows in times.items()}
    (step, rollout), (_, half) = median["1 server"], median["1 server, half"]
    for kind, (of_step, of_rollout) in {**median, "expected": (step - rollout + half, half)}.items():
        print(f"{kind:15}: a step takes {of_step:.2f} s, generation {of_rollout:.2f} s, {of_rollout / of_step:.0%} of it")


if __name__ == "__main__":
    main()
