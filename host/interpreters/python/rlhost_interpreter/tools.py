"""Functions as tools: what a model is told of them, as transformers' `get_json_schema` writes it, and how a call is answered."""

import enum
import inspect
import re
import types
import typing

# Used while the script's own are in force.
from builtins import Exception, TypeError, ValueError, all, dict, isinstance, len, list, sorted, str, zip  # noqa: A004
from json import loads

from .guard import GUARD, OUTSIDE, plain
from .loop import finish, together
from .signatures import parameters_of

SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
BARE = {**SCALARS, list: "array", tuple: "array", dict: "object"}

SECTIONS = re.compile(r"\n\s*(Args|Arguments|Returns|Raises|Yields|Examples?):[ \t]*(?:\n|$)")
# "name: text", "name (type): text".
ARGUMENT = re.compile(r"([ \t]*)(\w+)(?:[ \t]*\([^()\n]*\))?:[ \t]*(.*)")
CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)

# The longest answer of a tool, below what the host allows.
LONGEST = 60_000


class ToolError(Exception):
    """A function can't be a tool as it is written."""


def _enumeration(values: list) -> dict:
    kinds = list(dict.fromkeys(SCALARS[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}


def _union(arguments: tuple) -> dict:
    parts = [schema_of(a) for a in arguments if a is not type(None)]
    if len(parts) == 1:
        schema = parts[0]
    elif all(part.keys() == {"type"} and isinstance(part["type"], str) for part in parts):
        kinds = sorted({part["type"] for part in parts})
        schema = {"type": kinds[0] if len(kinds) == 1 else kinds}
    else:
        schema = {"anyOf": parts}
    return schema | {"nullable": True} if type(None) in arguments else schema


def schema_of(hint) -> dict:
    """Returns the JSON Schema of a type hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return schema_of(arguments[0])
    if hint is typing.Any:
        return {}
    if origin is None:
        if isinstance(hint, type) and issubclass(hint, enum.Enum) and len(hint) > 0:
            values = [member.value for member in hint]
            if all(type(value) in SCALARS for value in values):
                return _enumeration(values)
        if isinstance(hint, type) and hint in BARE:
            return {"type": BARE[hint]}
    elif origin in (typing.Union, types.UnionType):
        return _union(arguments)
    elif origin is typing.Literal and all(type(value) in SCALARS for value in arguments):
        return _enumeration(list(arguments))
    elif origin is list:
        return {"type": "array", "items": schema_of(arguments[0])}
    elif origin is tuple and len(arguments) > 1 and ... not in arguments:
        return {"type": "array", "prefixItems": [schema_of(a) for a in arguments]}
    elif origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    raise ToolError(
        f"a tool's argument can't have the type {hint}: use int, float, str, bool, list, tuple, dict, Literal, an Enum or unions of these"
    )


def described(doc: str) -> tuple[str, dict[str, str]]:
    """Reads a docstring as Google's style has it: what the function does, and what each argument is."""
    pieces = SECTIONS.split("\n" + doc)
    sections = dict(zip(pieces[1::2], pieces[2::2]))
    found: dict[str, str] = {}
    depth, last = None, None
    for line in sections.get("Args", sections.get("Arguments", "")).split("\n"):
        argument = ARGUMENT.fullmatch(line)
        if argument and (depth is None or len(argument[1]) <= depth):
            depth, last = len(argument[1]), argument[2]
            found[last] = argument[3].strip()
        elif last is not None and line.strip():
            found[last] = f"{found[last]} {line.strip()}".strip()
    return pieces[0].strip(), found


def _settings_of(parameter, hints: dict, texts: dict[str, str]) -> dict:
    name = parameter.name
    if name not in hints:
        raise ToolError(f"its argument {name} has no type: write {name}: str, for example")
    if name not in texts:
        raise ToolError(f"its argument {name} is not described: write a line {name}: ... under Args: in its docstring")
    schema, text = schema_of(hints[name]), texts[name]
    choices = CHOICES.search(text)
    if choices:
        schema["enum"] = [c.strip() if isinstance(c, str) else c for c in loads(choices[1])]
        text = text[: choices.start()].strip()
    return schema | {"description": text}


class Tool:
    """A function that the model may call, or a method."""

    def __init__(self, name: str, function, is_method: bool = False):
        self.name = name
        self.function = function
        self.is_asynchronous = inspect.iscoroutinefunction(function)
        doc = (inspect.getdoc(function) or "").strip()
        if not doc:
            raise ToolError("it has no docstring, from which the model would know what it does")
        self.description, texts = described(doc)
        parameters = list(parameters_of(function).values())[1 if is_method else 0 :]
        try:
            hints = typing.get_type_hints(function)
        except Exception as error:
            raise ToolError(f"its types can't be read: {error}") from None
        alike = [p for p in parameters if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        if alike:
            raise ToolError(f"its argument {alike[0]} has no name by which the model could give it")
        self.schema = {"type": "object", "properties": {p.name: _settings_of(p, hints, texts) for p in parameters}}
        required = [p.name for p in parameters if p.default is p.empty]
        if required:
            self.schema["required"] = required


def methods(cls) -> dict[str, object]:
    """Returns the methods of a class that are tools, in the order of their names, as in TRL."""
    found = inspect.getmembers(cls, predicate=inspect.isfunction)
    return {name: function for name, function in found if name not in ("reset", "get_reward") and not name.startswith("_")}


# What templates might take for a mark: `<|end|>`, `</s>`, `[INST]`.
MARKS = ((re.compile(r"<(?=[^<>\s]+>)"), "< "), (re.compile(r"\[(?=/?[A-Z_]+\])"), "[ "))


def _content(result) -> str:
    """Returns a tool's answer as a message's text."""
    if isinstance(result, list) and result and all(isinstance(part, dict) and "type" in part for part in result):
        kinds = {part["type"] for part in result}
        if kinds != {"text"}:
            raise TypeError(f"a tool returned a part of type {sorted(kinds - {'text'})[0]}; parts may only be texts here")
        text = "".join(str(part["text"]) for part in result)
    else:
        text = str(result)
    text = plain(text)
    for mark, parted in MARKS:
        text = mark.sub(parted, text)
    data = text.encode()
    return text if len(data) <= LONGEST else data[:LONGEST].decode(errors="ignore") + f"\n({len(data) - LONGEST} more bytes)"


def _answer(named: dict, call):
    """Calls a tool. Returns its answer, or what it promises if it is asynchronous, and whether it failed."""
    try:
        if call.name not in named:
            raise ValueError(f"Tool {call.name} not found.")
        tool, function = named[call.name]
        arguments = loads(call.arguments)
        return tool.is_asynchronous, function(**arguments), False
    except Exception as error:
        return False, {"error": str(error)}, True


def answers(named: dict, calls: list) -> tuple[list[tuple], int]:
    """Answers a turn's calls: a call and its answer's text each, first those of functions that are not asynchronous, as in TRL. Returns
    the number of calls that failed, too."""
    done, promised, failed = [], [], 0
    if any(tool.is_asynchronous for tool, _ in named.values()):
        GUARD.undo_rest()
    with OUTSIDE:
        for call in calls:
            is_promise, result, has_failed = _answer(named, call)
            failed += has_failed
            (promised if is_promise else done).append((call, result))
        if promised:
            results = finish(together([promise for _, promise in promised], errors=True))
            for (call, _), result in zip(promised, results):
                if isinstance(result, Exception):
                    failed += 1
                    result = {"error": str(result)}
                done.append((call, result))
        return [(call, _content(result)) for call, result in done], failed
