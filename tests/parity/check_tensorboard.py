#!/usr/bin/env python3
"""Compare a run's TensorBoard files, as TensorBoard reads them, with its metrics.jsonl.

usage: check_tensorboard.py RUN_FOLDER

Every figure must be there at every step at which it was logged, with its value in f32, and
nothing else: no step that a resumed run undid, none twice. `step` and `time` are TensorBoard's
axes. Needs the package `tensorboard`. Exits 1 at a difference.
"""

import argparse
import json
import logging
import math
import sys
from pathlib import Path

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util


def tag(figure):
    for kind in ("eval", "test"):
        if figure.startswith(f"{kind}_"):
            return f"{kind}/{figure.removeprefix(f'{kind}_')}"
    return f"train/{figure}"


def logged(path):
    """Steps and values by tag."""
    figures = {}
    for line in path.read_text().splitlines():
        line = json.loads(line)
        step = line.pop("step")
        line.pop("time", None)
        for name, value in line.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                with numpy.errstate(over="ignore"):
                    value = float(numpy.float32(value))
                if math.isfinite(value):
                    figures.setdefault(tag(name), []).append((step, value))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER")
    args = parser.parse_args()
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of every undone step

    # Without a limit of points, which TensorBoard would else sample.
    board = EventAccumulator(str(args.run / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    board.Reload()
    shown = {tag: [(e.step, e.value) for e in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    expected = logged(args.run / "metrics.jsonl")

    differences = 0
    for name in sorted(expected.keys() | shown.keys()):
        want, have = expected.get(name, []), shown.get(name, [])
        if want != have:
            differences += 1
            missing, surplus = sorted(set(want) - set(have)), sorted(set(have) - set(want))
            print(f"{name}: missing {missing[:5]}, surplus {surplus[:5]}, {len(want)} logged, {len(have)} shown")
    for name in board.Tags()["tensors"]:
        for event in board.Tensors(name):
            text = tensor_util.make_ndarray(event.tensor_proto).item().decode()
            print(f"text {name} at step {event.step}: {len(text)} characters")
    print(f"{sum(map(len, shown.values()))} values of {len(shown)} figures, {differences} figures differ")
    return 1 if differences or not expected else 0


if __name__ == "__main__":
    sys.exit(main())
