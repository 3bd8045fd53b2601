#!/usr/bin/env python3
"""Train the built-in model on its task with completions that are 0, 1, 2 and 4 updates old, and compare the rewards.

    cargo build
    python tests/parity/check_staleness.py target/debug/rlhost [--steps 40] [--seeds 3]

Completions come from `rlhost serve`, so that the run with staleness 0 is the on-policy run. Compared is the mean reward of the last ten
steps, over the seeds: with the importance correction of TRL, it has to be within a quarter of what the on-policy run gained. Without it, the
figures are shown only. The last output is check_staleness.txt beside this file.

Exits 1 if a corrected run falls short.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MARGIN = 0.25
LAST = 10


def serve(rlhost):
    process = subprocess.Popen([rlhost, "serve", "--port", "0", "--allow-weight-updates"], stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    return process, "http://" + line.split("http://")[1].split("/")[0]


def rewards(rlhost, folder, seed, staleness, correction, options):
    server, url = serve(rlhost)
    run = Path(folder) / f"{staleness}-{correction}-{seed}"
    arguments = [rlhost, "grpo", "--plugin", "tldr_length_reward.wasm", "--max-steps", options.steps, "--num-generations", 8,
                 "--per-device-train-batch-size", 32, "--max-completion-length", 48, "--learning-rate", options.learning_rate, "--lora-r", 16,
                 "--lora-dropout", 0, "--seed", seed, "--logging-steps", 1, "--log-completions", "none", "--report-to", "none", "--rollout-server", url,
                 "--max-staleness", staleness, "--vllm-importance-sampling-correction", str(correction).lower(), "--output-dir", run]
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    server.kill()
    if done.returncode:
        sys.exit(done.stderr)
    rows = [json.loads(line) for line in open(run / "metrics.jsonl")]
    assert max(row["rollout/staleness/max"] for row in rows) <= staleness
    return [row["reward"] for row in rows if "reward" in row], sum(row["step_time"] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rlhost")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--learning-rate", default="1e-3")
    options = parser.parse_args()
    rlhost, fails = str(Path(options.rlhost).resolve()), False

    def mean(values):
        return sum(values) / len(values)

    with tempfile.TemporaryDirectory() as folder:
        base = None
        for staleness, correction in [(0, True), (1, True), (2, True), (4, True), (1, False), (4, False)]:
            curves = [rewards(rlhost, folder, seed, staleness, correction, options)[0] for seed in range(options.seeds)]
            first, last = mean([curve[0] for curve in curves]), mean([mean(curve[-LAST:]) for curve in curves])
            base = base or (first, last)
            gained = (last - first) / (base[1] - base[0])
            # The first steps are those of one policy.
            holds = not correction or gained >= 1 - MARGIN
            fails |= not holds
            kind = "corrected" if correction else "uncorrected"
            print(f"{'ok  ' if holds else 'FAIL'} staleness {staleness}, {kind}: reward from {first:.2f} to {last:.2f}, {gained:.0%} of the "
                  f"on-policy gain", flush=True)
    sys.exit(1 if fails else 0)


main()
