"""Modules that are imported while the component is built, so that a script's import of them costs nothing."""

import abc, annotationlib, ast, asyncio, base64, bisect, cmath, collections, collections.abc, contextlib, contextvars, copy  # noqa: E401, F401
import dataclasses, datetime, decimal, difflib, dis, enum, fractions, functools, hashlib, heapq, html, inspect, io  # noqa: E401, F401
import itertools, json, keyword, linecache, logging, math, numbers, operator, os, pickle, random, re, reprlib  # noqa: E401, F401
import statistics, string, struct, textwrap, threading, time, tokenize, traceback, types, typing, unicodedata  # noqa: E401, F401
import urllib.parse, warnings, weakref, zlib  # noqa: E401, F401
import encodings.ascii, encodings.latin_1, encodings.utf_16  # noqa: E401, F401
import gc


def settle() -> None:
    """Cleans up what building left in memory, all of which becomes part of the component. Called once, last."""
    re.purge()
    linecache.clearcache()
    gc.collect()
    # Free memory is zeros, which take no room, only if it was overwritten. Not so much that memory grows: at least half of it has to be
    # data for wasmtime to share its pages among instances.
    zeros = [bytes(size) for size in range(16, 513, 16) for _ in range(120)]
    zeros += [bytes(1 << 15) for _ in range(48)]
    del zeros
    # What is there stays, and a collection that visited it would copy every page that instances share.
    gc.freeze()
