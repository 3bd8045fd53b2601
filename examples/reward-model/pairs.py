#!/usr/bin/env python3
"""Make preference pairs from the TL;DR dataset by a rule: of two summaries, the shorter one is chosen.

    python3 pairs.py tldr/train.jsonl tldr/validation.jsonl data

Each pair has a short post, its own summary, and another post's; their lengths differ by at least five words. Writes 2,000 pairs to
data/train.jsonl, 200 held-out ones to data/held-out.jsonl, and other posts to data/prompts.jsonl.
"""

import json
import random
import sys
from pathlib import Path

LONGEST_POST = 1000
LEAST_DIFFERENCE = 5


def short_posts(path):
    rows = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
    return [row for row in rows if len(row["prompt"]) <= LONGEST_POST]


def pairs(rows, rng):
    others = [row["completion"] for row in rows]
    for row in rows:
        other = rng.choice(others)
        shorter, longer = sorted([row["completion"], other], key=lambda text: len(text.split()))
        if len(longer.split()) - len(shorter.split()) >= LEAST_DIFFERENCE:
            yield {"prompt": row["prompt"], "chosen": shorter, "rejected": longer}


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def main():
    train, validation, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    folder.mkdir(exist_ok=True)
    rng = random.Random(1)
    rows = short_posts(train)
    made = list(pairs(rows, rng))
    write(folder / "train.jsonl", made[:2000])
    write(folder / "prompts.jsonl", [{"prompt": row["prompt"]} for row in rows[-600:]])
    write(folder / "held-out.jsonl", list(pairs(short_posts(validation), rng))[:200])
    print(f"{len(made[:2000])} pairs of {len(rows)} short posts")


if __name__ == "__main__":
    main()
