"""Tries what `pip install rlhost` brings for Python: reads a run that the program has just made, and an old, damaged one.

    python try_reader.py RUN

Data frames are tried where pandas or polars is installed.
"""

import json
import os
import sys
import tempfile

import rlhost


def lines(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def real(folder):
    run = rlhost.read_run(folder, frames="none")
    logged, completions = lines(folder, "metrics.jsonl"), lines(folder, "completions.jsonl")
    assert [row["step"] for row in run.metrics] == [row["step"] for row in logged], run.metrics
    assert [row["reward"] for row in run.training] == [row["reward"] for row in logged if "reward" in row]
    assert [row["eval_reward"] for row in run.evaluations] == [row["eval_reward"] for row in logged if "eval_reward" in row]
    assert all(row["versions"] for row in run.metrics), "the versions come from the rows or from the events"
    assert [row["completion"] for row in run.completions] == [row["completion"] for row in completions]
    first = run.completions[0]
    assert first["tokens"] == len(completions[0]["completion_ids"]) and "completion_ids" not in first
    assert {version["plugin"] for version in run.versions} == set(completions[0]["plugins"]), run.versions
    for version in run.versions:
        whole, short = completions[0]["plugins"][version["plugin"]], run.metrics[-1]["versions"][version["plugin"]]
        assert whole == version["hash"] + "+" + version["settings"] and short == whole[:12] + whole[64:], (version, whole, short)
    assert run.events[0]["event"] == "started" and not any(event["undone"] for event in run.events)
    assert run.notes == [] and (run.config is None or run.config["max_steps"] == logged[-1]["step"])
    frames(folder, len(completions))


def frames(folder, completions):
    for kind in ("pandas", "polars"):
        try:
            __import__(kind)
        except ImportError:
            print(f"{kind} is not installed: its data frames are not tried")
            continue
        run = rlhost.read_run(folder, frames=kind)
        reward = next(name for name in run.completions.columns if name.startswith("rewards/"))
        assert len(run.completions) == completions and run.completions[reward].mean() < 100
        assert len(run.metrics) == len(run.training) + len(run.evaluations)
        assert type(run.metrics).__module__.startswith(kind)


METRICS = [
    {"step": 0, "eval_reward": 0.5},
    {"step": 1, "reward": 1.0},
    {"step": 2, "reward": 2.0},
    {"step": 2, "eval_reward": 2.5},
    {"step": 3, "reward": 99.0},
    # Resumed from the checkpoint of step 1.
    {"step": 2, "reward": 2.25, "versions": {"r": "cc"}},
    {"step": 2, "eval_reward": None},
]
EVENTS = [
    {"event": "started", "step": 0},
    {"event": "plugin_loaded", "role": "reward", "plugin": "r", "version": "1", "hash": "aa" * 32},
    {"event": "plugin_swapped", "plugin": "r", "from": "aa" * 32, "to": "bb" * 32, "step": 2},
    {"event": "resumed", "step": 1},
    {"event": "plugin_loaded", "role": "reward", "plugin": "r", "version": "1", "hash": "aa" * 32},
    {"event": "plugin_swapped", "plugin": "r", "from": "aa" * 32, "to": "cc" * 32, "step": 1},
    # Resumed from the checkpoint of the very step, which was saved before the swap, and swapped again.
    {"event": "resumed", "step": 1},
    {"event": "plugin_loaded", "role": "reward", "plugin": "r", "version": "1", "hash": "aa" * 32},
    {"event": "plugin_swapped", "plugin": "r", "from": "aa" * 32, "to": "cc" * 32, "step": 1},
]


def damaged(folder):
    def write(name, rows, more=""):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows) + more)

    write("metrics.jsonl", METRICS, 'garbage\n[1]\n{"reward": 1}\n{"step": 9, "rew')
    write("events.jsonl", EVENTS)
    steps = [(0, "a"), (1, "b"), (2, "c"), (1, "d"), (2, "e")]
    row = [{"step": step, "completion": name, "rewards": {"r": 1}, "messages": [{"role": "user"}, 1]} for step, name in steps]
    write("completions.jsonl", row, '{"step":"x"}\n' + '{"step":2,"completion":"' + "y" * (8 << 20) + '"}\n')
    run = rlhost.read_run(folder, frames="none")
    rows = [(row["step"], row["kind"], row.get("reward", row.get("eval_reward"))) for row in run.metrics]
    expected = [(0, "evaluation", 0.5), (1, "train", 1.0), (2, "train", 2.25), (2, "evaluation", None)]
    assert rows == expected, rows
    assert [row["versions"] for row in run.metrics] == [{"r": "a" * 12}, {"r": "a" * 12}, {"r": "cc"}, {"r": "c" * 12}]
    assert [event["undone"] for event in run.events] == [False, False, True] + 6 * [False]
    spans = [(version["hash"][:2], version["since"], version["until"]) for version in run.versions]
    assert spans == [("aa", 0, 1), ("cc", 1, None)], spans
    assert [row["completion"] for row in run.completions] == ["a", "d", "e"]
    assert [row["completion"] for row in run.iter_completions(1, 1)] == ["d"]
    assert len(run.notes) == 2 and "2 lines are not JSON objects" in run.notes[0], run.notes
    assert "1 lines are longer than 8 MiB" in run.notes[1], run.notes
    frames_of_any_kind(folder)


def frames_of_any_kind(folder):
    for kind in ("pandas", "polars"):
        try:
            __import__(kind)
        except ImportError:
            continue
        run = rlhost.read_run(folder, frames=kind)
        assert len(run.metrics) == 4 and len(run.completions) == 3 and run.metrics["versions/r"][2] == "cc"


SETTINGS = [
    {"event": "started", "step": 0},
    {"event": "plugin_loaded", "role": "reward", "plugin": "r", "version": "1", "hash": "aa", "settings": "01", "config": {"k": 1}},
    {"event": "plugin_swapped", "plugin": "r", "from": "aa", "to": "aa", "from_settings": "01", "to_settings": "02",
     "config": {"k": 2}, "step": 3},
    # The same again.
    {"event": "plugin_swapped", "plugin": "r", "from": "aa", "to": "aa", "from_settings": "02", "to_settings": "02",
     "config": {"k": 2}, "step": 4},
    {"event": "plugin_rolled_back", "plugin": "r", "from": "aa", "to": "aa", "from_settings": "02", "to_settings": "01",
     "config": {"k": 1}, "step": 5},
]


def settings(folder):
    """Other settings are another version, with digests and without, as older runs wrote them."""
    for has_digests in (True, False):
        events = [{key: value for key, value in event.items() if has_digests or "settings" not in key} for event in SETTINGS]
        with open(os.path.join(folder, "events.jsonl"), "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(event) + "\n" for event in events))
        run = rlhost.read_run(folder, frames="none")
        spans = [(version["config"]["k"], version["since"], version["until"]) for version in run.versions]
        assert spans == [(1, 0, 3), (2, 3, 5), (1, 5, None)], (has_digests, spans)
        assert [version["settings"] for version in run.versions] == (["01", "02", "01"] if has_digests else 3 * [None])


def edited(folder):
    """An edit of config.toml that the run has not taken up is none of its settings."""
    if sys.version_info < (3, 11):
        return

    def write(name, text):
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def seed():
        run = rlhost.read_run(folder, frames="none")
        return run.config["seed"], run.notes

    write("config.toml", "seed = 1\n")
    assert seed() == (1, [])
    write("checkpoint-9/trainer/config.toml", "seed = 2\n")
    write("checkpoint-10/trainer/config.toml", "seed = 3\n")
    found, notes = seed()
    assert found == 3 and "checkpoint-10" in notes[0], (found, notes)
    # Cut off, and whole.
    write(".config.toml", "seed = 4")
    assert seed()[0] == 3
    write(".config.toml", "seed = 4\n")
    write("config.toml", "# mine\nseed = 4")
    assert seed() == (4, [])
    write("config.toml", "seed = ")
    found, notes = seed()
    assert found == 4 and len(notes) == 1, (found, notes)


def refused(place):
    for path, reason in [
        (os.path.join(place, "nothing"), "there is no such folder"),
        (__file__, "is a file"),
        (place, "it contains some, such as"),
        (tempfile.gettempdir(), "is not the folder of a run"),
    ]:
        try:
            rlhost.read_run(path)
        except rlhost.RunError as error:
            assert reason in str(error) or path == tempfile.gettempdir(), error
        else:
            raise AssertionError(f"{path} was read")


if __name__ == "__main__":
    real(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        os.mkdir(os.path.join(place, "old"))
        damaged(os.path.join(place, "old"))
        settings(os.path.join(place, "old"))
        edited(os.path.join(place, "edited"))
        refused(place)
    print("rlhost.read_run reads runs")
