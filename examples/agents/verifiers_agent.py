"""An agent that plays the environments of verifiers 0.4 (https://pypi.org/project/verifiers/) as they are.

    python verifiers_agent.py TASKSET --export rows.jsonl [--limit N]    # writes a dataset: a row for each task
    rlhost grpo --config verifiers.toml --dataset rows.jsonl             # whose agent is: python verifiers_agent.py TASKSET

It stays (`persistent = true`), since imports take seconds and tool servers are started once. Each episode is played by the environment
itself: its harness asks rlhost where it would ask a provider, and its rewards and metrics are the report. What trains is what rlhost
sampled; agents that an environment gives a model or client of their own are not the policy's.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import os
import re
import sys
from pathlib import Path

import verifiers.v1 as vf
from pydantic import TypeAdapter
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import ClientConfig
from verifiers.v1.utils.loaders import env_config_type, load_environment

# Longest reason of a failure, in characters.
LONGEST = 500
# What a metric's name can't have in rlhost.
UNUSUAL = re.compile(r"[^a-zA-Z0-9_./@-]")


def merge(into, more):
    """Writes the entries of a table into another, and those of its tables into theirs."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def load(args):
    """Loads the environment. Seats without a runtime of their own run on this machine, not in a sandbox of a provider."""
    settings = {"taskset": {"id": args.taskset}} | ({"id": args.env} if args.env else {})
    merge(settings, json.loads(args.settings))
    seats = env_config_type(settings["taskset"]["id"], settings.get("id", "")).model_fields
    for name, field in seats.items():
        if isinstance(field.default, vf.AgentConfig):
            seat = settings.setdefault(name, {})
            seat.setdefault("runtime", {"type": "subprocess"})
            if args.harness:
                seat.setdefault("harness", {"id": args.harness})
    return load_environment(env_config_type(settings["taskset"]["id"], settings.get("id", "")).model_validate(settings))


def export(env, path, limit):
    """Writes a row for each task: its number, and its prompt for whoever reads the run's files."""
    if limit is None and not env.taskset.bounded:
        sys.exit(f"{type(env.taskset).__name__} has no end: say how many tasks to take with --limit")
    with path.open("w") as file:
        for task in itertools.islice(env.taskset, limit):
            file.write(json.dumps({"prompt": task.data.prompt_text or task.data.name or "", "task": task.data.idx}) + "\n")


class Tasks:
    """The environment's tasks by number. They are read as far as they are asked for, since some never end."""

    def __init__(self, taskset):
        self.rest, self.known = iter(taskset), []

    def __getitem__(self, number):
        missing = number + 1 - len(self.known)
        self.known.extend(itertools.islice(self.rest, max(missing, 0)))
        if not 0 <= number < len(self.known):
            raise IndexError(f"the environment has no task {number}; export the dataset again")
        return self.known[number]


async def play(env, task, episode, args):
    """Plays a task and returns the report. The key is in a variable of the episode's, as verifiers keeps a client for each."""
    variable = "RLHOST_KEY_" + episode["api_key"].rpartition("-")[2].upper()
    os.environ[variable] = episode["api_key"]
    client = {"type": "eval", "base_url": episode["base_url"], "api_key_var": variable} | json.loads(args.client)
    context = ModelContext(model="policy", client=TypeAdapter(ClientConfig).validate_python(client))
    try:
        played = await env.run_episode(task, context)
    finally:
        del os.environ[variable]
    traces = [trace for trace in played.traces if trace.agent.trainable]
    for trace in played.traces:
        if trace not in traces and trace.agent.config.client == context.client:
            # What it samples would be trained on.
            raise RuntimeError(f"{trace.agent.name} is not trained, but asks the policy; give it a client of its own with --settings")
    if not played.ok or not traces:
        errors = [error for part in (played, *played.traces) for error in part.errors]
        raise RuntimeError("; ".join(f"{e.type}: {e.message}" for e in errors)[:LONGEST] or "the episode failed without an error")
    metrics = {}
    for trace in traces:
        metrics |= {name: value for name, value in trace.metrics.items() if value is not None}
        metrics |= {f"reward_{name}": reward.score for name, reward in trace.rewards.items() if reward is not None}
    sound = {UNUSUAL.sub("_", name): value for name, value in metrics.items() if math.isfinite(value)}
    return {"reward": sum(trace.reward for trace in traces) / len(traces), "metrics": sound}


async def stay(args):
    """Plays one episode after another. An episode that fails ends the program: it costs its row, and another program is started."""
    report, sys.stdout = sys.stdout, sys.stderr  # what a library prints is no report
    env = load(args)
    tasks = Tasks(env.taskset)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(env.serving())
        while line := await asyncio.to_thread(sys.stdin.readline):
            episode = json.loads(line)
            print(json.dumps(await play(env, tasks[episode["row"]["task"]], episode, args)), file=report, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("taskset", help="the environment's name: a package's, or a module's that Python finds")
    parser.add_argument("--env", help="an environment to pair it with, such as user-sim")
    parser.add_argument("--harness", help="the program that plays it, such as null [default: the environment's]")
    parser.add_argument("--settings", default="{}", help='the environment\'s settings as JSON, such as {"taskset": {"game": "Hangman-v0"}}')
    parser.add_argument("--client", default="{}", help='the client\'s settings as JSON; {"type": "train", ...} renders here and asks for tokens')
    parser.add_argument("--export", type=Path, help="write the dataset to this file, and play nothing")
    parser.add_argument("--limit", type=int, help="number of tasks to export")
    args = parser.parse_args()
    if args.export:
        export(load(args), args.export, args.limit)
    else:
        asyncio.run(stay(args))


if __name__ == "__main__":
    main()
