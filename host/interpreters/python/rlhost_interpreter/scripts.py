"""A script: its module, its public functions, and the state that it keeps."""

import dis
import inspect
import os
import pickle
import sys
import types

from . import library, tracebacks
from .batches import EstimatorSignature, LossSignature, PromptingSignature, advantages
from .environments import Environment
from .guard import GUARD, OUTSIDE, called, plain
from .signatures import Signature, SignatureError, parameters_of

REWARDS = "REWARDS"
TOOLS = "TOOLS"
ESTIMATES = "ESTIMATES"
STATE = "STATE"
STATELESS = "STATELESS"
# Functions that are not rewards even if their arguments look like it.
PROMPTING = "teacher_prompts"
OTHERS = ("snapshot", "restore", PROMPTING)


class ScriptError(Exception):
    """The script or what it is asked for is wrong."""


class Function:
    """What a script offers: a reward, advantages, a loss or an environment."""

    def __init__(self, name: str, value, kind: str, script: "Script"):
        self.name, self.kind, self.call = name, kind, value
        self.description = plain((inspect.getdoc(value) or "").partition("\n")[0]) if value is not None else ""
        if kind == "reward":
            self.signature = Signature(value, script.text())
        elif kind == "advantages":
            self.signature = EstimatorSignature(value)
        elif kind == "loss":
            self.signature = LossSignature(value, script.estimates())
        else:
            self.signature = Environment(name, value, script.tools(), script.name)
        # Pairs have no advantages.
        estimated = kind == "loss" and not self.signature.pairs
        self.estimator = self if kind == "advantages" else script.estimator() if estimated else None
        self.estimates = script.estimates() if self.estimator else []
        # What writes the questions of a loss's teacher, and how it is called.
        self.prompting = script.prompting() if kind == "loss" else None
        self.prompted = PromptingSignature(self.prompting) if self.prompting else None
        self.stateless = self._stateless(script)

    def _stateless(self, script: "Script") -> bool:
        given = script.module.__dict__.get(STATELESS)
        if self.kind != "reward":
            return False
        if given is not None:
            return bool(given)
        # A function of one row can't see its neighbours; it may still count in a global variable.
        return self.signature.by_row and not script.keeps_state() and not _writes_globals(self.call)

    def needs(self) -> list[str]:
        if self.kind == "environment":
            return ["dataset_columns"]
        own = self.signature.needs()
        of_estimator = self.estimator.signature.needs() if self.kind == "loss" and self.estimator else []
        of_prompting = ["has_teacher_prompt"] if self.prompting else []
        return list(dict.fromkeys([*own, *of_estimator, *of_prompting]))

    def columns(self) -> list[str]:
        """Returns the dataset's columns that it can't be called without; of advantages, those that it returns."""
        if self.kind == "environment":
            return self.signature.columns()
        return {"reward": self.signature.columns, "advantages": self.estimates}.get(self.kind, [])

    def schema(self) -> dict:
        """Returns the JSON Schema of the settings."""
        schema = self.signature.schema()
        if self.kind == "loss" and self.estimator:
            schema["properties"] = self.estimator.signature.settings | schema["properties"]
        if self.prompted:
            schema["properties"] = self.prompted.settings | schema["properties"]
        return schema

    def settings_of(self, given: dict, script_name: str) -> dict:
        """Checks settings. Returns the given ones."""
        known = self.schema()["properties"]
        unknown = sorted(given.keys() - known.keys())
        if unknown:
            raise ScriptError(f"{self.name} in {script_name} has no setting {unknown[0]}; it has: {', '.join(known) or 'none'}")
        return given


def _writes_globals(function) -> bool:
    waiting = [getattr(inspect.unwrap(function), "__code__", None)]
    while waiting:
        code = waiting.pop()
        if code is None:
            continue
        if any(op.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for op in dis.get_instructions(code)):
            return True
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return False


def _kind(name: str, value) -> str | None:
    """Returns what a public name of a script can be used as, if anything."""
    if inspect.isclass(value):
        return "environment" if callable(getattr(value, "reset", None)) else None
    if not callable(value) or not hasattr(value, "__name__") or name in OTHERS:
        return None
    try:
        parameters = parameters_of(value)
    except (TypeError, ValueError):
        return None
    if "rewards" in parameters and (name == "advantages" or "groups" in parameters):
        return "advantages"
    if name == "loss" and not {"completions", "completion"} & set(parameters):
        return "loss"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    is_reward = {"completions", "completion", "completion_ids", "prompts"} & set(parameters)
    return "reward" if is_reward or takes_any and name.endswith("reward") else None


def _sources(modules: dict[str, str]) -> dict[str, str]:
    """Returns the files that are not bytecode."""
    return {path: text for path, text in modules.items() if not path.endswith(".pyc")}


class Script:
    """A script whose top level was run."""

    def __init__(self, name: str, source: str, modules: dict[str, str]):
        self.name = os.path.basename(name) or "script.py"
        self.source = source
        self.sources = _sources(modules)
        library.FILES.replace(modules)
        tracebacks.remember(self.name, source)
        stem = self.name.removesuffix(".py")
        self.module = types.ModuleType(stem)
        self.module.__file__ = self.name
        # So that classes of the script can be pickled and dataclasses find their module.
        sys.modules[stem] = self.module
        code = compile(source, self.name, "exec", dont_inherit=True)
        with OUTSIDE:
            exec(code, self.module.__dict__)
            self.replaced = OUTSIDE.settled()

    def is_of(self, name: str, source: str, modules: dict[str, str]) -> bool:
        return (self.name, self.source, self.sources) == (os.path.basename(name), source, _sources(modules))

    def text(self) -> str:
        """Returns all that may be run."""
        return "\n".join([self.source, *self.sources.values()])

    def _listed(self, name: str) -> list | None:
        """Returns a list of the script's, of functions or their names."""
        listed = self.module.__dict__.get(name)
        if listed is None:
            return None
        if not isinstance(listed, (list, tuple)):
            raise ScriptError(f"{name} in {self.name} is {type(listed).__name__}, not a list")
        return list(listed)

    def _value(self, entry, listed_in: str):
        """Returns the function that an entry of a list is, or names."""
        if callable(entry) and hasattr(entry, "__name__"):
            return entry
        if isinstance(entry, str) and callable(self.module.__dict__.get(entry)):
            return self.module.__dict__[entry]
        raise ScriptError(f"{listed_in} in {self.name} lists {entry!r:.60}, which is no function of it")

    def tools(self) -> list:
        """Returns the functions that `TOOLS` lists."""
        return [self._value(entry, TOOLS) for entry in self._listed(TOOLS) or []]

    def estimates(self) -> list[str]:
        """Returns the names of the columns that `advantages` returns."""
        return [str(name) for name in self._listed(ESTIMATES) or ["advantage"]] if self._estimating() else []

    def _estimating(self):
        """Returns the script's function of advantages, or the usual one if its loss takes an advantage."""
        names = self.module.__dict__
        for name, value in names.items():
            if not name.startswith("_") and self._is_own(value) and _kind(name, value) == "advantages":
                return value
        loss = names.get("loss")
        takes_advantage = self._is_own(loss) and _kind("loss", loss) == "loss" and "advantage" in parameters_of(loss)
        return advantages if takes_advantage else None

    def prompting(self):
        """Returns the script's function that writes what a teacher reads, if it has one."""
        value = self.module.__dict__.get(PROMPTING)
        return value if callable(value) and self._is_own(value) else None

    def estimator(self) -> Function | None:
        """Returns the script's function of advantages."""
        value = self._estimating()
        return self._made(value.__name__, value, "advantages") if value else None

    def _is_own(self, value) -> bool:
        return getattr(value, "__module__", None) == self.module.__name__

    def functions(self) -> list[Function]:
        """Returns what is public: the rewards that `REWARDS` lists, or all that are defined here and take completions; and all else."""
        listed = self._listed(REWARDS)
        tools = self.tools()
        found = []
        if listed is not None:
            for entry in listed:
                value = self._value(entry, REWARDS)
                found.append(self._made(value.__name__, value, "reward"))
        for name, value in self.module.__dict__.items():
            kind = None if name.startswith("_") or not self._is_own(value) or value in tools else _kind(name, value)
            if kind and (kind != "reward" or listed is None):
                found.append(self._made(name, value, kind))
        # With a class, the model gets its methods and these.
        if tools and not any(function.kind == "environment" for function in found):
            found.append(self._made(TOOLS, None, "environment"))
        return found

    def function(self, name: str) -> Function:
        """Returns the function of this name."""
        if name == TOOLS and self.tools():
            return self._made(TOOLS, None, "environment")
        if name not in self.module.__dict__:
            known = ", ".join(function.name for function in self.functions()) or "none"
            raise ScriptError(f"{self.name} has no function {name}; it has: {known}")
        value = self.module.__dict__[name]
        if not callable(value):
            raise ScriptError(f"{name} in {self.name} is not a function")
        return self._made(name, value, _kind(name, value) or "reward")

    def _made(self, name: str, value, kind: str) -> Function:
        try:
            return Function(name, value, kind, self)
        except SignatureError as error:
            article = "advantages" if kind == "advantages" else "an environment" if kind == "environment" else f"a {kind}"
            raise ScriptError(f"{name} in {self.name} can't be {article}: {error}") from None
        except ValueError as error:
            # Built-in functions have no signature.
            raise ScriptError(f"{name} in {self.name} can't be used: {error}") from None

    def only(self) -> Function:
        """Returns the script's one function: its reward, else its loss, its advantages or its environment."""
        functions = self.functions()
        for kind in ("reward", "loss", "advantages", "environment"):
            found = [function for function in functions if function.kind == kind]
            if len(found) == 1:
                return found[0]
            if found:
                names = ", ".join(function.name for function in found)
                what = {"advantages": "functions of advantages", "loss": "losses"}.get(kind, f"{kind}s")
                raise ScriptError(f"{self.name} has {len(found)} {what} ({names}): name one, as in {self.name}:{found[0].name}")
        raise ScriptError(
            f"{self.name} has no reward: write def NAME(completions, **columns), which returns a score for each completion, or def "
            f"NAME(completion), which returns one"
        )

    def keeps_state(self) -> bool:
        names = self.module.__dict__
        return STATE in names or "snapshot" in names

    def _state_names(self) -> list[str]:
        named = self.module.__dict__[STATE]
        names = [named] if isinstance(named, str) else list(named)
        for name in names:
            if name not in self.module.__dict__:
                raise ScriptError(f"STATE in {self.name} names {name}, which is not there")
        return names

    def snapshot(self) -> bytes:
        """Returns the state as bytes, none if it keeps none."""
        GUARD.undo_rest()
        names = self.module.__dict__
        if "snapshot" in names:
            return pickle.dumps(called(names["snapshot"]))
        if STATE in names:
            return pickle.dumps({name: names[name] for name in self._state_names()})
        return b""

    def restore(self, data: bytes) -> None:
        """Takes over a snapshot, which another version of the script may have made."""
        names = self.module.__dict__
        if not data or not self.keeps_state():
            return
        GUARD.undo_rest()
        state = pickle.loads(data)
        if "snapshot" in names:
            if not callable(names.get("restore")):
                raise ScriptError(f"{self.name} has snapshot() and no restore(state)")
            called(names["restore"], state)
        elif isinstance(state, dict):
            for name in self._state_names():
                if name in state:
                    names[name] = state[name]
