"""Keeps what a script does to Python itself from what calls the script.

A script may replace built-in functions and parts of the library. What its top level replaced is in force whenever the script runs; what a
call replaced ends with the call, or, in modules that most calls don't need, before they are needed. Code of the interpreter never sees either: between `enter` and `leave` it uses only what it has taken
references to, as `from builtins import zip` does.
"""

import builtins
import gc
import importlib
import sys
import threading
import types


# All that the interpreter's own code uses of the library while it answers calls, directly or not.
MODULES = (
    "asyncio asyncio.base_events asyncio.coroutines asyncio.events asyncio.futures asyncio.runners asyncio.tasks contextlib functools "
    "inspect itertools json json.decoder json.encoder json.scanner linecache math operator os pickle random re struct traceback types "
    "time weakref"
).split()
# Modules whose classes are only used when a script is configured.
ONLY_FUNCTIONS = ("functools", "inspect", "operator", "os", "types")
# Most calls need none of these: they run coroutines, show errors, and make snapshots. Looking at all that a script may have replaced in
# them would take most of such a call's time.
SELDOM = frozenset(
    "asyncio asyncio.base_events asyncio.coroutines asyncio.events asyncio.futures asyncio.runners asyncio.tasks linecache pickle traceback "
    "time weakref".split()
)

BUILTINS = builtins.__dict__
MISSING = object()
RECURSION_LIMIT = sys.getrecursionlimit()
STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__", "excepthook", "displayhook")
LISTS = ("meta_path", "path_hooks")
# References that stay what they are while a script runs.
_dict_update, _dict_clear, _dict_copy = dict.update, dict.clear, dict.copy
_set_attribute, _delete_attribute, _get_attribute = type.__setattr__, type.__delattr__, getattr


class Kept:
    """What modules and their classes had when the interpreter was ready."""

    def __init__(self, modules: list):
        classes = {}
        for module in modules:
            if module.__name__ in ONLY_FUNCTIONS:
                continue
            for value in module.__dict__.values():
                # Those written in C can't be changed.
                if isinstance(value, type) and value.__module__ == module.__name__ and value.__flags__ & (1 << 9):
                    classes[value] = dict(value.__dict__)
        self._modules = [(module.__dict__, dict(module.__dict__)) for module in modules]
        self._classes = list(classes.items())

    def changes(self) -> list[tuple]:
        """Returns what is otherwise now: owner, name and value."""
        found = []
        for names, kept in self._modules:
            if names != kept:
                found += _changes(names, kept, names)
        for owner, kept in self._classes:
            if owner.__dict__ != kept:
                found += _changes(owner, kept, owner.__dict__)
        return found

    def undo(self) -> None:
        """Makes it what it was."""
        for names, kept in self._modules:
            if names != kept:
                for owner, name, _ in _changes(names, kept, names):
                    _put(owner, name, kept.get(name, MISSING))
        for owner, kept in self._classes:
            if owner.__dict__ != kept:
                for _, name, _ in _changes(owner, kept, owner.__dict__):
                    _put(owner, name, kept.get(name, MISSING))


class Guard:
    """The state of Python as the interpreter left it, and what the script's top level made of it."""

    def __init__(self):
        self.record()

    def record(self) -> None:
        """Takes the state that Python is in now for the one that a script's changes are undone to."""
        self._builtins = dict(BUILTINS)
        modules = [importlib.import_module(name) for name in MODULES]
        self._kept = Kept([module for module in modules if module.__name__ not in SELDOM])
        self._kept_of_seldom = Kept([module for module in modules if module.__name__ in SELDOM])
        # Whether code of the script has run since those were looked at.
        self._has_run = False
        self._lists = [(_get_attribute(sys, name), list(_get_attribute(sys, name))) for name in LISTS]
        self._own = []
        self.is_running = False

    def enter(self) -> None:
        """Puts in force what the script's top level replaced. Called before code of the script."""
        self._streams = [_get_attribute(sys, name) for name in STREAMS]
        self.is_running = True
        for owner, name, value in self._own:
            _put(owner, name, value)

    def leave(self) -> None:
        """Undoes what the script replaced, except in modules that are needed seldom. Called after its code, however it ended."""
        if BUILTINS != self._builtins:
            _dict_clear(BUILTINS)
            _dict_update(BUILTINS, self._builtins)
        self.is_running = False
        self._has_run = True
        self._kept.undo()
        self._undo()

    def undo_rest(self) -> None:
        """Undoes what the script replaced in modules that are needed seldom. Called before they are needed."""
        if self._has_run and not self.is_running:
            self._has_run = False
            self._kept_of_seldom.undo()

    def settle(self) -> list[str]:
        """Called instead of `leave` after the script's top level. Returns the names of what it replaced, which `enter` replaces again."""
        replaced = _dict_copy(BUILTINS)
        _dict_clear(BUILTINS)
        _dict_update(BUILTINS, self._builtins)
        self.is_running = False
        own = _changes(BUILTINS, self._builtins, replaced)
        for kept in (self._kept, self._kept_of_seldom):
            own += kept.changes()
            kept.undo()
        self._undo()
        self._own = own
        return [name for _, name, _ in own]

    def _undo(self) -> None:
        for name, stream in zip(STREAMS, self._streams):
            setattr(sys, name, stream)
        for (own, kept), name in zip(self._lists, LISTS):
            own[:] = kept
            setattr(sys, name, own)
        if sys.getrecursionlimit() != RECURSION_LIMIT:
            sys.setrecursionlimit(RECURSION_LIMIT)
        sys.settrace(None)
        sys.setprofile(None)
        threading.settrace(None)
        if not gc.isenabled():
            gc.enable()


def _changes(owner, kept: dict, found) -> list[tuple]:
    """Returns what `found` has otherwise than `kept`: owner, name and value."""
    changed = [name for name in {*kept, *found} if found.get(name, MISSING) is not kept.get(name, MISSING)]
    return [(owner, name, found.get(name, MISSING)) for name in changed if not _by_itself(name, kept, found)]


def _by_itself(name, kept, found) -> bool:
    """Whether a name may change without anybody's intent: an imported submodule becomes an attribute of its package."""
    return not isinstance(name, str) or name in OF_ITSELF or name not in kept and isinstance(found.get(name), types.ModuleType)


OF_ITSELF = frozenset(("__warningregistry__", "__annotations_cache__", "__annotate_func__", "_abc_impl", "__abstractmethods__"))


def _put(owner, name: str, value) -> None:
    if owner.__class__ is dict:
        if value is MISSING:
            owner.pop(name, None)
        else:
            owner[name] = value
        return
    try:
        if value is not MISSING:
            _set_attribute(owner, name, value)
        elif name in owner.__dict__:
            _delete_attribute(owner, name)
    except (AttributeError, TypeError):
        # It can't be changed, so it has not been.
        pass


def heap_types_are_marked() -> bool:
    """Whether the flag by which classes of Python's are told from those written in C is where it was."""
    return bool(Guard.__flags__ & (1 << 9)) and not int.__flags__ & (1 << 9)


assert heap_types_are_marked()
GUARD = Guard()


class Outside:
    """Around code of the script: `with OUTSIDE: ...`. It may be entered within itself."""

    def __init__(self):
        self.depth = 0

    def __enter__(self):
        if self.depth == 0:
            GUARD.enter()
        self.depth += 1

    def __exit__(self, *raised):
        self.depth -= 1
        if self.depth == 0 and GUARD.is_running:
            GUARD.leave()

    def settled(self) -> list[str]:
        """Says that the script's top level has ended; see `Guard.settle`."""
        return GUARD.settle()


OUTSIDE = Outside()


def called(function, /, *values, **named):
    """Calls a function of the script's."""
    with OUTSIDE:
        return function(*values, **named)


def plain(text) -> str:
    """Returns a text that can be passed on: halves of characters, which UTF-8 lacks, are written out."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


__all__ = ["GUARD", "OUTSIDE", "called", "plain"]
