"""The component: the contract of rlhost's plugins, for the script in the configuration."""

import json
import random
import sys
from contextlib import contextmanager

import rlhost  # noqa: F401  (for scripts)
from rlhost_interpreter import library, loop, preload, scripts, tracebacks
from rlhost_interpreter.algorithms import Estimator as Estimating
from rlhost_interpreter.algorithms import Loss, Measured, ResultError
from rlhost_interpreter.batches import DIVERGENCES, Generation
from rlhost_interpreter.calls import AnswerError, BatchError, Call
from rlhost_interpreter.environments import EpisodeError
from rlhost_interpreter.guard import GUARD, plain
from rlhost_interpreter.printing import Lines
from rlhost_interpreter.prompting import Prompting
from rlhost_interpreter.scripts import ScriptError
from wit_world import exports
from wit_world.exports import algorithm, environment, estimator, teacher_prompts
from wit_world.exports.plugin import Info
from wit_world.exports.reward import Batch, Scores
from wit_world.exports.script import ExtraColumn, Function, Kind, ModuleFile
from wit_world.imports import host
from wit_world.imports import types as contract
from wit_world.imports.types import Error_Config, Error_Input, Error_Internal, Error_Unsupported, Metric, Reduction
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
UNITS = {
    "token": contract.Unit.TOKEN,
    "prompt_token": contract.Unit.PROMPT_TOKEN,
    "sequence": contract.Unit.SEQUENCE,
    "group": contract.Unit.GROUP,
}


class Running:
    """The script of this instance and the function that is configured."""

    script: scripts.Script | None = None
    function: scripts.Function | None = None
    # What calls go to: of a reward a `Call`, of an environment itself, of a loss a `Loss`; and of advantages, or of a loss with them.
    call = None
    estimating: Estimating | None = None
    prompting: Prompting | None = None

    @classmethod
    def load(cls, name: str, source: str, modules: dict[str, str]) -> scripts.Script:
        if not isinstance(sys.stdout, Lines):
            # Not while the component is built, which has no log.
            sys.stdout = Lines(lambda line: host.log(host.Level.INFO, line))
            sys.stderr = Lines(lambda line: host.log(host.Level.WARN, line))
        if cls.script is None or not cls.script.is_of(name, source, modules):
            cls.script = cls.function = cls.call = cls.estimating = cls.prompting = None
            try:
                cls.script = scripts.Script(name, source, modules)
            except ScriptError as error:
                raise Err(Error_Config(plain(str(error)))) from None
            except BaseException as error:
                raise Err(Error_Config(tracebacks.text(error, name))) from None
            finally:
                flush()
        return cls.script

    @classmethod
    def configure(cls, script: scripts.Script, name: str | None, settings: dict) -> None:
        function = script.function(name) if name else script.only()
        given = function.settings_of(settings, script.name)
        cls.function, cls.call, cls.estimating, cls.prompting = function, None, None, None
        if function.kind == "reward":
            cls.call = Call(script, function, given)
        elif function.kind == "environment":
            cls.call = function.signature
            cls.call.settings = given
        else:
            of_estimator = function.estimator
            if of_estimator:
                own = {key: value for key, value in given.items() if key in of_estimator.signature.settings}
                cls.estimating = Estimating(of_estimator.call, of_estimator.name, function.estimates, own)
            if function.kind == "loss":
                own = {key: value for key, value in given.items() if key in function.signature.settings}
                cls.call = Loss(function.call, function.name, function.estimates, own)
            if function.prompting:
                own = {key: value for key, value in given.items() if key in function.prompted.settings}
                cls.prompting = Prompting(function.prompting, function.prompting.__name__, own)

    @classmethod
    def of(cls, kind: str):
        """Returns what calls of an interface go to."""
        found = cls.estimating if kind == "advantages" else cls.call if cls.function and cls.function.kind == kind else None
        if found is None:
            what = f"{cls.function.name} in {cls.script.name} is {cls.function.kind}" if cls.function else "there is no script"
            raise Err(Error_Unsupported(f"{what}, and not called as {kind}"))
        return found


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Lines):
            stream.end()


@contextmanager
def answering(config: bool = False):
    """Turns what comes out of a script into the contract's errors, with its own frames."""
    try:
        yield
    except Err:
        raise
    except ScriptError as error:
        raise Err(Error_Config(plain(str(error)))) from None
    except (BatchError, EpisodeError) as error:
        raise Err(Error_Input(plain(str(error)))) from None
    except (AnswerError, ResultError) as error:
        raise Err(Error_Internal(plain(str(error)))) from None
    except BaseException as error:
        row = Running.call.row if isinstance(Running.call, Call) else None
        said = tracebacks.text(error, Running.script.name if Running.script else "script.py", row)
        raise Err(Error_Config(said) if config else Error_Internal(said)) from None
    finally:
        flush()


class Plugin(exports.Plugin):
    def describe(self) -> Info:
        function = Running.function
        if function is None:
            return Info("python", "1.0.0", "A script in Python", json.dumps(SCHEMA), NEEDS, False)
        description = function.description or f"{function.name} of {Running.script.name}"
        settings = {"settings": function.schema() | {"default": {}}}
        schema = SCHEMA | {"properties": SCHEMA["properties"] | settings}
        return Info(function.name, "1.0.0", description, json.dumps(schema), function.needs(), function.stateless)

    def configure(self, config: str) -> None:
        given = json.loads(config)
        script = given.get("script") or {}
        if not isinstance(script.get("source"), str):
            raise Err(Error_Config("there is no script: script.source is its text"))
        loaded = Running.load(script.get("name") or "script.py", script["source"], script.get("modules") or {})
        with answering(config=True):
            Running.configure(loaded, script.get("function"), given.get("settings") or {})


class Reward(exports.Reward):
    def score(self, batch: Batch) -> Scores:
        call = Running.of("reward")
        random.seed(batch.seed)
        with answering():
            rewards = call.score(batch)
        metrics = [
            Metric(name, sum(values) / len(values), float(len(values)), Reduction.MEAN) for name, values in call.metrics.items()
        ]
        return Scores(rewards, metrics)


class Environment(exports.Environment):
    def begin(self, starts: list[environment.Start]) -> list[environment.Opening]:
        playing = Running.of("environment")
        tools = [environment.Tool(tool.name, plain(tool.description), plain(json.dumps(tool.schema))) for tool in playing.tools()]
        openings = []
        with answering():
            for start in starts:
                prompt = playing.begin(start)
                messages = prompt and [
                    environment.Message(m["role"], m["content"], m.get("name"), m.get("tool_call_id")) for m in prompt
                ]
                openings.append(environment.Opening(messages, tools))
        return openings

    def step(self, turns: list[environment.Turn]) -> list[environment.Reply]:
        playing = Running.of("environment")
        replies = []
        with answering():
            for turn in turns:
                answered, done, reward = playing.step(turn)
                messages = [environment.Message("tool", text, call.name, call.id or None) for call, text in answered]
                replies.append(environment.Reply(messages, done, reward))
        return replies

    def finish(self, episodes: list[int]) -> list[Metric]:
        count, calls, failed = Running.of("environment").finish(episodes)
        metrics = []
        if count and Running.call.tools():
            metrics.append(Metric("tools/call_frequency", calls / count, float(count), Reduction.MEAN))
        if calls:
            metrics.append(Metric("tools/failure_frequency", failed / calls, float(calls), Reduction.MEAN))
        return metrics


def columns_of(found: dict[str, tuple[str, list]]) -> list[contract.Column]:
    return [contract.Column(name, UNITS[unit], values, []) for name, (unit, values) in found.items()]


def metrics_of(measured: Measured) -> list[Metric]:
    return [Metric(plain(name), mean, weight, Reduction.MEAN) for name, mean, weight in measured.means()]


def rewards_of(generation: contract.Batch, rewards: list[contract.WeightedReward]) -> list[Metric]:
    """Returns the mean of the rewards, and that of their deviations within groups, under TRL's names."""
    everything = Generation(generation, rewards).rewards()
    scored = [reward for reward in everything if reward is not None]
    if not scored:
        return []
    deviations = []
    for begin, end in zip(generation.groups, generation.groups[1:]):
        group = [reward for reward in everything[begin:end] if reward is not None]
        if len(group) > 1:
            mean = sum(group) / len(group)
            deviations.append((sum((reward - mean) ** 2 for reward in group) / (len(group) - 1)) ** 0.5)
    found = [Metric("reward", sum(scored) / len(scored), float(len(scored)), Reduction.MEAN)]
    if deviations:
        found.append(Metric("reward_std", sum(deviations) / len(deviations), float(len(deviations)), Reduction.MEAN))
    return found


class Estimator(exports.Estimator):
    def estimate(self, generation: contract.Batch, rewards: list[contract.WeightedReward]) -> estimator.Estimates:
        if Running.estimating is None and Running.function and Running.function.kind == "loss":
            # It reads no estimates, but may learn from what the policy generates.
            return estimator.Estimates([], rewards_of(generation, rewards))
        estimating = Running.of("advantages")
        with answering():
            found, measured = estimating.estimate(generation, rewards)
        # Beside a built-in algorithm's loss, that algorithm reports the rewards.
        own = rewards_of(generation, rewards) if Running.function.kind == "loss" else []
        return estimator.Estimates(columns_of(found), metrics_of(measured) + own)


class TeacherPrompts(exports.TeacherPrompts):
    def write(self, generation: teacher_prompts.Generation) -> teacher_prompts.Prompts:
        if Running.prompting is None:
            return teacher_prompts.Prompts([None] * len(generation.completions), 0, [])
        with answering():
            questions, measured = Running.prompting.write(generation)
        return teacher_prompts.Prompts(questions, 0, metrics_of(measured))


class Algorithm(exports.Algorithm):
    def describe_data(self) -> algorithm.Data:
        called = Running.of("loss")
        # A loss of completions with estimates needs what the policy generates; without them, the run decides. Pairs that the policy
        # generates would need a pairing, which a script can't have.
        pairs = called.signature.pairs
        source = algorithm.Source.POLICY if Running.estimating or Running.prompting else algorithm.Source.DATASET if pairs else algorithm.Source.EITHER
        shape = algorithm.Shape.PAIRS if pairs else algorithm.Shape.COMPLETIONS
        return algorithm.Data(source, shape, Running.function.estimates)

    def loss(self, batch: contract.Batch) -> algorithm.Gradient:
        called = Running.of("loss")
        with answering():
            value, gradients, measured = called.loss(batch)
        gradients = {DIVERGENCES.get(name, name): column for name, column in gradients.items()}
        return algorithm.Gradient(value, columns_of(gradients), metrics_of(measured))


class State(exports.State):
    def snapshot(self) -> bytes:
        with answering():
            return Running.script.snapshot() if Running.script else b""

    def restore(self, snapshot: bytes, written_by: str) -> None:
        with answering():
            if Running.script:
                Running.script.restore(snapshot)


class Script(exports.Script):
    def inspect(self, name: str, source: str, modules: list[ModuleFile]) -> list[Function]:
        loaded = Running.load(name, source, {module.path: module.source for module in modules})
        with answering(config=True):
            found = loaded.functions()
            return [
                Function(f.name, f.description, json.dumps(f.schema()), f.needs(), f.stateless, Kind[f.kind.upper()], f.columns())
                for f in found
            ]

    def extra(self) -> list[ExtraColumn]:
        logged = Running.call.extra if isinstance(Running.call, Call) else {}
        return [ExtraColumn(name, values) for name, values in logged.items()]

    def imported(self) -> list[str]:
        return library.FILES.compiled

    def bytecode(self, files: list[ModuleFile]) -> list[ModuleFile]:
        packed = [(file.path, library.bytecode(file.path, file.source)) for file in files]
        return [ModuleFile(f"{path}c", code) for path, code in packed if code is not None]


# A script finds its own modules and the library's, and nothing of this.
for name in list(sys.modules):
    if name.split(".")[0] == "rlhost_interpreter":
        del sys.modules[name]
library.install()
loop.install()
preload.settle()
# With the finders of modules that were installed.
GUARD.record()
