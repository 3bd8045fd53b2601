"""Reads files of JSON lines that may be damaged, still growing, larger than memory, or somebody else's."""

import json
import os
import stat
from typing import Any, Dict, Iterator, List, Tuple


class Lines:
    """The objects of a file of JSON lines, and what was not read of it."""

    def __init__(self, path: str, longest: int) -> None:
        self.path = path
        self.longest = longest
        self._damaged: List[int] = []
        self._long: List[int] = []

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        for _, row in self.placed():
            yield row

    def placed(self) -> Iterator[Tuple[int, Dict[str, Any]]]:
        """Yields each object with its line's number. A missing file has none."""
        self._damaged, self._long = [0, 0], [0, 0]
        try:
            # A pipe would block.
            if not stat.S_ISREG(os.stat(self.path).st_mode):
                raise OSError(f"{self.path}: is not a regular file")
        except FileNotFoundError:
            return
        with open(self.path, "rb") as file:
            number = 0
            while True:
                line = file.readline(self.longest)
                number += 1
                if not line.endswith(b"\n"):
                    if len(line) < self.longest:
                        return  # The end, or a line that is still being written.
                    while line and not line.endswith(b"\n"):
                        line = file.readline(1 << 20)
                    _count(self._long, number)
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    yield number, row
                else:
                    _count(self._damaged, number)

    def notes(self) -> List[str]:
        """Says what was not read."""
        name = os.path.basename(self.path)
        notes = []
        for (count, first), what in [
            (self._damaged or [0, 0], "not JSON objects"),
            (self._long or [0, 0], f"longer than {self.longest >> 20} MiB"),
        ]:
            if count:
                notes.append(f"{name}: {count} lines are {what} and are ignored; the first is line {first}")
        return notes


def _count(counter: List[int], number: int) -> None:
    counter[0] += 1
    counter[1] = counter[1] or number
