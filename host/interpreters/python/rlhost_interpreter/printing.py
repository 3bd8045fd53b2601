"""What a script prints."""

from .guard import plain

# Of a line, in characters, and of lines in a call.
LONGEST = 4000
MOST = 1000


class Lines:
    """Passes on what is printed, line by line, as far as there is no end of it."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, write):
        self._write, self._rest, self._count = write, "", 0

    def write(self, text: str) -> int:
        *lines, rest = str(text).split("\n")
        for line in lines:
            self._line(self._rest + line)
            self._rest = ""
        if len(self._rest) <= LONGEST:
            self._rest += rest[: LONGEST + 1]
        return len(text)

    def _line(self, line: str) -> None:
        self._count += 1
        if self._count < MOST:
            self._write(plain(line if len(line) <= LONGEST else line[:LONGEST] + "..."))
        elif self._count == MOST:
            self._write(f"(printed {MOST} lines; others of this call are left out)")

    def flush(self) -> None:
        """Nothing is kept but an unfinished line, which ends with the call."""

    def end(self) -> None:
        """Ends a call."""
        if self._rest:
            rest, self._rest = self._rest, ""
            self._line(rest)
        self._count = 0

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False
