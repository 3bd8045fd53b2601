"""The cell: runs the model's code and gives what it printed and its last value. The code can change anything here: all it can do is say
something else."""

import ast
import builtins
import io
import os
import sys
import threading
import types

# Beyond what any setting shows.
LONGEST_OUTPUT = 50_000


class Output(io.TextIOBase):
    """Keeps the beginning of what is written."""

    def __init__(self):
        self.text = ""

    def writable(self):
        return True

    def write(self, text):
        if len(self.text) < LONGEST_OUTPUT:
            self.text += text[:LONGEST_OUTPUT]
        return len(text)


def leave(*_):
    raise SystemExit


def prepare():
    """What programs use and an interpreter without a system lacks."""
    builtins.exit = builtins.quit = os._exit = leave
    threading.Thread.start = lambda self: self.run()
    threading.Thread.join = lambda self, timeout=None: None
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.__dict__["__builtins__"] = builtins
    return module.__dict__


def evaluated(code, names):
    """Runs statements; returns the value of the last one if it is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<code>", "exec", dont_inherit=True), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "<code>", "eval", dont_inherit=True), names)


def run(code):
    """Runs code. The answer begins with + if it ran, and with - if it failed."""
    output = sys.stdout = sys.stderr = Output()
    sys.stdin = io.StringIO("")
    shown, named, write = repr, type, Output.write
    try:
        value = evaluated(code, prepare())
        if value is not None:
            write(output, f"{shown(value)}\n")
        return f"+{output.text}"
    except BaseException as error:
        name = named(error).__name__
        try:
            said = f"{error}"
        except BaseException:
            said = ""
        write(output, f"Error: {name}\n" if name == "SystemExit" else f"{name}: {said}\n" if said else f"{name}\n")
        return f"-{output.text}"
