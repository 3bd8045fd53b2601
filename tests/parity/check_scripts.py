#!/usr/bin/env python3
"""Run reward functions of files in CPython, as TRL's trainer does, and as scripts of rlhost, and compare the scores.

    python -m venv venv && venv/bin/pip install wasmtime zstandard
    venv/bin/python tests/parity/check_scripts.py

The scripts are those of tests/fixtures/scripts: ten functions of TRL's documentation, tests and rewards, and five files after functions of
public repositories, all written anew with the same behaviour. They are found as `--reward_funcs module.function` of `trl grpo` finds them,
and called as `GRPOTrainer._calculate_rewards` does (TRL 1.16): with prompts, completions, token ids, all columns, `trainer_state`,
`log_extra` and `log_metric`. The other side is the component that rlhost carries, host/interpreters/built/python.wasm.zst, or the one that
is named.

500 completions are paragraphs of rlhost's own pages, in tags, with numbers and JSON, some as a model would write them and others not.
The last output is check_scripts.txt beside this file. Exits 1 if a score differs by more than rounding to 32 bits, or a metric does.
"""

import asyncio
import contextlib
import importlib
import inspect
import io
import json
import math
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "tests/fixtures/scripts"
sys.path.insert(0, str(REPOSITORY / "host/interpreters"))

import component  # noqa: E402

COUNT, GROUP, STEP = 500, 10, 12

OF_TRL = [
    "length.reward_len",
    "unique_letters.reward_unique_chars",
    "tagged_format.format_reward_func",
    "think_format.think_format_reward",
    "boxed.reward_func",
    "tasks.math_reward_func",
    "tasks.coding_reward_func",
    "waiting.async_reward",
    "overlong.soft_overlong_punishment",
    "repeats.repetition_penalty",
]
OF_REPOSITORIES = [
    "tag_counts.tag_counts",
    "tag_counts.loose_shape",
    "tag_counts.whole_number",
    "tag_counts.correct",
    "steps.reasoning_steps",
    "steps.shorter_is_better",
    "countdown.format_of_countdown",
    "countdown.equation",
    "solution_tags.almost_format",
    "solution_tags.almost_number",
    "fields.is_json",
    "fields.alike_fields",
]
OF_MESSAGES = {"tagged_format", "think_format"}
OF_TEXTS = {"countdown"}


def paragraphs() -> list[str]:
    """Returns paragraphs of the pages, of at least a line."""
    pages = sorted((REPOSITORY / "host/docs").glob("*.md")) + [REPOSITORY / "README.md"]
    return [part.strip() for page in pages for part in page.read_text().split("\n\n") if len(part) > 80]


def wrapped(text: str, drawn: random.Random, row: dict) -> str:
    """Returns a completion with this text."""
    numbers = [row["answer"], str(drawn.randint(0, 99)), f"{int(row['answer']) * 1.05:.2f}", "1,200"]
    formulas = [row["formula"], "+".join(map(str, row["nums"])), "(1 + ", "2 ** 3"]
    answers = [
        *numbers,
        *formulas,
        json.dumps(row["fields"]),
        json.dumps({"name": "x", "tags": [1]}),
        "{no JSON",
        f"\\boxed{{{row['answer']}}}",
    ]
    answer = drawn.choice(answers)
    shapes = [
        f"<think>{text}</think>\n<answer>{answer}</answer>",
        f"<think>{text}</think><answer>{answer}</answer>",
        f"{text}</think>\n<answer>{answer}</answer>",
        f"<think>\n{text}\n</think>\n<answer>\n{answer}\n</answer>",
        f"<reasoning>\n{text}\n</reasoning>\n<answer>\n{answer}\n</answer>\nSo much for that.",
        f"First, {text}\n- Next, more.\nFinally, it is \\boxed{{{answer}}}.",
        f"Step 1: {text}\n\nStep 2: {text}",
        f"<think>{text} The answer is {answer}.",
        text,
    ]
    return drawn.choice(shapes)


def rows() -> tuple[list[dict], list[dict]]:
    """Returns prompts with their columns, and completions with their prompt's number."""
    drawn, parts = random.Random(11), paragraphs()
    prompts, completions = [], []
    for number in range(COUNT // GROUP):
        nums = [drawn.randint(1, 20) for _ in range(3)]
        answer = str(drawn.randint(1, 99))
        prompts.append(
            {
                "prompt": f"Question {number}: {drawn.choice(parts)[:120]}",
                "answer": answer,
                "ground_truth": drawn.choice([answer, None]),
                "task": drawn.choice(["math", "code", "other"]),
                "keywords": [],
                "nums": nums,
                "target": nums[0] + nums[1] * nums[2],
                "formula": f"{nums[0]} + {nums[1]} * {nums[2]}",
                "fields": {
                    "name": drawn.choice(["Ada", "Zoë", "李"]),
                    "total": drawn.randint(1, 9),
                    "items": [{"id": 1}, {"id": drawn.randint(2, 4)}],
                },
            }
        )
        for _ in range(GROUP):
            text = wrapped(drawn.choice(parts)[: drawn.randint(60, 900)], drawn, prompts[-1])
            completions.append({"prompt": number, "text": text, "ids": [ord(c) % 997 for c in text[::4]]})
    return prompts, completions


def by_trl(function, prompts: list[dict], completions: list[dict], as_messages: bool) -> tuple[list, dict]:
    """Calls a function as TRL does. Returns its rewards and metrics."""
    metrics: dict[str, list] = {}
    asked = [prompts[row["prompt"]] for row in completions]
    texts, questions = [row["text"] for row in completions], [row["prompt"] for row in asked]
    columns = {name: [row[name] for row in asked] for name in prompts[0] if name != "prompt"}
    answer = function(
        prompts=[[{"role": "user", "content": q}] for q in questions] if as_messages else questions,
        completions=[[{"role": "assistant", "content": t}] for t in texts] if as_messages else texts,
        completion_ids=[row["ids"] for row in completions],
        trainer_state=SimpleNamespace(global_step=STEP),
        log_extra=lambda column, values: None,
        log_metric=lambda name, value: metrics.setdefault(name, []).append(value),
        **columns,
    )
    answer = asyncio.run(answer) if inspect.iscoroutine(answer) else answer
    return answer, {name: sum(values) / len(values) for name, values in metrics.items()}


def by_script(made, module: str, name: str, prompts: list[dict], completions: list[dict], as_messages: bool) -> tuple[list, dict]:
    """The same as a script."""
    instance = component.Instance(*made)
    instance.configure(SCRIPTS / f"{module}.py", name)
    columns = {key: [row[key] for row in prompts] for key in prompts[0] if key != "prompt"}
    if as_messages:
        columns["prompt"] = [[{"role": "user", "content": row["prompt"]}] for row in prompts]
    batch = component.batch(STEP, [row["prompt"] for row in prompts], columns, completions)
    scores = instance.call("reward", "score", batch)
    return list(scores.rewards), {metric.name: metric.value for metric in scores.metrics}


def difference(left: list, right: list) -> float:
    """Returns the largest difference of two lists of scores, infinity if one has a score where the other has none."""
    if len(left) != len(right) or any((a is None) != (b is None) for a, b in zip(left, right)):
        return math.inf
    return max((abs(a - b) / max(abs(a), 1.0) for a, b in zip(left, right) if a is not None), default=0.0)


def main(path: str | None = None) -> int:
    built = Path(path).resolve() if path else component.unpacked("python")
    os.chdir(SCRIPTS)
    sys.path.insert(0, os.getcwd())
    engine = component.engine()
    made = engine, component.compiled(engine, built)[0]
    prompts, completions = rows()
    failed = False
    for full in OF_TRL + OF_REPOSITORIES:
        module, name = full.rsplit(".", 1)
        for as_messages in (False, True):
            if module in (OF_TEXTS if as_messages else OF_MESSAGES):
                continue
            function = getattr(importlib.import_module(module), name)
            with contextlib.redirect_stdout(io.StringIO()):
                expected, metrics = by_trl(function, prompts, completions, as_messages)
            found, other = by_script(made, module, name, prompts, completions, as_messages)
            furthest = max(difference(expected, found), difference([*metrics.values()], [*other.values()]))
            good = furthest <= 1e-6 and metrics.keys() == other.keys()
            failed |= not good
            scored = [score for score in expected if score is not None]
            shown = f"{len(scored)} scored, {len(set(scored))} different, mean {sum(scored) / max(len(scored), 1):.4f}"
            print(f"{'ok  ' if good else 'FAIL'} {furthest:8.2e}  {full}{' on messages' if as_messages else ''}: {shown}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
