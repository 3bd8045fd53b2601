"""Whether two runs have the same figures to 1e-4, those of time and memory aside: compare.py RUN RUN."""

import json
import math
import sys
from pathlib import Path

TOLERANCE = 1e-4
ASIDE = ("time", "perf/", "step_time")


def figures(run):
    lines = (Path(run) / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(ASIDE) and isinstance(v, (int, float))} for line in lines]


ours, theirs = map(figures, sys.argv[1:])
worst = 0.0
if len(ours) != len(theirs) or not ours:
    sys.exit(f"{len(ours)} lines and {len(theirs)}")
for one, other in zip(ours, theirs):
    if one.keys() != other.keys():
        sys.exit(f"figures of one run alone: {sorted(one.keys() ^ other.keys())}")
    for key, value in one.items():
        apart = abs(value - other[key]) / max(1.0, abs(value))
        worst = max(worst, apart)
        if not apart <= TOLERANCE or math.isnan(value):
            sys.exit(f"{key} at step {one.get('step')}: {value} and {other[key]}")
print(f"{len(ours)} steps, {len(ours[0])} figures each, no more than {worst:.1e} apart")
