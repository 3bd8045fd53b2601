"""The modules of the standard library that a model's code may import: in the component there are no files to import others from. What
needs a system is left out: sockets, processes, databases, windows."""

import importlib

NAMES = """
abc argparse array ast base64 binascii bisect calendar cmath collections collections.abc colorsys contextlib copy csv dataclasses
datetime decimal difflib enum errno fnmatch fractions functools gc graphlib hashlib heapq hmac html html.parser inspect io
ipaddress itertools json keyword linecache locale logging math numbers operator os os.path pickle pprint queue random re reprlib
sched secrets shlex signal stat statistics string struct sys tempfile textwrap threading time timeit token tokenize traceback types
typing unicodedata unittest urllib.parse uuid warnings weakref zlib zoneinfo
""".split()

for name in NAMES:
    importlib.import_module(name)
