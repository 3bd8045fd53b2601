"""A reward that runs the Python code that a model wrote, against tests in a column of the dataset.

Three kinds of instances of this component do it. The one that the host calls passes each row to the judge, a keeper of cells
(judge.py). The judge opens a cell for the model's code, which it never runs itself; the cell gets the code and the arguments of
calls, and gives values back (cell.py). The judge compares them with what is expected, which no cell ever sees. If it never ends
because of what the code answered, it is ended, and the row is as if the code were wrong.
"""

import json

import cell
import judge
import library  # noqa: F401: what the code may import
from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.plugin import Info
from wit_world.exports.reward import Batch, Scores
from wit_world.imports import cells
from wit_world.imports.types import Error_Config, Error_Input, Error_Internal, Metric, Reduction

SCHEMA = {
    "type": "object",
    "properties": {
        "tests": {
            "description": "The dataset column with the tests.",
            "type": "string",
            "default": "tests",
        },
        "setup": {
            "description": "The column with code that runs before the model's and before each test, if the dataset has it.",
            "type": "string",
            "default": "test_setup_code",
        },
        "extract": {
            "description": "What of a completion is its code: the last fenced block, or the whole text.",
            "type": "string",
            "enum": ["last_block", "whole"],
            "default": "last_block",
        },
        "scoring": {
            "description": "The share of tests that pass, or 1 if all pass and else 0.",
            "type": "string",
            "enum": ["fraction", "all"],
            "default": "fraction",
        },
        "unparsed_score": {
            "description": "The score of a completion that has no code or whose code does not parse.",
            "type": "number",
            "default": 0.0,
        },
        "tolerance": {
            "description": "By how much a number may differ from the expected one in cases, as a share of it.",
            "type": "number",
            "minimum": 0,
            "default": 1e-6,
        },
        "timeout_ms": {
            "description": "Time limit of loading the code and of each call of it. After one that ran out, the row's other tests fail.",
            "type": "integer",
            "minimum": 10,
            "maximum": 60000,
            "default": 1000,
        },
        "row_timeout_ms": {
            "description": "Time limit of a row with all its tests. Those that have not passed by then fail.",
            "type": "integer",
            "minimum": 100,
            "maximum": 600000,
            "default": 10000,
        },
        "memory_mb": {
            "description": "Memory limit of a test, with the interpreter's own 30 MiB.",
            "type": "integer",
            "minimum": 48,
            "maximum": 4096,
            "default": 128,
        },
    },
    "additionalProperties": False,
    "x-rlhost": {"isolated_rows": True},
}

settings = {name: value["default"] for name, value in SCHEMA["properties"].items()}


class Plugin(exports.Plugin):
    def describe(self) -> Info:
        return Info(
            name="python_reward",
            version="0.1.0",
            description="Runs the completion's Python code against the row's tests",
            config_schema=json.dumps(SCHEMA),
            needs=["completion_text", "dataset_columns"],
            stateless=True,
        )

    def configure(self, config: str) -> None:
        try:
            given = json.loads(config)
        except ValueError as error:
            raise Err(Error_Config(str(error)))
        if not isinstance(given, dict) or given.keys() - settings.keys():
            raise Err(Error_Config(f"expected an object with the keys {', '.join(settings)}"))
        settings.update(given)


# What the host's instance says to the judge alone: a cell with the model's code hears from the judge.
TO_JUDGE = "judge "
# Of the judge: the interpreter, its tests and the values it compares.
JUDGE_MB = 64


class Inside(exports.Inside):
    def answer(self, message: str) -> str:
        return judge.judge(message.removeprefix(TO_JUDGE)) if message.startswith(TO_JUDGE) else cell.answer(message)


judging = None


def judged(row: dict, completion: str) -> dict:
    """Returns the score of a row and what happened, or what is wrong with its tests."""
    global judging
    message = TO_JUDGE + json.dumps({"row": row, "completion": completion, "settings": settings})
    try:
        if judging is None:
            judging = cells.open_keeper(JUDGE_MB)
        return json.loads(cells.ask(judging, message, settings["row_timeout_ms"]))
    except Err as error:
        judging = None
        what = judge.reason(error)
        if what == "refused":
            raise Err(Error_Internal("the judge could not be opened"))
        return {"score": 0.0, "happened": [what] if what in judge.COUNTED else []}


class Reward(exports.Reward):
    def score(self, batch: Batch) -> Scores:
        columns = {column.name: column.values for column in batch.columns}
        if settings["tests"] not in columns:
            raise Err(Error_Input(f"the dataset has no column {settings['tests']!r}, which holds the tests (tests)"))

        def of(name: str, prompt: int):
            values = columns.get(name)
            return json.loads(values[prompt]) if values else None

        rewards, counts = [], dict.fromkeys(judge.COUNTED, 0.0)
        scored = 0
        for prompt, completion in zip(batch.prompt_of, batch.completions, strict=True):
            row = {
                "tests": of(settings["tests"], prompt),
                "setup": of(settings["setup"], prompt),
                "entry_point": of("entry_point", prompt),
            }
            given = judged(row, completion)
            if "wrong" in given:
                raise Err(Error_Input(f"prompt {prompt}, column {settings['tests']!r}: {given['wrong']}"))
            reward = given["score"]
            rewards.append(reward)
            scored += reward is not None
            for what in given["happened"]:
                counts[what] += 1
        metrics = [Metric(f"python_reward/{name}", n / scored, scored, Reduction.MEAN) for name, n in counts.items()] if scored else []
        return Scores(rewards, metrics)
