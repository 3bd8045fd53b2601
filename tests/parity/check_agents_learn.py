#!/usr/bin/env python3
"""Train the built-in model with the example agent in Python, JavaScript and bash, with three seeds each: the reward must rise.

    cargo build
    python3 tests/parity/check_agents_learn.py target/debug/rlhost

The agent lets the model look up pages in three turns and gives the share of turns in which it did (examples/agents/). The mean reward of
the last three of ten steps must be above that of the first three by at least the margin, in each run; no episode may fail. Needs node,
and for bash curl and jq. Exits 1 if a run falls short. The last output is check_agents_learn.txt beside this file.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/agents"
AGENTS = {"Python": ["python3", "agent.py"], "JavaScript": ["node", "agent.mjs"], "bash": ["bash", "agent.sh"]}
SEEDS, STEPS, ENDS, MARGIN = (1, 2, 3), 10, 3, 0.4


def run(binary, command, seed, out):
    """Trains, and returns the metrics of each step."""
    command = f"{command[0]} '{EXAMPLES / command[1]}'"
    arguments = ["grpo", "--agent", command, "--chat-template-path", EXAMPLES / "chat.jinja", "--max-completion-length", 16]
    arguments += ["--max-steps", STEPS, "--learning-rate", 3e-4, "--logging-steps", 1, "--seed", seed, "--output-dir", out]
    done = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"rlhost {' '.join(map(str, arguments))}: {done.stderr[-3000:]}")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path)
    args = parser.parse_args()
    failed = False
    print(f"      {'agent':<11} {'seed':>4}  {'first':>6} {'last':>6} {'rise':>6}  reward of each step; the margin is {MARGIN}")
    with tempfile.TemporaryDirectory() as place:
        for agent, command in AGENTS.items():
            for seed in SEEDS:
                metrics = run(args.rlhost.resolve(), command, seed, Path(place) / f"{agent}-{seed}")
                rewards = [line["reward"] for line in metrics]
                first, last = statistics.mean(rewards[:ENDS]), statistics.mean(rewards[-ENDS:])
                good = last - first >= MARGIN and not any(line["episodes/failed"] for line in metrics) and len(rewards) == STEPS
                failed |= not good
                steps = " ".join(f"{reward:.2f}" for reward in rewards)
                print(f"{'ok  ' if good else 'FAIL'}  {agent:<11} {seed:>4}  {first:6.3f} {last:6.3f} {last - first:6.3f}  {steps}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
