"""Says a word and waits until the model repeats it: an episode of a few turns, with a reward that falls with each."""

import json
import random

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.environment import Message, Opening, Reply, Start, Turn
from wit_world.exports.plugin import Info
from wit_world.imports.types import Error_Config, Error_Input, Metric, Reduction

SCHEMA = {
    "type": "object",
    "properties": {
        "tries": {
            "description": "Number of turns in which the word may be repeated.",
            "type": "integer",
            "minimum": 1,
            "default": 3,
        },
    },
    "additionalProperties": False,
}

WORDS = ["yes", "no", "north", "south"]

tries = 3
# The open episodes: the word of each, and its turns so far.
episodes: dict[int, list] = {}


def says(text: str) -> list[Message]:
    return [Message(role="user", content=text, name=None, tool_call_id=None)]


def begin(start: Start) -> Opening:
    # The start's seed is the only randomness: all samples of a row play the same game.
    word = random.Random(start.seed).choice(WORDS)
    episodes[start.episode] = [word, 0]
    return Opening(prompt=says(f"Say {word}."), tools=[])


def step(turn: Turn) -> Reply:
    if turn.episode not in episodes:
        raise Err(Error_Input(f"episode {turn.episode} was never begun, or is over"))
    playing = episodes[turn.episode]
    playing[1] += 1
    word, turns = playing
    if word in turn.text:
        return Reply(messages=[], done=True, reward=1 / turns)
    if turns >= tries:
        return Reply(messages=[], done=True, reward=0.0)
    return Reply(messages=says(f"Not that. Say {word}."), done=False, reward=None)


class Plugin(exports.Plugin):
    def describe(self) -> Info:
        return Info(
            name="echo-python-component",
            version="0.1.0",
            description="Says a word and waits until the model repeats it",
            config_schema=json.dumps(SCHEMA),
            needs=["dataset_columns"],
            stateless=True,
        )

    def configure(self, config: str) -> None:
        global tries
        try:
            settings = json.loads(config)
        except ValueError as error:
            raise Err(Error_Config(str(error)))
        if not isinstance(settings, dict) or settings.keys() - {"tries"}:
            raise Err(Error_Config("expected an object with no key but tries"))
        given = settings.get("tries", 3)
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise Err(Error_Config("tries must be an integer from 1"))
        tries = given


class Environment(exports.Environment):
    def begin(self, starts: list[Start]) -> list[Opening]:
        return [begin(start) for start in starts]

    def step(self, turns: list[Turn]) -> list[Reply]:
        return [step(turn) for turn in turns]

    def finish(self, over: list[int]) -> list[Metric]:
        ended = [episodes.pop(episode) for episode in over if episode in episodes]
        return [Metric(name="echo/turns", value=float(turns), weight=1.0, reduction=Reduction.MEAN) for _, turns in ended]
