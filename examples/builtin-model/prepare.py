#!/usr/bin/env python3
"""Makes the two training sets of the built-in model.

    prepare.py CORPUS TLDR OUT

CORPUS is a text file of forum posts, separated by <|endoftext|>; TLDR is JSON lines with `prompt`,
which ends in "TL;DR:", and `completion`. OUT gets `posts.jsonl`, whole texts of both to learn to write
from, and `tldr.jsonl`, posts with their longer summaries.
"""

import json
import pathlib
import random
import re
import sys

LONGEST = 2000  # characters; about 580 tokens

# Characters of the summaries that the model is brought to a rest on: about 35 to 60 tokens, so that a reward
# that wants twenty has something to change.
SUMMARY = range(120, 201)

# A model that greets newcomers need not know these.
COARSE = re.compile(
    r"\b(fuck\w*|shit\w*|cunt\w*|bitch\w*|dick\w*|cock\w*|puss(y|ies)|porn\w*|sex\w*|nude\w*|naked|slut\w*|whore\w*"
    r"|rape\w*|suicid\w*|masturbat\w*|horny|penis|vagina|cum|ass|asshole\w*|retard\w*|fag\w*|nigg\w*)\b",
    re.IGNORECASE,
)


def beginning(post: str) -> str:
    """A post, or as much of it as whole paragraphs or sentences allow."""
    post = post.strip()
    if len(post) <= LONGEST:
        return post
    cut = post[:LONGEST]
    for mark in ("\n\n", ". ", "\n", " "):
        end = cut.rfind(mark)
        if end > LONGEST // 2:
            return cut[: end + 1].strip()
    return cut


def main(corpus: str, tldr: str, out: str) -> None:
    posts = [beginning(p) for p in pathlib.Path(corpus).read_text().split("<|endoftext|>")]
    rows = [json.loads(line) for line in pathlib.Path(tldr).read_text().splitlines()]
    pairs = [{"prompt": r["prompt"], "completion": " " + r["completion"].strip()} for r in rows]
    texts = [p for p in posts if len(p) > 100] + [p["prompt"] + p["completion"] for p in pairs]
    random.Random(0).shuffle(texts)
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    longer = [p for p in pairs if len(p["completion"]) in SUMMARY and not COARSE.search(p["prompt"] + p["completion"])]
    for name, lines in (("posts", ({"text": t} for t in texts)), ("tldr", longer)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
