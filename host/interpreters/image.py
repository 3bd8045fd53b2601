"""Checks that instances of a component share the pages of its memory image: `python3 image.py python.wasm`.

wasmtime maps the image copy-on-write if it is smaller than twice its data (or than 16 MiB). Otherwise each instance copies all of it, which
takes ten times as long and four times the memory.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

MEMORY_INIT_ALWAYS = 16 << 20
MODULE, DATA = 1, 11
I32_CONST = 0x41


class Reader:
    """Reads WebAssembly's binary format."""

    def __init__(self, data: bytes, at: int, end: int):
        self.data, self.at, self.end = data, at, end

    def number(self, signed: bool = False) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << shift) if signed and byte & 64 else value

    def sections(self) -> Iterator[tuple[int, "Reader"]]:
        self.at += 8
        while self.at < self.end:
            kind = self.data[self.at]
            self.at += 1
            size = self.number()
            yield kind, Reader(self.data, self.at, self.at + size)
            self.at += size

    def segments(self) -> Iterator[tuple[int, int]]:
        """Yields the place and length of each segment, as far as they are constant."""
        for _ in range(self.number()):
            if self.number() != 0 or self.data[self.at] != I32_CONST:
                return
            self.at += 1
            place = self.number(signed=True)
            self.at += 1
            length = self.number()
            self.at += length
            yield place, length


def main(path: str) -> int:
    data = Path(path).read_bytes()
    modules = [module for kind, module in Reader(data, 0, len(data)).sections() if kind == MODULE]
    # The first module has the memory.
    found = [list(part.segments()) for kind, part in modules[0].sections() if kind == DATA]
    segments = found[0] if found else []
    total = sum(length for _, length in segments)
    image = max((place + length for place, length in segments), default=0) - min((place for place, _ in segments), default=0)
    print(f"{total / 1e6:.1f} MB of data in an image of {image / 1e6:.1f} MB")
    if total > 0 and (image < 2 * total or image <= MEMORY_INIT_ALWAYS):
        return 0
    print("too little of the image is data for instances to share it: see settle() in python/rlhost_interpreter/preload.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
