"""Environments as TRL's `environment_factory` has them: a class with `reset`, methods that are tools, and `get_reward`."""

import inspect
import json
import math
import random
import struct

from .guard import called, plain
from .loop import awaited
from .signatures import Arguments, SignatureError
from .tools import Tool, ToolError, answers, methods


class EpisodeError(Exception):
    """An environment can't play this row, or answered what can't be passed on."""


class Playing:
    """An episode."""

    __slots__ = ("instance", "tools", "seed", "turns", "given", "calls", "failed")

    def __init__(self, instance, tools: dict, seed: int):
        self.instance, self.tools, self.seed = instance, tools, seed
        self.turns = self.calls = self.failed = 0
        # The rewards of its turns so far.
        self.given = 0.0


def _answer(function, /, **named):
    """Calls a function of the script's, and waits if it is asynchronous."""
    value = called(function, **named)
    return awaited(value) if inspect.isawaitable(value) else value


def _f32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def _messages(start) -> list[dict]:
    """Returns the row's prompt as TRL shows it."""
    names = ("role", "content", "name", "tool_call_id")
    shown = [{name: getattr(message, name) for name in names} for message in start.prompt]
    return [{name: value for name, value in message.items() if value is not None} for message in shown]


class Environment:
    """A class or a list of functions, with settings, ready to open episodes."""

    def __init__(self, name: str, cls, functions: list, script_name: str):
        self.name, self.cls = name, cls
        self.script_name = script_name
        self.has_reward = callable(getattr(cls, "get_reward", None))
        self.arguments = self._arguments(
            cls.__init__ if cls and "__init__" in dir(cls) and cls.__init__ is not object.__init__ else None
        )
        self.reset = Arguments(cls.reset, (), skipped=1) if cls else None
        self.functions = [self._tool(function.__name__, function, False) for function in functions]
        self.methods = [self._tool(name, function, True) for name, function in methods(cls).items()] if cls else []
        self.episodes: dict[int, Playing] = {}
        self.settings: dict = {}

    def _arguments(self, init) -> Arguments | None:
        if init is None:
            return None
        arguments = Arguments(init, (), skipped=1)
        if arguments.columns:
            raise SignatureError(f"its __init__ takes {arguments.columns[0]}, which needs a default")
        return arguments

    def _tool(self, name: str, function, is_method: bool) -> Tool:
        try:
            return Tool(name, function, is_method)
        except ToolError as error:
            raise SignatureError(f"{name} can't be a tool: {error}") from None

    def schema(self) -> dict:
        return self.arguments.schema() if self.arguments else {"type": "object", "properties": {}, "additionalProperties": False}

    def columns(self) -> list[str]:
        return [name for name in self.reset.columns if name != "prompt"] if self.reset else []

    def tools(self) -> list[Tool]:
        return self.functions + self.methods

    def begin(self, start) -> list[dict] | None:
        """Opens an episode. Returns the prompt, if it isn't the row's."""
        random.seed(start.seed)
        named = {tool.name: (tool, tool.function) for tool in self.functions}
        instance = called(self.cls, **self.settings) if self.cls else None
        named |= {tool.name: (tool, getattr(instance, tool.name)) for tool in self.methods}
        playing = Playing(instance, named, start.seed)
        prompt, observation = _messages(start), None
        if instance is not None:
            given = self._row(start, prompt)
            observation = _answer(instance.reset, **given)
        self.episodes[start.episode] = playing
        if observation is None:
            return None
        if isinstance(observation, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in observation):
            observation = "".join(part["text"] for part in observation)
        if not isinstance(observation, str):
            raise EpisodeError(f"reset of {self.name} returned {type(observation).__name__}, not a text or None")
        if not prompt:
            return [{"role": "user", "content": plain(observation)}]
        last = prompt[-1]
        return [*prompt[:-1], last | {"content": last["content"] + plain(observation)}]

    def _row(self, start, prompt: list[dict]) -> dict:
        """Returns what `reset` is called with: the row's columns, as far as it takes them."""
        row = {"prompt": prompt} | {name: json.loads(value) for name, value in start.columns if name != "environment"}
        missing = [name for name in self.reset.columns if name not in row]
        if missing:
            known = ", ".join(row)
            raise EpisodeError(f"reset of {self.name} takes {missing[0]}, which is no column of the dataset; it has: {known}")
        return row if self.reset.rest else {name: value for name, value in row.items() if name in self.reset.names}

    def step(self, turn) -> tuple[list[tuple], bool, float | None]:
        """Answers a turn: the calls with their answers, whether the episode is over, and the turn's reward."""
        playing = self.episodes[turn.episode]
        playing.turns += 1
        random.seed(playing.seed * 1_000_003 + playing.turns)
        answered, failed = answers(playing.tools, turn.calls) if turn.calls else ([], 0)
        playing.calls += len(turn.calls)
        playing.failed += failed
        return answered, not turn.calls, self._reward(playing)

    def _reward(self, playing: Playing) -> float | None:
        """Returns by how much this turn changed the environment's reward, so that the turns' sum is what `get_reward` says at the end,
        whenever that comes."""
        if not self.has_reward:
            return None
        said = _answer(playing.instance.get_reward)
        if said is None:
            return None
        if isinstance(said, str):
            raise EpisodeError(f"get_reward of {self.name} returned {said!r}, not a number or None")
        total = called(float, said)
        if not math.isfinite(total):
            raise EpisodeError(f"get_reward of {self.name} returned {total}, which is not finite")
        reward = _f32(total - playing.given)
        playing.given += reward
        return reward

    def finish(self, episodes: list[int]) -> tuple[int, int, int]:
        """Ends episodes. Returns how many there were, their calls, and those that failed."""
        ended = [self.episodes.pop(episode) for episode in episodes if episode in self.episodes]
        return len(ended), sum(playing.calls for playing in ended), sum(playing.failed for playing in ended)
