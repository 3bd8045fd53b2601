"""An environment in which the model runs Python that it wrote: it calls the tool `run`, reads what the code printed and gave, and ends
with an answer.

The code runs in a cell: a fresh instance of this component with its own memory and time (run.py). Only what it printed leaves the cell,
and nothing but the code enters it: the right answer stays here.
"""

import json
import math
import re

import library  # noqa: F401: what the code may import
import run
import text
from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.environment import Call, Message, Opening, Reply, Start, Tool, Turn
from wit_world.exports.plugin import Info
from wit_world.imports import cells
from wit_world.imports.types import Error_Config, Error_Input, Error_Internal, Metric, Reduction


def number(description, default, **more):
    return {"description": description, "type": "number", "default": default} | more


SCHEMA = {
    "type": "object",
    "properties": {
        "answer_column": {
            "description": "Dataset column with the right answer: a text or a number.",
            "type": "string",
            "default": "answer",
        },
        "right": number("Reward of the right answer.", 1.0),
        "wrong": number("Reward of a wrong answer.", 0.0),
        "call_reward": number("Added for each call whose code ran.", 0.0),
        "bad_call": number("Added for each call that failed: another tool, other arguments, an error, a limit.", 0.0),
        "timeout_ms": number("Time limit of a call.", 1000, type="integer", minimum=10, maximum=60000),
        "memory_mb": number("Memory limit of a call, with the interpreter's own 30 MiB.", 128, type="integer", minimum=48, maximum=4096),
        "longest_output": number(
            "Longest output, in characters; the rest is left out.", 2000, type="integer", minimum=10, maximum=50000
        ),
    },
    "additionalProperties": False,
    "x-rlhost": {"isolated_rows": True},
}

TOOL = Tool(
    name="run",
    description="Runs Python and returns what it prints, and the value of its last line. Each call starts anew.",
    parameters=json.dumps({
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The code."}},
        "required": ["code"],
        "additionalProperties": False,
    }),
)

LIMITS = {
    cells.Failure.OUT_OF_TIME: "Error: it took too long and was stopped.",
    cells.Failure.OUT_OF_MEMORY: "Error: it needed too much memory and was stopped.",
    cells.Failure.TRAPPED: "Error: it ended the interpreter.",
}

settings = {name: value["default"] for name, value in SCHEMA["properties"].items()}
# What is known of each open episode.
playing: dict[int, dict] = {}


class Plugin(exports.Plugin):
    def describe(self) -> Info:
        return Info(
            name="python_tool",
            version="0.1.0",
            description="Offers a tool that runs Python, and rewards the right answer",
            config_schema=json.dumps(SCHEMA),
            needs=["dataset_columns"],
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


class Inside(exports.Inside):
    def answer(self, message: str) -> str:
        return run.run(message)


def ran(code: str) -> tuple[str, bool]:
    cell = None
    try:
        cell = cells.open(settings["memory_mb"])
        # Whatever the code made of the cell, its answer is a text.
        said = cells.ask(cell, code, settings["timeout_ms"])
        return said[1:], said.startswith("+")
    except Err as error:
        if error.value not in LIMITS:
            raise Err(Error_Internal(f"a cell could not be opened: {error.value}"))
        return LIMITS[error.value], False
    finally:
        if cell is not None:
            cells.close(cell)


def called(call: Call) -> tuple[str, bool]:
    """What the model reads of a call, and whether the code ran."""
    if call.name != TOOL.name:
        return f"Error: there is no tool {call.name!r}; there is {TOOL.name}.", False
    try:
        given = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        return f"Error: the arguments are not JSON: {error}", False
    if not isinstance(given, dict) or not isinstance(given.get("code"), str):
        return 'Error: the arguments must be {"code": "..."}.', False
    return ran(given["code"].encode("utf-8", "replace").decode())


def without_commas(given) -> str:
    return re.sub(r"(\d),(?=\d{3})", r"\1", str(given))


def is_right(said: str, right) -> bool:
    """Whether an answer is the right one: by its last number if that is one, else whether it ends with the text."""
    try:
        wanted = float(without_commas(right))
    except ValueError:
        wanted = math.nan
    if math.isfinite(wanted):
        found = re.findall(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", without_commas(said))
        return bool(found) and abs(float(found[-1]) - wanted) <= 1e-6 * max(1.0, abs(wanted))

    def plain(given):
        return str(given).strip().rstrip(".!").lower()

    return plain(said).endswith(plain(right))


def begin(start: Start) -> Opening:
    columns = dict(start.columns)
    answer = json.loads(columns.get(settings["answer_column"], "null"))
    if answer is not None and (isinstance(answer, bool) or not isinstance(answer, (int, float, str))):
        raise Err(Error_Input(f"the dataset's column {settings['answer_column']!r} must hold texts or numbers"))
    playing[start.episode] = {"answer": answer, "calls": 0, "failed": 0, "right": False}
    return Opening(prompt=None, tools=[TOOL])


def step(turn: Turn) -> Reply:
    if turn.episode not in playing:
        raise Err(Error_Input(f"episode {turn.episode} was never begun, or is over"))
    episode = playing[turn.episode]
    if not turn.calls:
        if episode["answer"] is None:
            return Reply(messages=[], done=True, reward=None)
        episode["right"] = is_right(turn.text, episode["answer"])
        return Reply(messages=[], done=True, reward=float(settings["right" if episode["right"] else "wrong"]))
    messages, reward = [], 0.0
    for call in turn.calls:
        said, good = called(call)
        episode["calls"] += 1
        episode["failed"] += not good
        reward += settings["call_reward" if good else "bad_call"]
        content = text.as_text(said, settings["longest_output"])
        messages.append(Message(role="tool", content=content, name=call.name, tool_call_id=call.id))
    return Reply(messages=messages, done=False, reward=None if episode["answer"] is None and reward == 0 else reward)


def metrics(episode: dict) -> list[Metric]:
    def mean(name, value, weight):
        return Metric(f"python_tool/{name}", float(value), float(weight), Reduction.MEAN)

    calls, failed = episode["calls"], episode["failed"]
    of_calls = [mean("failed_calls", failed / calls, calls)] if calls else []
    of_answer = [] if episode["answer"] is None else [mean("right", episode["right"], 1)]
    return [mean("calls", calls, 1), *of_calls, *of_answer]


class Environment(exports.Environment):
    def begin(self, starts: list[Start]) -> list[Opening]:
        return [begin(start) for start in starts]

    def step(self, turns: list[Turn]) -> list[Reply]:
        return [step(turn) for turn in turns]

    def finish(self, over: list[int]) -> list[Metric]:
        ended = [playing.pop(episode) for episode in over if episode in playing]
        return [metric for episode in ended for metric in metrics(episode)]
