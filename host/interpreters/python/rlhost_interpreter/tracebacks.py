"""Errors as Python shows them: the script's own frames, with their lines, and none of what runs it."""

import linecache
import traceback

from .guard import GUARD, plain

# The longest error that the host passes on, and a completion's part of it.
LONGEST = 1900
LONGEST_ROW = 240

PACKAGE = "rlhost_interpreter/"
BUILT_FROM = ("/0/", "/1/", "/world/", "/bundled/", "/python/")


FILES: dict[str, tuple] = {}


def remember(name: str, source: str) -> None:
    """Keeps a file's lines for tracebacks."""
    FILES[name] = (len(source), None, source.splitlines(keepends=True), name)


def _is_own(frame: traceback.FrameSummary) -> bool:
    """Whether a frame belongs to what runs the script."""
    name = frame.filename
    return PACKAGE in name or name == "interpreter.py" or name.startswith(BUILT_FROM) or name.startswith("<frozen")


def _clean(shown: traceback.TracebackException, script: str) -> None:
    seen = set()
    waiting = [shown]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        frames = [frame for frame in one.stack if not _is_own(frame)]
        # Frames before the script's first are those that led to it: an event loop's, or the importer's.
        first = next((at for at, frame in enumerate(frames) if frame.filename == script), 0)
        one.stack[:] = frames[first:]
        waiting += [one.__cause__, one.__context__, *(one.exceptions or ())]


def _shown(error: BaseException, script: str) -> str:
    linecache.cache.clear()
    linecache.cache.update(FILES)
    try:
        shown = traceback.TracebackException.from_exception(error, capture_locals=False)
        _clean(shown, script)
        return "".join(shown.format(colorize=False)).rstrip()
    except Exception:
        # An error may also be one when it is asked what it is.
        return f"{type(error).__name__} in {script}, which can't be shown"


def text(error: BaseException, script: str, row: tuple[int, str] | None = None) -> str:
    """Returns the traceback of an error, and the completion that it happened at if it is known."""
    GUARD.undo_rest()
    lines = plain(_shown(error, script))
    about = ""
    if row is not None:
        number, completion = row
        cut = completion if len(completion) <= LONGEST_ROW else completion[:LONGEST_ROW] + "..."
        about = f"\nat completion {number}: {cut!r}"
    if len(lines.encode()) + len(about.encode()) > LONGEST:
        # The end says what happened; the beginning where it came from.
        room = max(LONGEST - len(about.encode()) - 5, 200)
        data = lines.encode()
        head, tail = data[: room // 4], data[-(room * 3 // 4) :]
        lines = head.decode(errors="ignore") + "\n...\n" + tail.decode(errors="ignore")
    return lines + about
