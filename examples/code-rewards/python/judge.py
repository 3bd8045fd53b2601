"""The judge: reads tests, has cells run the model's code, and compares. It runs tests, which are the dataset's, but no code of the
model's, and takes values from cells as it would from a stranger."""

import ast
import builtins
import functools
import importlib
import json
import math
import sys
import types
from dataclasses import dataclass

from values import Unsupported, decode, encode
from wit_world.imports import cells
from wit_world.imports.cells import Failure
from componentize_py_types import Err

# What is counted per row, as metrics.
COUNTED = ("all_passed", "unparsed", "out_of_time", "out_of_memory")
FAILURES = {Failure.OUT_OF_TIME: "out_of_time", Failure.OUT_OF_MEMORY: "out_of_memory"}

# Methods of plain values. An object that a function of the code's gave could have them, and answer `startswith` with yes and `find`
# with a place. What structures are made and read with, it may have.
METHODS = {name for kind in (str, bytes, list, tuple, set, dict, int, float, complex) for name in dir(kind)} - set(
    "add append clear discard extend get insert items keys pop popitem remove setdefault update values".split()
)


class BadTests(Exception):
    """Tests of no known form."""


class Failed(Exception):
    """A test failed without a word from it."""


class Unparsed(Exception):
    """The code does not parse."""


class Died(Exception):
    """The cell is gone."""

    def __init__(self, what):
        super().__init__(what)
        self.what = what


class FromCode(Exception):
    """Stands for an exception that has no builtin type."""


@dataclass
class Row:
    tests: object
    setup: object
    entry_point: object


class Cell:
    """A fresh instance with the code loaded. What it says is not trusted: any oddity is a failed test."""

    def __init__(self, code, setup, settings, stdin=""):
        self.timeout = settings["timeout_ms"]
        self.gone = False
        try:
            self.number = cells.open(settings["memory_mb"])
        except Err as error:
            raise BadTests(f"no cell could be opened for it ({error.value})")
        try:
            self.loaded = self.ask({"op": "load", "setup": setup, "code": code, "stdin": stdin})
        except BaseException:
            self.close()
            raise
        if "unparsed" in self.loaded:
            self.close()
            raise Unparsed

    def close(self):
        self.gone = True
        cells.close(self.number)

    def ask(self, request):
        try:
            given = json.loads(cells.ask(self.number, json.dumps(request), self.timeout))
        except Err as error:
            self.gone = True
            raise Died(reason(error))
        except Exception:
            raise Failed("no JSON")
        if not isinstance(given, dict):
            raise Failed("no object")
        return given

    def names(self):
        names = self.loaded.get("names")
        return {n for n in names if isinstance(n, str)} if isinstance(names, dict) else set()

    def raised(self, given):
        """Raises what the code raised."""
        name, text = given.get("raised"), given.get("text")
        if name is None:
            return
        kind = getattr(builtins, name, None) if isinstance(name, str) else None
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = FromCode
        try:
            error = kind(text if isinstance(text, str) else "")
        except Exception:
            error = FromCode(name)
        raise error

    def value(self, given):
        try:
            return decode(given, lambda tag, inside: self.refer(tag, inside))
        except Exception:
            raise Failed("no value")

    def refer(self, tag, inside):
        number, kind = inside
        if tag != "r" or type(number) is not int or kind not in ("class", "function", "object"):
            raise ValueError("no reference")
        return Remote(self, {"r": number})

    def call(self, request, arguments, named):
        request["arguments"] = [encode(a, refer) for a in arguments]
        request["named"] = {k: encode(v, refer) for k, v in named.items()}
        given = self.ask(request)
        self.raised(given)
        value = self.value(given.get("value"))
        if value is None:
            self.write_back(arguments, given.get("changed"))
        return value

    def construct(self, target, arguments, named):
        """Calls a class of the code's, of whose objects a test may ask anything."""
        value = self.call({"op": "call", "target": target}, arguments, named)
        return Remote(self, object.__getattribute__(value, "_target"), own=True) if isinstance(value, Remote) else value

    def write_back(self, arguments, changed):
        if not isinstance(changed, list) or len(changed) != len(arguments):
            return
        for argument, new in zip(arguments, changed):
            new = self.value(new)
            if type(argument) is type(new) is list:
                argument[:] = new
            elif type(argument) is type(new) and isinstance(new, (dict, set)):
                argument.clear()
                argument.update(new)

    def get(self, request):
        given = self.ask(request)
        self.raised(given)
        return self.value(given.get("value"))


def reason(error):
    """Returns what a failed call of a cell says."""
    return FAILURES.get(error.value, "refused" if error.value == Failure.REFUSED else "trapped")


class Cells:
    """The cells of a row: one for all tests, replaced when a test has ended it, and one for each program."""

    def __init__(self, code, setup, settings):
        self.code, self.setup, self.settings = code, setup, settings
        self.cell = None

    @functools.cached_property
    def compiled_setup(self):
        """The setup for the judge, whose own is what it defines."""
        return compile(self.setup, "<setup>", "exec", dont_inherit=True)

    def get(self):
        """Returns the cell with the code loaded."""
        if self.cell is None or self.cell.gone:
            self.cell = Cell(self.code, self.setup, self.settings)
        return self.cell

    def ran(self, stdin):
        """Returns what a program did that read this."""
        cell = Cell(self.code, self.setup, self.settings, stdin)
        cell.close()
        return cell.loaded

    def close(self):
        if self.cell is not None and not self.cell.gone:
            self.cell.close()


def refer(value):
    """How the judge's own values pass into a cell."""
    if isinstance(value, Remote):
        return object.__getattribute__(value, "_target")
    raise Unsupported(f"a test passes a {type(value).__name__} to the code")


class Remote:
    """An object in a cell. It can be called, read and gone through; it equals nothing but itself, so no `__eq__` of the code's has
    a say."""

    def __init__(self, cell, target, own=False):
        self._cell, self._target, self._own = cell, target, own

    def __call__(self, *arguments, **named):
        # The test says by the name whether it calls a class.
        if self._target.get("n", "")[:1].isupper():
            return self._cell.construct(self._target, arguments, named)
        return self._cell.call({"op": "call", "target": self._target}, arguments, named)

    def __getattr__(self, name):
        if name.startswith("__") or (name in METHODS and not self._own):
            raise Failed(f"{name} of an object of the code's")
        return self._cell.get({"op": "attribute", "target": self._target, "name": name})

    def __iter__(self):
        items = self._cell.get({"op": "items", "target": self._target})
        if type(items) is not list:
            raise Failed("no items")
        return iter(items)

    def __len__(self):
        length = self._cell.get({"op": "length", "target": self._target})
        if type(length) is not int:
            raise Failed("no length")
        return length

    def __bool__(self):
        return True

    def __getitem__(self, key):
        return self._cell.get({"op": "item", "target": self._target, "key": encode(key, refer)})

    def __contains__(self, item):
        return any(item == other for other in self)


def block(text, extract):
    """Returns the code of a completion, or None."""
    if extract == "whole":
        return text
    last, inside = None, None
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            if inside is None:
                inside = []
                continue
            last, inside = "\n".join(inside), None
        elif inside is not None:
            inside.append(line)
    return last if inside is None else "\n".join(inside)


def judge(message):
    """Answers a message with a row: its score, unless there is none, and what happened; or what is wrong with its tests."""
    given = json.loads(message)
    try:
        scored, happened = score(Row(**given["row"]), given["completion"], given["settings"])
    except BadTests as error:
        return json.dumps({"wrong": str(error)})
    except Exception as error:
        return json.dumps({"wrong": f"the judge fails on it: {type(error).__name__}: {error}"})
    return json.dumps({"score": scored, "happened": happened})


def score(row, completion, settings):
    """Returns the score, or None, and what happened."""
    run = tests_of(row)
    if not run:
        return None, []
    code = block(completion, settings["extract"])
    if code is None:
        return settings["unparsed_score"], ["unparsed"]
    setup = row.setup if isinstance(row.setup, str) else ""
    cells_of_row = Cells(code, setup, settings)
    try:
        passed, happened = passes(run, cells_of_row)
    except Unparsed:
        return settings["unparsed_score"], ["unparsed"]
    finally:
        cells_of_row.close()
    if passed == len(run):
        happened.add("all_passed")
    return (passed / len(run) if settings["scoring"] == "fraction" else float(passed == len(run))), list(happened)


def passes(run, cells_of_row):
    """Returns how many tests pass, and what happened."""
    passed, happened = 0, set()
    for test in run:
        try:
            test(cells_of_row)
            passed += 1
        except Unparsed:
            raise
        except Died as died:
            if died.what in COUNTED:
                happened.add(died.what)
            if died.what == "out_of_time":
                break
        except BadTests:
            raise
        except Unsupported as error:
            raise BadTests(str(error))
        except (Exception, SystemExit, KeyboardInterrupt):
            pass
    return passed, happened


def tests_of(row):
    """Returns functions of the row's cells, which raise unless their test passes."""
    tests = row.tests
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        try:
            tests = json.loads(tests)
        except ValueError:
            pass
    if tests is None or tests == "" or tests == []:
        return []
    if isinstance(tests, str):
        return whole(tests, row)
    if isinstance(tests, dict) and isinstance(tests.get("inputs"), list) and isinstance(tests.get("outputs"), list):
        if len(tests["inputs"]) != len(tests["outputs"]):
            raise BadTests("inputs and outputs differ in number")
        name, pairs = tests.get("fn_name"), zip(tests["inputs"], tests["outputs"])
        tests = [
            {"function": name, "args": i, "expected": o} if name else {"input": i, "output": o} for i, o in pairs
        ]
    if isinstance(tests, list) and all(isinstance(test, str) for test in tests):
        return [piece([parsed(test)], row) for test in tests]
    if isinstance(tests, list) and all(isinstance(test, dict) for test in tests):
        return [case(test, row) for test in tests]
    raise BadTests("expected a text, a list of assertions, or a list of cases")


def parsed(text):
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BadTests(f"a test does not parse: {error}")


def whole(text, row):
    """A text is cut at its assertions; what stands before them belongs to each."""
    tree = parsed(text)
    asserts = [s for s in tree.body if isinstance(s, ast.Assert)]
    functions = [s.name for s in tree.body if isinstance(s, ast.FunctionDef) and s.name.startswith("test_") and not s.args.args]
    others = [s for s in tree.body if not isinstance(s, ast.Assert)]
    if functions and not asserts:
        return [piece([tree, ast.parse(f"{name}()")], row) for name in functions]
    if len(asserts) < 2:
        return [piece([tree], row)]
    made = []
    for one in asserts:
        before = [s for s in others if s.lineno < one.lineno]
        made.append(piece([ast.Module(before + [one], [])], row))
    return made


def piece(trees, row):
    """A test of statements."""
    trees = [without_imports_of_solution(tree) for tree in trees]
    defined = {s.name for tree in trees for s in tree.body if isinstance(s, ast.FunctionDef)}
    called = {n.func.id for t in trees for s in t.body if isinstance(s, ast.Expr) for n in ast.walk(s)
              if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    # HumanEval's form.
    if "check" in defined and "check" not in called and isinstance(row.entry_point, str):
        trees = [*trees, ast.parse(f"check({row.entry_point})")]
    used = {n.id for t in trees for n in ast.walk(t) if isinstance(n, ast.Name)}
    modules = {n.value.id for t in trees for n in ast.walk(t) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    compiled = [compile(tree, "<test>", "exec", dont_inherit=True) for tree in trees]

    def test(cells_of_row):
        cell = cells_of_row.get()
        space = {"__name__": "tests", "__builtins__": dict(vars(builtins))}
        theirs = cell.names()
        for name in used - vars(builtins).keys():
            if name in modules and name in library():
                space[name] = importlib.import_module(name)
            elif name in theirs:
                space[name] = Remote(cell, {"n": name})
        exec(cells_of_row.compiled_setup, space)
        for part in compiled:
            exec(part, space)

    return test


def library():
    return sys.stdlib_module_names & sys.modules.keys()


def without_imports_of_solution(tree):
    """Tests may take functions from a file of the code's."""
    body = [s for s in tree.body if not (isinstance(s, ast.ImportFrom) and s.module in ("solution", "main", "__main__"))]
    return ast.Module(body, [])


def case(test, row):
    if "expected" in test:
        name = test.get("function") or test.get("name") or row.entry_point
        arguments, named = test.get("args", []), test.get("kwargs", {})
        if not (isinstance(name, str) and isinstance(arguments, list) and isinstance(named, dict)):
            raise BadTests("a case needs a function (its name, or the row's entry_point), args and expected")
        return lambda of: call(of, name, arguments, named, test["expected"])
    if isinstance(test.get("input"), str) and isinstance(test.get("output"), str):
        return lambda of: program(of, test["input"], test["output"])
    raise BadTests("a case needs function, args and expected, or input and output")


def call(cells_of_row, name, arguments, named, expected):
    value = cells_of_row.get().call({"op": "function", "name": name}, arguments, named)
    if not equal(value, expected, cells_of_row.settings["tolerance"]):
        raise Failed("another value")


def program(cells_of_row, stdin, expected):
    loaded = cells_of_row.ran(stdin)
    if loaded.get("raised") not in (None, "SystemExit") or lines(loaded.get("stdout")) != lines(expected):
        raise Failed("another output")


def lines(text):
    """Lines without spaces at their ends and empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()] if isinstance(text, str) else None


def equal(value, expected, tolerance):
    """Compares with a value of JSON, in which a tuple is a list and keys are texts."""
    if isinstance(value, Remote):
        return False
    if isinstance(expected, bool) or isinstance(value, bool) or expected is None:
        return value is expected
    if isinstance(expected, (int, float)):
        if not isinstance(value, (int, float)):
            return False
        return value == expected or (isinstance(value, float) and math.isclose(value, expected, rel_tol=tolerance))
    if isinstance(expected, list):
        if isinstance(value, (set, frozenset)):
            value = sorted(value)
            expected = sorted(expected)
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(expected)
            and all(equal(v, e, tolerance) for v, e in zip(value, expected))
        )
    if isinstance(expected, dict):
        if not isinstance(value, dict) or len(value) != len(expected):
            return False
        by_text = {k if isinstance(k, str) else json.dumps(k): v for k, v in value.items()}
        return by_text.keys() == expected.keys() and all(equal(by_text[k], e, tolerance) for k, e in expected.items())
    return type(value) is type(expected) and value == expected
