"""What a function's signature says: which inputs it reads, which of its arguments are settings, and how it is called."""

import annotationlib
import dis
import inspect
import json
import math
import types
import typing

# Arguments of a reward function that are not columns, each with what the host must send for it.
BATCH_INPUTS = {
    "prompts": ("prompt_text", "dataset_columns"),
    "completions": ("completion_text", "dataset_columns"),
    "completion_ids": ("token_ids",),
    "trainer_state": (),
    "log_extra": (),
    "log_metric": (),
}
# A function of one row gets texts, from conversations too.
ROW_INPUTS = {
    "prompt": ("prompt_text",),
    "completion": ("completion_text",),
    "token_ids": ("token_ids",),
    "finished": (),
}
ALL_NEEDS = ("prompt_text", "completion_text", "token_ids", "dataset_columns")

BASIC = {int: "integer", float: "number", str: "string", bool: "boolean"}


class SignatureError(Exception):
    """A function can't be used as it is written."""


def parameters_of(function):
    """Returns a function's parameters by name; annotations needn't have a meaning."""
    return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF).parameters


def _hints(function) -> dict:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        # An annotation that can't be evaluated is no reason to refuse a function.
        return {}


def _type_name(value) -> str | None:
    if value is None:
        return None
    return BASIC.get(type(value))


def _of_annotation(annotation) -> dict | None:
    """Returns the JSON Schema of an annotation, or None if settings can't have such a type."""
    # Others may have no hash.
    if isinstance(annotation, type) and annotation in BASIC:
        return {"type": BASIC[annotation]}
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        schema = _of_annotation(arguments[0])
        return schema and schema | _bounds(arguments[1:])
    if origin is typing.Literal:
        names = {_type_name(value) for value in arguments}
        schema = {"enum": list(arguments)}
        return schema | {"type": names.pop()} if len(names) == 1 and None not in names else schema
    if origin is list:
        items = _of_annotation(arguments[0])
        return items and {"type": "array", "items": items}
    if origin in (typing.Union, types.UnionType):
        rest = [a for a in arguments if a is not type(None)]
        schema = _of_annotation(rest[0]) if len(rest) == 1 else None
        if schema and "type" in schema:
            return schema | {"type": [schema["type"], "null"]}
    return None


# Fields of `annotated_types` and their names in JSON Schema; a script may use any object with these fields.
BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}


def _bounds(metadata) -> dict:
    """Reads bounds: a range as `range(1, 10)`, a pair `(0.0, 1.0)` of the least and the greatest value, a dictionary of JSON Schema,
    objects as in `annotated_types`, and text, which describes the setting."""
    schema = {}
    for entry in metadata:
        if isinstance(entry, str):
            schema["description"] = entry
        elif isinstance(entry, dict):
            schema |= entry
        elif isinstance(entry, range) and len(entry) > 0:
            schema |= {"minimum": min(entry), "maximum": max(entry)}
        elif isinstance(entry, tuple) and len(entry) == 2:
            schema |= {key: end for key, end in zip(("minimum", "maximum"), entry) if end is not None}
        else:
            found = {name: getattr(entry, field, None) for field, name in BOUNDS.items()}
            schema |= {name: value for name, value in found.items() if value is not None}
    return schema


def _uses(function, name: str) -> bool:
    """Whether a function reads its argument of this name, as far as can be told."""
    code = getattr(function, "__code__", None)
    if code is None or hasattr(function, "__wrapped__") or name in code.co_cellvars:
        return True
    # Several variables may be loaded by one instruction, whose argument is then a tuple of their names.
    loaded = (op.argval for op in dis.get_instructions(code) if op.opname.startswith("LOAD_FAST"))
    return any(name == value or isinstance(value, tuple) and name in value for value in loaded)


class Arguments:
    """A function's arguments: inputs that the host knows, settings, and columns of the dataset."""

    def __init__(self, function, inputs, skipped: int = 0):
        parameters = list(parameters_of(function).values())[skipped:]
        alone = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
        if alone:
            raise SignatureError(f"its argument {alone[0]} has no name to be called by: remove the /")
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.names = {p.name for p in named}
        self.rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
        self.taken = [p.name for p in named if p.name in inputs]
        self.settings: dict[str, dict] = {}
        self.optional: list[str] = []
        self.columns: list[str] = []
        hints = _hints(function)
        for parameter in named:
            if parameter.name in inputs:
                continue
            if parameter.default is parameter.empty:
                self.columns.append(parameter.name)
                continue
            schema = self._setting(parameter, hints.get(parameter.name))
            if schema is None:
                self.optional.append(parameter.name)
            else:
                self.settings[parameter.name] = schema

    @staticmethod
    def _setting(parameter, annotation) -> dict | None:
        """Returns the schema of a setting: an argument whose default is a number, a text, a truth value or a list of these."""
        default = parameter.default
        if not _is_json(default):
            return None
        schema = _of_annotation(annotation) if annotation is not None else None
        if schema is None:
            name = _type_name(default)
            schema = {"type": name} if name else None
        if schema is None or default is None and "null" not in schema.get("type", ()):
            return None
        if default is None:
            # A column that the dataset may lack is written like this too, and is what it means without a number's type.
            return schema | {"default": None} if set(schema["type"]) & {"integer", "number", "boolean"} else None
        return schema | {"default": default}

    def schema(self) -> dict:
        """Returns the JSON Schema of the settings."""
        return {"type": "object", "properties": self.settings, "additionalProperties": False}

    def schema_json(self) -> str:
        return json.dumps(self.schema())


# What JSON's readers keep exactly.
LARGEST_INTEGER = 1 << 53


def _is_json(value) -> bool:
    """Whether a default can be one in a JSON Schema."""
    if value is None or isinstance(value, bool):
        return True
    if type(value) is int:
        return abs(value) <= LARGEST_INTEGER
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is str:
        return value.isascii() or value.encode("utf-8", "ignore").decode() == value
    return type(value) is list and all(_is_json(item) for item in value)


class Signature(Arguments):
    """How a reward function is called."""

    def __init__(self, function, text: str):
        names = parameters_of(function).keys()
        self.function = function
        self.reads_ids = "completion_ids" in text
        self.by_row = "completion" in names and not names & {"prompts", "completions", "completion_ids"}
        self.inputs = ROW_INPUTS if self.by_row else BATCH_INPUTS
        super().__init__(function, self.inputs)
        # TRL's functions end with **kwargs whether they look at it or not, and what nobody looks at needn't be sent.
        self.takes_rest = self.rest is not None and _uses(function, self.rest)
        if not self.by_row and self.rest is None and not self.names & {"prompts", "completions", "completion_ids"}:
            raise SignatureError("it takes neither completions nor completion")
        if "environments" in self.columns:
            raise SignatureError("it takes environments, which run elsewhere: define get_reward in the environment's class")

    def needs(self) -> list[str]:
        """Returns what the host must send."""
        wanted = {need for name in self.taken for need in self.inputs[name]}
        if self.takes_rest:
            # Token ids are most of a batch's bytes, so they are only sent to scripts that name them.
            wanted |= {"prompt_text", "completion_text", "dataset_columns"} | ({"token_ids"} if self.reads_ids else set())
        if self.columns or self.optional:
            wanted.add("dataset_columns")
        return [need for need in ALL_NEEDS if need in wanted]
