#!/usr/bin/env python3
"""Compare the files and rows that rlhost reads of a folder with those that `datasets` reads.

usage: check_datasets.py RLHOST [--write]

Makes a folder for each layout below, with one row a file that names it, and loads it with `datasets` and with rlhost. Exits 1
at a difference that DIFFERENCES does not list. With --write, records what `datasets` reads in fixtures/datasets/layouts.json,
which the unit tests of host/web/src/hub/splits.rs compare. Needs the package `datasets`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
import datasets  # noqa: E402

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures/datasets/layouts.json"

TWO = "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: a.jsonl\n  - split: test\n    path: b.jsonl\n"
PARTS = ["data/part-00.jsonl", "data/part-01.jsonl", "data/part-10.jsonl"]
SEVERAL = "configs:\n- config_name: en\n  data_files: en/*.jsonl\n- config_name: de\n  data_files:\n  - {split: train, path: de/a.jsonl}\n  - {split: test, path: [de/b.jsonl]}\n"


def config(data_files, more=""):
    return f"configs:\n- config_name: default\n  data_files: {data_files}\n{more}"


# Files, front matter, config, split.
LAYOUTS = [
    (["train.jsonl", "test.jsonl"], None, None, "train"),
    (["train.jsonl", "test.jsonl"], None, None, "test"),
    (["train.jsonl", "old.jsonl"], None, None, "train"),
    (["a.jsonl", "b.jsonl"], None, None, "train"),
    (["a.jsonl", "b.jsonl"], TWO, None, "train"),
    (["a.jsonl", "b.jsonl"], TWO, None, "test"),
    (["a.jsonl", "b.jsonl", "c.jsonl"], TWO, None, "train"),
    (PARTS, config("data/part-0*"), None, "train"),
    (PARTS, config("'data/part-[0-9]0.*'"), None, "train"),
    (PARTS, config("['data/part-1*', 'data/part-00.jsonl']"), None, "train"),
    (PARTS, config("'**'"), None, "train"),
    (PARTS, config("'**/part-?1.jsonl'"), None, "train"),
    (PARTS, config("[{split: train, path: ['data/part-0*']}, {split: test, path: data/part-10.jsonl}]"), None, "train"),
    (["x/train.jsonl", "x/test.jsonl", "y/train.jsonl"], "configs:\n- config_name: default\n  data_dir: x\n", None, "train"),
    (["x/a.jsonl", "a.jsonl"], "configs:\n- config_name: default\n  data_dir: x\n  data_files: '*.jsonl'\n", None, "train"),
    (["en/a.jsonl", "de/a.jsonl", "de/b.jsonl"], SEVERAL, "de", "train"),
    (["en/a.jsonl", "de/a.jsonl", "de/b.jsonl"], SEVERAL, "de", "test"),
    (["en/a.jsonl", "de/a.jsonl", "de/b.jsonl"], SEVERAL, "en", "train"),
    (["en/a.jsonl", "de/a.jsonl", "de/b.jsonl"], SEVERAL, None, "train"),
    (["en/a.jsonl", "de/a.jsonl", "de/b.jsonl"], SEVERAL.replace("name: de\n", "name: de\n  default: true\n"), None, "train"),
    (["a.jsonl"], TWO, None, "validation"),
    (["a.jsonl"], config("b.jsonl"), None, "train"),
    (["train/a.jsonl", "train/b.jsonl", "test/c.jsonl"], None, None, "train"),
    (["train/a.jsonl", "test.jsonl", "b.jsonl"], None, None, "train"),
    (["train/test.jsonl", "test/a.jsonl"], None, None, "train"),
    (["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/test-00000-of-00001.jsonl"], None, None, "train"),
    (["data/train_sft-00000-of-00001.jsonl", "data/test_sft-00000-of-00001.jsonl"], None, None, "train_sft"),
    (["data/train-00000-of-00001.jsonl", "train.jsonl"], None, None, "train"),
    (["my_train_set.jsonl", "my-dev.jsonl", "valid.2.jsonl"], None, None, "train"),
    (["my_train_set.jsonl", "my-dev.jsonl", "valid.2.jsonl"], None, None, "validation"),
    (["training-1.jsonl", "train-2.jsonl", "a train 3.jsonl"], None, None, "train"),
    (["eval.jsonl", "evaluation_2.jsonl", "testing.jsonl", "x.jsonl"], None, None, "test"),
    (["trained.jsonl", "contest.jsonl"], None, None, "train"),
    (["train.jsonl", "train.csv"], None, None, "train"),
    (["a.csv", "b.csv", "c.jsonl"], None, None, "train"),
    (["a.json", "b.jsonl", "c.ndjson"], None, None, "train"),
    (["train.txt", "test.txt"], None, None, "train"),
    (["deep/er/train-x.jsonl", "deep/test.jsonl"], None, None, "train"),
    (["en/train.jsonl", "fr/train.jsonl"], None, None, "train"),
    (["__cache__/train.jsonl", "a.jsonl"], None, None, "train"),
    ([".hidden.jsonl", "a.jsonl"], None, None, "train"),
    (["train.jsonl", "dataset_infos.json", "config.txt"], None, None, "train"),
    (["train-1.jsonl", "sub/validation/a.jsonl"], None, None, "validation"),
]

# Where rlhost differs on purpose, with the reason; these are not recorded.
DIFFERENCES = [
    (["a.jsonl", "b.jsonl"], config("['*.jsonl', a.jsonl]"), "a file that several paths name is read once"),
    (["Train.jsonl", "TEST.jsonl"], None, "names of splits in other letter case are names of splits, so that test rows are not trained on"),
    (["data/TRAIN-1.jsonl", "data/test-1.jsonl"], None, "names of splits in other letter case are names of splits"),
    (["x/a.jsonl", "b.jsonl"], config("x/../b.jsonl"), "paths don't lead upwards"),
]
LAYOUTS += [(files, card, None, "train") for files, card, _ in DIFFERENCES]


def write(folder, files, card):
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"text": file}
        text = {".csv": f"text\n{file}\n", ".txt": f"{file}\n"}.get(path.suffix, json.dumps(row) + "\n")
        path.write_text("{}" if path.name == "dataset_infos.json" else text)
    if card is not None:
        (folder / "README.md").write_text(f"---\n{card}---\n# Data\n")


def by_datasets(folder, name, split):
    try:
        with tempfile.TemporaryDirectory() as cache:
            return list(datasets.load_dataset(str(folder), name, split=split, cache_dir=cache)["text"])
    except Exception as error:  # its own kinds of errors are many
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"


def by_rlhost(rlhost, folder, name, split):
    """Returns the files that it says it reads."""
    given = str(folder) if name is None else f"{folder}/{name}"
    # An evaluation of nothing: the dataset is read before the run ends for want of steps.
    command = [rlhost, "sft", "--dataset", given, "--dataset-train-split", split, "--max-steps", "1"]
    command += ["--per-device-train-batch-size", "1", "--output-dir", str(folder) + "-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = re.search(r"reading (.*) for the split", done.stderr)
    return said.group(1).split(", ") if said and done.returncode == 0 else done.stderr.strip().splitlines()[-1][:160]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    datasets.disable_progress_bars()
    recorded, wrong = [], 0
    for number, (files, card, name, split) in enumerate(LAYOUTS):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "d"
            folder.mkdir()
            write(folder, files, card)
            expected = by_datasets(folder, name, split)
            known = None if isinstance(expected, str) else expected
            if not any((other, of) == (files, card) for other, of, _ in DIFFERENCES):
                recorded.append({"files": files, "card": card, "config": name, "split": split, "expected": known})
            found = None if args.rlhost == "-" else by_rlhost(args.rlhost, folder, name, split)
        same = found == known if known is not None else isinstance(found, str)
        reason = next((reason for other, of, reason in DIFFERENCES if (other, of) == (files, card)), None)
        note = "" if same else reason or "DIFFERS"
        wrong += note == "DIFFERS"
        print(f"{number:2} {split:10} {'' if name is None else name:3} {', '.join(files)}")
        print(f"   datasets: {expected if known is None else ', '.join(known)}")
        if found is not None:
            print(f"   rlhost:   {found if isinstance(found, str) else ', '.join(found)}  {note}")
    if args.write:
        FIXTURE.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"{len(LAYOUTS)} layouts, datasets {datasets.__version__}, {wrong} unexpected differences")
    sys.exit(1 if wrong and args.rlhost != "-" else 0)


if __name__ == "__main__":
    main()
