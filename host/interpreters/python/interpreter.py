"""The component: the contract of rlhost's plugins, for the script in the configuration."""

import json
import random
import sys

from rlhost_interpreter import library, loop, preload, scripts, tracebacks
from rlhost_interpreter.calls import AnswerError, BatchError, Call
from rlhost_interpreter.scripts import ScriptError
from wit_world import exports
from wit_world.exports.plugin import Info
from wit_world.exports.reward import Batch, Scores
from wit_world.exports.script import Function, Kind, ModuleFile
from wit_world.imports import host
from wit_world.imports.types import Error_Config, Error_Input, Error_Internal, Metric, Reduction
from componentize_py_types import Err

SCHEMA = {
    "type": "object",
    "properties": {
        "script": {"type": "object", "description": "The script: name, source, function and modules.", "default": {}},
        "settings": {"type": "object", "description": "The settings of the function.", "default": {}},
    },
    "additionalProperties": False,
}
NEEDS = ["prompt_text", "completion_text", "token_ids", "dataset_columns"]


class Lines:
    """Passes on what is printed, line by line."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, level):
        self.level, self.rest = level, ""

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            host.log(self.level, line)
        return len(text)

    def flush(self) -> None:
        if self.rest:
            rest, self.rest = self.rest, ""
            host.log(self.level, rest)

    def isatty(self) -> bool:
        return False


class Running:
    """The script of this instance and the call that is configured."""

    script: scripts.Script | None = None
    call: Call | None = None

    @classmethod
    def load(cls, name: str, source: str, modules: dict[str, str]) -> scripts.Script:
        if not isinstance(sys.stdout, Lines):
            # Not while the component is built, which has no log.
            sys.stdout, sys.stderr = Lines(host.Level.INFO), Lines(host.Level.WARN)
        if cls.script is None or not cls.script.is_of(name, source, modules):
            try:
                cls.script = scripts.Script(name, source, modules)
            except BaseException as error:
                raise Err(Error_Config(tracebacks.text(error, name))) from None
        return cls.script

    @classmethod
    def failed(cls, error: BaseException) -> Err:
        """Returns the contract's error for one that came out of the script."""
        row = cls.call.row if cls.call else None
        return Err(Error_Internal(tracebacks.text(error, cls.script.name, row)))


class Plugin(exports.Plugin):
    def describe(self) -> Info:
        if Running.call is None:
            return Info("python", "1.0.0", "A reward written in Python", json.dumps(SCHEMA), NEEDS, False)
        function = Running.call.function
        description = function.description or f"{function.name} of {Running.script.name}"
        schema = SCHEMA | {"properties": SCHEMA["properties"] | {"settings": function.signature.schema() | {"default": {}}}}
        return Info(function.name, "1.0.0", description, json.dumps(schema), function.needs(), function.stateless)

    def configure(self, config: str) -> None:
        given = json.loads(config)
        script = given.get("script") or {}
        if not isinstance(script.get("source"), str):
            raise Err(Error_Config("there is no script: script.source is its text"))
        loaded = Running.load(script.get("name") or "script.py", script["source"], script.get("modules") or {})
        try:
            name = script.get("function")
            function = loaded.function(name) if name else loaded.only()
            Running.call = Call(loaded, function, given.get("settings") or {})
        except ScriptError as error:
            raise Err(Error_Config(str(error))) from None
        except BaseException as error:
            raise Err(Error_Config(tracebacks.text(error, loaded.name))) from None


class Reward(exports.Reward):
    def score(self, batch: Batch) -> Scores:
        call = Running.call
        if call is None:
            raise Err(Error_Config("there is no script"))
        random.seed(batch.seed)
        try:
            rewards = call.score(batch)
        except BatchError as error:
            raise Err(Error_Input(str(error))) from None
        except AnswerError as error:
            raise Err(Error_Internal(str(error))) from None
        except BaseException as error:
            raise Running.failed(error) from None
        finally:
            Running.script.keep_builtins()
            sys.stdout.flush()
            sys.stderr.flush()
        metrics = [
            Metric(name, sum(values) / len(values), float(len(values)), Reduction.MEAN) for name, values in call.metrics.items()
        ]
        return Scores(rewards, metrics)


class State(exports.State):
    def snapshot(self) -> bytes:
        try:
            return Running.script.snapshot() if Running.script else b""
        except ScriptError as error:
            raise Err(Error_Config(str(error))) from None
        except BaseException as error:
            raise Running.failed(error) from None

    def restore(self, snapshot: bytes, written_by: str) -> None:
        try:
            if Running.script:
                Running.script.restore(snapshot)
        except ScriptError as error:
            raise Err(Error_Config(str(error))) from None
        except BaseException as error:
            raise Running.failed(error) from None


class Script(exports.Script):
    def inspect(self, name: str, source: str, modules: list[ModuleFile]) -> list[Function]:
        loaded = Running.load(name, source, {module.path: module.source for module in modules})
        try:
            found = loaded.functions()
        except ScriptError as error:
            raise Err(Error_Config(str(error))) from None
        except BaseException as error:
            raise Err(Error_Config(tracebacks.text(error, loaded.name))) from None
        return [
            Function(f.name, f.description, f.schema_json(), f.needs(), f.stateless, Kind[f.kind.upper()], f.columns()) for f in found
        ]


library.install()
loop.install()
preload.settle()
