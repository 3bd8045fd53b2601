#!/usr/bin/env python3
"""Sums up what trace.sh wrote, by kernels.

    trace.py FILE [--from MS] [--to MS] [--most N]    times are counted from the first kernel; a step's last kernel is adamw
"""

import argparse
import re
from collections import Counter


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--from", dest="begin", type=float, default=0.0)
    parser.add_argument("--to", dest="end", type=float, default=float("inf"))
    parser.add_argument("--most", type=int, default=30)
    args = parser.parse_args()
    done = []
    with open(args.file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            begin, took, _, name = line.rstrip("\n").split(" ", 3)
            done.append((int(begin), int(took), re.sub(r"[<(].*", "", name)))
    done.sort()
    if not done:
        parser.error(f"{args.file}: nothing ran on a device")
    zero = done[0][0]
    done = [d for d in done if args.begin <= (d[0] - zero) / 1e6 < args.end]
    if not done:
        parser.error("nothing ran in that time")
    times, calls = Counter(), Counter()
    for _, took, name in done:
        times[name] += took
        calls[name] += 1
    span = done[-1][0] + done[-1][1] - done[0][0]
    print(f"{sum(times.values()) / 1e6:.1f} of {span / 1e6:.1f} ms at work, {len(done)} kernels, copies and fills")
    for name, took in times.most_common(args.most):
        print(f"{took / 1e6:10.3f} ms {calls[name]:7} of {took / calls[name] / 1e3:9.2f} us  {name}")


if __name__ == "__main__":
    main()
