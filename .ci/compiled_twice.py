"""Fails if a second build compiles again, in another way, what a first one has compiled: with other features, say, or for macros.

Usage: compiled_twice.py FIRST SECOND, each what `cargo ... --message-format json` printed.
"""

import collections
import json
import sys


def libraries(path):
    """The files that a build made of each library, by the package's id and whether it holds the package's own tests."""
    files = collections.defaultdict(set)
    with open(path) as lines:
        for message in map(json.loads, lines):
            if message["reason"] == "compiler-artifact" and not {"bin", "test", "example"} & set(message["target"]["kind"]):
                files[message["package_id"], tuple(message["target"]["kind"]), message["profile"]["test"]].update(message["filenames"])
    return files


first, second = map(libraries, sys.argv[1:])
twice = sorted(library[0].rsplit("/", 1)[1] for library in first.keys() & second.keys() if second[library] - first[library])
print(f"{len(first)} libraries in the first build, {len(second)} in the second, {len(twice)} of them compiled twice")
if twice:
    sys.exit("compiled twice: " + ", ".join(twice))
