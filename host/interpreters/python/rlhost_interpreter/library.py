"""The standard library, of which an instance sees no files: modules are kept as compressed bytecode and unpacked when imported."""

import binascii
import importlib.abc
import importlib.machinery
import importlib.metadata
import marshal
import os
import re
import signal
import sys
import zlib

from . import tracebacks

# What no script can use here: windows, terminals, processes, packaging, and the library's own tests and tools.
LEFT_OUT = frozenset(
    "__hello__ __phello__ _aix_support _android_support _apple_support _ios_support _osx_support _pyrepl antigravity "
    "bdb cProfile cmd code config-3.14-wasm32-wasi compileall ctypes curses dbm doctest ensurepip ftplib idlelib imaplib "
    "lib2to3 mailbox modulefinder multiprocessing nturl2path ntpath pdb poplib profile pstats pty py_compile pyclbr pydoc pydoc_data "
    "rlcompleter site-packages smtplib socketserver sqlite3 tabnanny test this tkinter trace tty turtle turtledemo venv "
    "webbrowser wsgiref xmlrpc zipapp lzma bz2 ssl "
    "pickletools nntplib telnetlib turtle".split()
)

# Those that are there in C.
IN_C = frozenset("_pydecimal _pydatetime _pyio _py_abc _pylong".split())

# Of a hundred encodings, those that texts of a dataset may be in.
ENCODINGS = frozenset(
    "__init__ aliases ascii charmap cp1252 hex_codec idna latin_1 punycode raw_unicode_escape unicode_escape utf_16 utf_16_be utf_16_le "
    "utf_32 utf_8 utf_8_sig".split()
)

# Packages that people import in rewards and that are native code, with what to use instead.
NATIVE = {
    "numpy": "use lists with math and statistics",
    "torch": "use lists with math and statistics",
    "scipy": "use math and statistics",
    "pandas": "use lists, dictionaries and csv",
    "sklearn": "use statistics",
    "transformers": "a reward model is a reward of its own (--reward-model)",
    "datasets": "the dataset's columns are arguments of the function",
    "trl": "write the function without it; rlhost has its rewards as plugins",
    "regex": "use re",
    "orjson": "use json",
    "pydantic": "use dataclasses or json",
    "pydantic_core": "use dataclasses or json",
    "Levenshtein": "use difflib",
    "rapidfuzz": "use difflib",
    "spacy": "use re",
    "nltk": "use re",
    "tokenizers": "completion_ids has the token ids",
    "tiktoken": "completion_ids has the token ids",
    "requests": "a script has no network; ask a server with a plugin that may (the judge reward)",
    "httpx": "a script has no network; ask a server with a plugin that may (the judge reward)",
    "openai": "a script has no network; ask a server with a plugin that may (the judge reward)",
    "aiohttp": "a script has no network; ask a server with a plugin that may (the judge reward)",
    "sqlite3": "use dictionaries",
    "ssl": "a script has no network",
    "multiprocessing": "rlhost divides the rows of a stateless function itself (STATELESS = True)",
}

def _shim(name: str, source: str) -> tuple[bool, bytes]:
    return False, zlib.compress(marshal.dumps(compile(source, f"{name}.py", "exec", dont_inherit=True)))


CTYPES = """
class _Type:
    size = 4

class c_int(_Type): pass
class c_long(_Type): pass
class c_size_t(_Type): pass

class c_longlong(_Type):
    size = 8

class c_double(_Type):
    size = 8

def sizeof(kind):
    return kind.size

def __getattr__(name):
    raise AttributeError(f"a script has no ctypes.{name}: use struct and array")
"""

COMPRESSION = """
def open(*arguments, **named):
    raise OSError("a script has neither files nor this compression: use zlib")

compress = decompress = BZ2File = LZMAFile = open
"""

# What packages import without need: sizes of C's types (sympy), and compressed files (networkx).
SHIMS = {"ctypes": _shim("ctypes", CTYPES), "bz2": _shim("bz2", COMPRESSION), "lzma": _shim("lzma", COMPRESSION)}


def _without_alarms() -> None:
    """Lets packages set alarms (math-verify's limits of time), which never go off: a call's limit of time is the host's."""
    before = signal.signal
    signal.SIGALRM, signal.ITIMER_REAL = 14, 0
    signal.alarm = lambda seconds: 0
    signal.setitimer = lambda which, seconds, interval=0.0: (0.0, 0.0)
    signal.signal = lambda number, handler: None if number == signal.SIGALRM else before(number, handler)


def _no_processes(*arguments, **named):
    raise PermissionError("a script starts no processes")


# Deep enough for the size, not so deep that building takes minutes.
LEVEL = 9


def packed(folder: str) -> dict[str, tuple[bool, bytes]]:
    """Compiles and compresses the modules in the library's folder. Each is marked whether it is a package."""
    found = {}
    for base, folders, files in os.walk(folder):
        at_top = base == folder
        folders[:] = sorted(f for f in folders if f != "__pycache__" and not (at_top and f in LEFT_OUT))
        for file in sorted(files):
            stem, extension = os.path.splitext(file)
            if extension != ".py" or (at_top and stem in LEFT_OUT):
                continue
            path = os.path.join(base, file)
            parts = os.path.relpath(path, folder).removesuffix(".py").split("/")
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            # What is imported already stays so: only `importlib.reload` would miss it.
            if name in sys.modules or name in IN_C or parts[0] == "encodings" and parts[-1] not in ENCODINGS:
                continue
            with open(path, "rb") as source:
                # Without documentation: nobody reads it here, and it is a quarter of the size.
                code = compile(source.read(), path.removeprefix(folder + "/"), "exec", dont_inherit=True, optimize=2)
            found[name] = (is_package, zlib.compress(marshal.dumps(code), LEVEL))
    return found


class Library(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules in the packed library, and explains why others are not there."""

    def __init__(self, modules: dict[str, tuple[bool, bytes]]):
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            is_package, _ = self.modules[name]
            spec = importlib.machinery.ModuleSpec(name, self, origin=name, is_package=is_package)
            if is_package:
                spec.submodule_search_locations = []
            return spec
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        _, code = self.modules[module.__spec__.name]
        exec(marshal.loads(zlib.decompress(code)), module.__dict__)


class Explaining(importlib.abc.MetaPathFinder):
    """Comes last: says what to do about a module that can't be imported."""

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in NATIVE:
            raise ModuleNotFoundError(f"{top} can't be imported by a script: {NATIVE[top]}", name=name)
        if top in LEFT_OUT:
            raise ModuleNotFoundError(f"{top} is a part of the standard library that does not work in a plugin", name=name)
        if name == top and not top.startswith("_") and top not in sys.stdlib_module_names:
            where = "it is neither beside the script nor in --python-path nor in the packages of the script's header"
            raise ModuleNotFoundError(f"No module named {top!r}: {where}", name=name)
        return None


def _normal(name: str) -> str:
    """Returns a package's name as PEP 503 compares it, with underscores."""
    return re.sub(r"[-_.]+", "_", name).lower()


class Distribution(importlib.metadata.Distribution):
    """The metadata of a package that came with the script."""

    def __init__(self, files: dict[str, str], folder: str):
        self._files, self._folder = files, folder

    def read_text(self, filename):
        return self._files.get(f"{self._folder}/{filename}")

    def locate_file(self, path):
        return path


# Bytecode is packed once and unpacked often, and zlib unpacks what is packed at any level equally fast.
FAST = 1


def bytecode(path: str, source: str) -> str | None:
    """Compiles a module into what `Files` takes for its bytecode."""
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return binascii.b2a_base64(zlib.compress(marshal.dumps(code), FAST), newline=False).decode()


class Files(importlib.metadata.DistributionFinder, importlib.abc.Loader):
    """Finds modules among the files that came with the script: paths relative to its folder, and their sources.

    A file `PATHc` beside or instead of `PATH` has its bytecode, as `bytecode` returned it."""

    def __init__(self):
        self.files: dict[str, str] = {}
        # The paths of what was compiled from source.
        self.compiled: list[str] = []

    def replace(self, files: dict[str, str]) -> None:
        """Takes other files; what was imported of the old ones is forgotten."""
        for name in [name for name, module in sys.modules.items() if getattr(module, "__loader__", None) is self]:
            del sys.modules[name]
        self.files, self.compiled = files, []

    def _file(self, name: str) -> tuple[str, bool] | None:
        base = name.replace(".", "/")
        for path, is_package in ((f"{base}/__init__.py", True), (f"{base}.py", False)):
            if path in self.files or f"{path}c" in self.files:
                return path, is_package
        return None

    def find_spec(self, name, path=None, target=None):
        found = self._file(name)
        if found is None:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=found[0], is_package=found[1])
        spec.has_location = True
        spec.cached = None
        return spec

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        """Returns the packages whose metadata came along, for `importlib.metadata`."""
        wanted = context.name and _normal(context.name)
        for path in self.files:
            folder, slash, file = path.rpartition("/")
            if file == "METADATA" and folder.endswith(".dist-info"):
                name = _normal(folder.removesuffix(".dist-info").partition("-")[0])
                if wanted in (None, name):
                    yield Distribution(self.files, folder)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        path = module.__spec__.origin
        if path in self.files:
            tracebacks.remember(path, self.files[path])
        packed = self.files.get(f"{path}c")
        if packed is None:
            code = compile(self.files[path], path, "exec", dont_inherit=True)
            self.compiled.append(path)
        else:
            code = marshal.loads(zlib.decompress(binascii.a2b_base64(packed)))
        exec(code, module.__dict__)


FILES = Files()

def install() -> None:
    """Packs the library and puts the finders in place of those that look for files. Called once, while the component is built."""
    sys.meta_path[:] = [
        importlib.machinery.BuiltinImporter,
        importlib.machinery.FrozenImporter,
        FILES,
        Library(packed("/python") | SHIMS),
        importlib.machinery.PathFinder,
        Explaining(),
    ]
    _without_alarms()
    # Packages that list what must not be called name these.
    os.system = os.popen = os.execv = os.spawnv = os.fork = _no_processes
    sys.path[:] = []
    sys.path_importer_cache.clear()
