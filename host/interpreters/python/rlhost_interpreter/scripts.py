"""A script: its module, its public functions, and the state that it keeps."""

import builtins
import dis
import inspect
import os
import pickle
import sys
import types

from . import library, tracebacks
from .signatures import Signature, SignatureError

REWARDS = "REWARDS"
STATE = "STATE"
STATELESS = "STATELESS"


class ScriptError(Exception):
    """The script or what it is asked for is wrong."""


class Function:
    """A public function of a script."""

    def __init__(self, function, kind: str, script: "Script"):
        self.name = function.__name__
        self.kind = kind
        self.call = function
        self.description = (inspect.getdoc(function) or "").partition("\n")[0]
        self.signature = Signature(function, script.text()) if kind == "reward" else None
        self.stateless = self._stateless(script)

    def _stateless(self, script: "Script") -> bool:
        given = script.module.__dict__.get(STATELESS)
        if given is not None:
            return bool(given)
        # A function of one row can't see its neighbours; it may still count in a global variable.
        return self.kind == "reward" and self.signature.by_row and not script.keeps_state() and not _writes_globals(self.call)

    def needs(self) -> list[str]:
        return self.signature.needs() if self.signature else []

    def columns(self) -> list[str]:
        return self.signature.columns if self.signature else []

    def schema_json(self) -> str:
        return self.signature.schema_json() if self.signature else '{"type": "object", "properties": {}}'


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
    if not callable(value) or not hasattr(value, "__name__"):
        return None
    try:
        parameters = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return None
    if "rewards" in parameters and (name == "advantages" or "groups" in parameters):
        return "advantages"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    is_reward = {"completions", "completion", "completion_ids", "prompts"} & set(parameters)
    return "reward" if is_reward or takes_any and name.endswith("reward") else None


class Script:
    """A script whose top level was run."""

    def __init__(self, name: str, source: str, modules: dict[str, str]):
        self.name = os.path.basename(name) or "script.py"
        self.source = source
        self.modules = modules
        library.FILES.files = modules
        for path, text in modules.items():
            tracebacks.remember(path, text)
        tracebacks.remember(self.name, source)
        stem = self.name.removesuffix(".py")
        self.module = types.ModuleType(stem)
        self.module.__file__ = self.name
        # So that classes of the script can be pickled and dataclasses find their module.
        sys.modules[stem] = self.module
        code = compile(source, self.name, "exec", dont_inherit=True)
        self._builtins = dict(builtins.__dict__)
        exec(code, self.module.__dict__)

    def is_of(self, name: str, source: str, modules: dict[str, str]) -> bool:
        return (self.name, self.source, self.modules) == (os.path.basename(name), source, modules)

    def text(self) -> str:
        """Returns all that may be run."""
        return "\n".join([self.source, *self.modules.values()])

    def keep_builtins(self) -> None:
        """Undoes changes of the built-in functions: the script's own top level may make them, its calls may not."""
        if builtins.__dict__ != self._builtins:
            builtins.__dict__.clear()
            builtins.__dict__.update(self._builtins)

    def functions(self) -> list[Function]:
        """Returns the public functions: those that `REWARDS` lists, or all that are defined here and take completions."""
        names = self.module.__dict__
        listed = names.get(REWARDS)
        if listed is not None:
            return [self.function(entry if isinstance(entry, str) else entry.__name__) for entry in listed]
        found = []
        for name, value in names.items():
            if name.startswith("_") or getattr(value, "__module__", None) != self.module.__name__:
                continue
            kind = _kind(name, value)
            if kind:
                found.append(self._made(name, value, kind))
        return found

    def function(self, name: str) -> Function:
        """Returns the function of this name."""
        if name not in self.module.__dict__:
            known = ", ".join(function.name for function in self.functions()) or "none"
            raise ScriptError(f"{self.name} has no function {name}; it has: {known}")
        value = self.module.__dict__[name]
        kind = _kind(name, value) or "reward"
        if not callable(value):
            raise ScriptError(f"{name} in {self.name} is not a function")
        return self._made(name, value, kind)

    def _made(self, name: str, value, kind: str) -> Function:
        try:
            return Function(value, kind, self)
        except SignatureError as error:
            raise ScriptError(f"{name} in {self.name} can't be a reward: {error}") from None

    def only(self) -> Function:
        """Returns the script's one reward."""
        rewards = [function for function in self.functions() if function.kind == "reward"]
        if len(rewards) == 1:
            return rewards[0]
        if not rewards:
            raise ScriptError(
                f"{self.name} has no reward: write def NAME(completions, **columns), which returns a score for each completion, or def "
                f"NAME(completion), which returns one"
            )
        names = ", ".join(function.name for function in rewards)
        raise ScriptError(f"{self.name} has {len(rewards)} rewards ({names}): name one, as in {self.name}:{rewards[0].name}")

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
        names = self.module.__dict__
        if "snapshot" in names:
            return pickle.dumps(names["snapshot"]())
        if STATE in names:
            return pickle.dumps({name: names[name] for name in self._state_names()})
        return b""

    def restore(self, data: bytes) -> None:
        """Takes over a snapshot, which another version of the script may have made."""
        names = self.module.__dict__
        if not data or not self.keeps_state():
            return
        state = pickle.loads(data)
        if "snapshot" in names:
            if not callable(names.get("restore")):
                raise ScriptError(f"{self.name} has snapshot() and no restore(state)")
            names["restore"](state)
        elif isinstance(state, dict):
            for name in self._state_names():
                if name in state:
                    names[name] = state[name]
