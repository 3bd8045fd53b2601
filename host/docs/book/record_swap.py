#!/usr/bin/env python3
"""Record a hot swap as host/docs/swap.svg: one run in one terminal, `rlhost swap` in another.

    host/docs/book/record_swap.py RLHOST BEFORE.wasm AFTER.wasm

Both programs run for real, and every line of the picture is one that they wrote. BEFORE and AFTER are two versions of
tldr_length_reward with other defaults, say. Needs nothing but Python.
"""

import html
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLUMNS, LINE, MARGIN = 92, 17, 14
NAME = "tldr_length_reward"
RUN = ["--plugin", f"{NAME}.wasm", "--max-steps", "60", "--logging-steps", "5", "--output-dir", "run"]


def main():
    rlhost, before, after = (Path(p).resolve() for p in sys.argv[1:4])
    place = Path(tempfile.mkdtemp())
    shutil.copy(before, place / f"{NAME}.wasm")
    shutil.copy(after, place / "shorter.wasm")
    training = subprocess.Popen(
        [rlhost, *RUN], cwd=place, stdout=(place / "out").open("w"), stderr=subprocess.STDOUT, text=True
    )
    while "30/60" not in (place / "out").read_text():
        assert training.poll() is None, (place / "out").read_text()
        time.sleep(0.05)
    swap = ["swap", "run", f"{NAME}=shorter.wasm"]
    swapped = subprocess.run(
        [rlhost, *swap], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    training.wait()
    table = r"^\s*(step |\d+/60 )|was swapped|^done:"
    shown = [line for line in (place / "out").read_text().splitlines() if re.search(table, line)]
    first = ["$ rlhost " + " ".join(RUN), *shown]
    second = ["$ rlhost " + " ".join(swap), *swapped.stdout.splitlines()]
    (Path(__file__).parents[1] / "swap.svg").write_text(picture([first, second]))
    shutil.rmtree(place)


def picture(terminals):
    """One dark pane below the other."""
    parts, y = [], MARGIN
    for lines in terminals:
        lines = [part for line in lines for part in (line[i : i + COLUMNS] for i in range(0, max(len(line), 1), COLUMNS))]
        height = LINE * len(lines) + 2 * MARGIN
        parts.append(f'<rect x="{MARGIN}" y="{y}" width="{COLUMNS * 7.8 + 2 * MARGIN:.0f}" height="{height}" rx="6" fill="#1d2330"/>')
        for i, line in enumerate(lines):
            color = "#8fd694" if line.startswith("$") else "#ffd479" if "swapped" in line else "#d7dbe3"
            at = f'x="{2 * MARGIN}" y="{y + MARGIN + LINE * i + 12}" fill="{color}"'
            parts.append(f'<text {at} xml:space="preserve">{html.escape(line)}</text>')
        y += height + MARGIN
    size = f'viewBox="0 0 {COLUMNS * 7.8 + 4 * MARGIN:.0f} {y}"'
    style = 'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    main()
