"""The cell: runs the model's code, calls what it defines and gives the values. It knows nothing of what is expected. The code can
change anything here, to no avail: whatever it makes the cell say is a value that the judge compares."""

import builtins
import io
import json
import os
import sys
import threading
import types

from values import decode, encode

# Items of one iterable that are passed on.
MOST_ITEMS = 100_000
# Characters of what an exception says.
LONGEST_TEXT = 200

names = {}
objects = []


def streams(stdin):
    """Gives the code its own standard streams; the function returned gives what was written."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8")
    written = io.BytesIO()
    sys.stdout = io.TextIOWrapper(written, encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    files = open

    def opened(file, *arguments, **named):
        return sys.stdin if file == 0 or file == "/dev/stdin" else files(file, *arguments, **named)

    builtins.open = opened
    return lambda: written.getvalue().decode("utf-8", "replace")


def leave(*_):
    raise SystemExit


def prepare():
    """What programs use and an interpreter without a system lacks."""
    builtins.exit = builtins.quit = os._exit = leave
    threading.Thread.start = lambda self: self.run()
    threading.Thread.join = lambda self, timeout=None: None
    threading.stack_size = lambda size=0: 0


def load(setup, code, stdin):
    prepare()
    written = streams(stdin)
    try:
        compiled = compile(code, "<code>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"unparsed": type(error).__name__}
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    global names
    names = module.__dict__
    names["__builtins__"] = builtins
    raised = None
    try:
        exec(compile(setup, "<setup>", "exec", dont_inherit=True), names)
        exec(compiled, names)
    except BaseException as error:
        raised = type(error).__name__
    kinds = {
        name: "class" if isinstance(value, type) else "other"
        for name, value in list(names.items())
        if isinstance(name, str) and not name.startswith("__") and not isinstance(value, types.ModuleType)
    }
    return {"names": kinds, "raised": raised, "stdout": written()}


def refer(value):
    objects.append(value)
    kind = "class" if isinstance(value, type) else "function" if isinstance(value, types.FunctionType) else "object"
    return {"r": [len(objects) - 1, kind]}


def referred(tag, inside):
    if tag == "n":
        return names[inside]
    return objects[inside]


def function(name):
    """A function by its name, which may be a method of a class Solution."""
    if name in names:
        return names[name]
    return getattr(names["Solution"](), name)


def do(request):
    op = request["op"]
    if op == "function":
        target = function(request["name"])
    else:
        target = decode(request["target"], referred)
    if op in ("call", "function"):
        arguments = [decode(a, referred) for a in request["arguments"]]
        named = {k: decode(v, referred) for k, v in request["named"].items()}
        value = target(*arguments, **named)
        # A function that gives nothing may have changed its arguments.
        changed = [encode(a, refer) if isinstance(a, (list, dict, set)) else None for a in arguments] if value is None else []
        return {"value": encode(value, refer), "changed": changed}
    if op == "attribute":
        value = getattr(target, request["name"])
    elif op == "items":
        value = []
        for item in target:
            if len(value) == MOST_ITEMS:
                raise OverflowError("too many items")
            value.append(item)
    elif op == "length":
        value = len(target)
    elif op == "item":
        value = target[decode(request["key"], referred)]
    else:
        value = target
    return {"value": encode(value, refer)}


def answer(message):
    request = json.loads(message)
    if request["op"] == "load":
        given = load(request["setup"], request["code"], request["stdin"])
    else:
        try:
            given = do(request)
        except BaseException as error:
            try:
                text = str(error)[:LONGEST_TEXT]
            except BaseException:
                text = ""
            given = {"raised": type(error).__name__, "text": text}
    return json.dumps(given)
