"""A run's folder."""

import os
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ._frames import FRAMES, Rows, frame
from ._lines import Lines

# Longest lines, in bytes, as rlhost itself reads them.
_LONGEST_LINE = 1 << 20
_LONGEST_COMPLETION = 8 << 20

# Largest configuration, in bytes, and where a checkpoint has its own: older versions had it among the model's files.
_LARGEST_CONFIG = 4 << 20
_CHECKPOINT = "checkpoint-"
_IN_CHECKPOINT = (os.path.join("trainer", "config.toml"), "config.toml")

# Keys of a row of metrics that both kinds of rows have.
_OF_BOTH = ("step", "epoch", "time", "versions")

# Digits of a plugin's hash in a row of metrics, and what is between it and the digest of its settings.
_DIGITS = 12
_JOINT = "+"


class RunError(ValueError):
    """The path is not the folder of a run."""


def read_run(path: "os.PathLike[str] | str", frames: str = "auto", token_ids: bool = False) -> "Run":
    """Opens the folder of a run, which may still be running.

    ``frames`` says what tables are: data frames of ``"pandas"`` or ``"polars"``, lists of dicts (``"none"``), or ``"auto"``: pandas, or
    else polars, or else lists. Completions have their tokens' numbers only with ``token_ids``.

    Raises :class:`RunError` if the path is not the folder of a run.
    """
    if frames not in FRAMES:
        raise ValueError(f"frames: expected one of {', '.join(FRAMES)}, not {frames!r}")
    folder = os.fspath(path)
    if not os.path.exists(folder):
        raise RunError(f"{folder}: there is no such folder; give the folder of a run")
    if not os.path.isdir(folder):
        raise RunError(f"{folder}: is a file; give the folder of a run")
    if os.path.basename(os.path.abspath(folder)).startswith("checkpoint-") and not _is_run(folder):
        raise RunError(f"{folder}: is a checkpoint; give its run's folder, {os.path.dirname(folder) or '.'}")
    if not _is_run(folder):
        inside = sorted(name for name in os.listdir(folder) if _is_run(os.path.join(folder, name)))
        advice = f"; it contains some, such as {os.path.join(folder, inside[-1])}" if inside else ""
        raise RunError(f"{folder}: is not the folder of a run, which contains config.toml and events.jsonl{advice}")
    return Run(folder, frames, token_ids)


def _is_run(folder: str) -> bool:
    return any(os.path.isfile(os.path.join(folder, name)) for name in ("config.toml", "events.jsonl"))


class Run:
    """A run's folder. Each file is read when it is first needed; :meth:`reload` forgets what was read of a run that goes on."""

    def __init__(self, path: str, frames: str = "auto", token_ids: bool = False) -> None:
        self.path = path
        self.name = os.path.basename(os.path.abspath(path))
        self._frames = frames
        self._token_ids = token_ids
        self._read: Dict[str, Any] = {}
        self._notes: Dict[str, List[str]] = {}

    def __repr__(self) -> str:
        return f"<rlhost run {self.path!r}>"

    def reload(self) -> "Run":
        """Forgets what was read."""
        self._read, self._notes = {}, {}
        return self

    @property
    def metrics(self) -> Any:
        """All rows of metrics, in the order of their steps. ``kind`` is ``"train"`` or ``"evaluation"``; ``versions`` has the
        plugins' versions: the beginning of the hash of a plugin's bytes, ``+``, and a digest of its settings.
        """
        return self._once("metrics table", lambda: frame(self._metrics(), self._frames))

    @property
    def training(self) -> Any:
        """The rows of training, without metrics that only evaluations have."""
        return self._kind("train")

    @property
    def evaluations(self) -> Any:
        """The rows of evaluations."""
        return self._kind("evaluation")

    @property
    def completions(self) -> Any:
        """All completions with their scores. For a file larger than memory, see :meth:`iter_completions`."""
        return self._once("completions table", lambda: frame(list(self.iter_completions()), self._frames))

    def iter_completions(self, first: int = 0, last: Optional[int] = None) -> Iterator[Dict[str, Any]]:
        """Yields completions as dicts, one after the other, of the steps from ``first`` to ``last``, both included. A completion's step is
        the number of steps taken before it was generated.
        """
        restarts = self._once("restarts", self._restarts)
        lines = Lines(self._file("completions.jsonl"), _LONGEST_COMPLETION)
        place = 0
        for number, row in lines.placed():
            step = row.get("step")
            if not _is_count(step):
                continue
            # A later resume from this step, or from before it, took the step again.
            while place < len(restarts) and restarts[place][0] <= number:
                place += 1
            undone = place < len(restarts) and step >= restarts[place][1]
            if undone or step < first or (last is not None and step > last):
                continue
            yield self._completion(row)
        self._notes["completions.jsonl"] = lines.notes()

    @property
    def events(self) -> Rows:
        """All events as dicts. ``undone`` says whether a later resume went back to before the event."""
        return self._once("events", self._events)

    @property
    def versions(self) -> Rows:
        """The versions of the plugins: plugin, role, the ``version`` that it states, hash, ``settings`` (their digest, as in ``versions``
        of the metrics), ``config`` (the settings), the steps ``since`` and ``until`` which it was in use (None for the last). Other
        settings of the same plugin are another version. What a resume undid is left out.
        """
        return self._once("versions", self._versions)

    @property
    def config(self) -> Optional[Dict[str, Any]]:
        """The settings that the run has, or had at its end: what a person wrote into config.toml and the run has not taken up is none of
        them, and is in :attr:`notes`. None before Python 3.11, which has no parser for TOML.
        """
        return self._once("config", self._config)

    @property
    def notes(self) -> List[str]:
        """What could not be read, of the files that were read so far."""
        return [note for notes in self._notes.values() for note in notes]

    def _once(self, name: str, read: Any) -> Any:
        if name not in self._read:
            self._read[name] = read()
        return self._read[name]

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _lines(self, name: str) -> List[Dict[str, Any]]:
        lines = Lines(self._file(name), _LONGEST_LINE)
        rows = list(lines)
        self._notes[name] = lines.notes()
        return rows

    def _kind(self, kind: str) -> Any:
        rows = [{key: value for key, value in row.items() if key != "kind"} for row in self._metrics() if row["kind"] == kind]
        return self._once(kind, lambda: frame(rows, self._frames))

    def _metrics(self) -> Rows:
        return self._once("metrics", self._read_metrics)

    def _read_metrics(self) -> Rows:
        rows: Dict[Tuple[int, str], Dict[str, Any]] = {}
        newest = -1
        for line in self._lines("metrics.jsonl"):
            step = line.get("step")
            if not _is_count(step):
                continue
            kind = _kind(line)
            if step < newest:
                # A resume took steps again: what came after it is gone, and of the step itself what comes anew.
                rows = {at: row for at, row in rows.items() if at[0] < step or (at[0] == step and at[1] == "train" != kind)}
            newest = step
            row = {"step": step, "kind": kind}
            row.update((key, value) for key, value in line.items() if key != "step")
            if not isinstance(row.get("versions"), dict):
                row["versions"] = self._versions_at(step)
            rows[step, kind] = row
        # `train` before `evaluation`, as they come.
        return [rows[at] for at in sorted(rows, key=lambda at: (at[0], at[1] != "train"))]

    def _versions_at(self, step: int) -> Dict[str, str]:
        """Returns the versions with which the run took a step, for rows of older runs."""
        found = {}
        for version in self.versions:
            if version["since"] < max(step, 1) and (version["until"] is None or step <= version["until"]):
                settings = version["settings"]
                found[version["plugin"]] = version["hash"][:_DIGITS] + (_JOINT + settings if settings else "")
        return found

    def _restarts(self) -> List[Tuple[int, int]]:
        """Returns the numbers of the lines at which completions begin again at an earlier step, each with the least step from there on."""
        restarts: List[Tuple[int, int]] = []
        before = -1
        for number, row in Lines(self._file("completions.jsonl"), _LONGEST_COMPLETION).placed():
            step = row.get("step")
            if not _is_count(step):
                continue
            if step < before:
                restarts.append((number, step))
            before = step
        least = None
        for at in range(len(restarts) - 1, -1, -1):
            number, step = restarts[at]
            least = step if least is None else min(least, step)
            restarts[at] = (number, least)
        return restarts

    def _completion(self, row: Dict[str, Any]) -> Dict[str, Any]:
        row = dict(row)
        tokens = row.get("completion_ids")
        if isinstance(tokens, list):
            row["tokens"] = len(tokens)
        if not self._token_ids:
            row.pop("prompt_ids", None)
            row.pop("completion_ids", None)
        return row

    def _events(self) -> Rows:
        events = self._lines("events.jsonl")
        back: Optional[int] = None
        # From the last: an event is undone if any later resume starts before it.
        for event in reversed(events):
            step = event.get("step")
            event["undone"] = bool(back is not None and _is_count(step) and step > back)
            if event.get("event") in ("started", "resumed", "forked") and _is_count(step):
                back = step if back is None else min(back, step)
        return events

    def _versions(self) -> Rows:
        spans: Rows = []
        begun = 0

        def now(plugin: Any) -> Optional[Dict[str, Any]]:
            return next((span for span in reversed(spans) if span["plugin"] == plugin and span["until"] is None), None)

        def replace(plugin: Any, step: int, **what: Any) -> None:
            last = now(plugin)
            if last is not None and _is_same(last, what):
                return
            if last is not None:
                last["until"] = step
                what = {**{key: last[key] for key in ("role",)}, **what}
            own = {"plugin": plugin, "role": None, "version": None, "hash": None, "settings": None, "config": None}
            spans.append({**own, **what, "since": step, "until": None})

        for event in self.events:
            kind, step = event.get("event"), event.get("step")
            step = step if _is_count(step) else begun
            if kind in ("started", "resumed", "forked"):
                begun = step
                # Later versions are undone; those that they replaced are in use again.
                spans[:] = [span for span in spans if span["since"] <= step]
                for span in spans:
                    if span["until"] is not None and span["until"] > step:
                        span["until"] = None
            elif kind == "plugin_loaded" and isinstance(event.get("hash"), str):
                what = {"role": event.get("role"), "version": event.get("version"), "hash": event["hash"]}
                what.update(settings=event.get("settings"), config=event.get("config"))
                # The checkpoint of a swap's step may be from before it.
                own = [span for span in spans if span["plugin"] == event.get("plugin")]
                if len(own) > 1 and own[-1]["since"] == begun and _is_same(own[-2], what):
                    spans.remove(own[-1])
                    own[-2]["until"] = None
                replace(event.get("plugin"), begun, **what)
            elif kind in ("plugin_swapped", "plugin_rolled_back") and isinstance(event.get("to"), str):
                what = {"hash": event["to"], "settings": event.get("to_settings"), "config": event.get("config")}
                own = [span for span in reversed(spans) if span["plugin"] == event.get("plugin")]
                known = next((span for span in own if _is_same(span, what)), None)
                if kind == "plugin_rolled_back" and what["config"] is None and known is not None:
                    # Older runs do not say to which settings they went back: to those before the newest.
                    what.update(settings=known["settings"], config=known["config"])
                known = known or next((span for span in own if span["hash"] == event["to"]), None)
                stated = event.get("version") or (known and known["version"])
                replace(event.get("plugin"), step, version=stated, **what)
        return spans

    def _config(self) -> Optional[Dict[str, Any]]:
        try:
            import tomllib
        except ImportError:
            self._notes["config.toml"] = ["config.toml: not read, since Python before 3.11 has no parser for TOML"]
            return None

        def read(name: str) -> Any:
            with open(self._file(name), "rb") as file:
                text = file.read(_LARGEST_CONFIG)
            if name != "config.toml" and not text.endswith(b"\n"):
                raise ValueError("it was cut off")
            return tomllib.loads(text.decode("utf-8"))

        edited, problem = None, None
        try:
            edited = read("config.toml")
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            problem = f"config.toml: {error}"
        for name in self._own_configs():
            try:
                own = read(name)
            except (OSError, ValueError, RecursionError):
                continue
            if edited is not None and edited != own:
                problem = f"config.toml was edited, and the run has not taken the edit up; the settings are the run's own, from {name}"
            self._notes["config.toml"] = [problem] if problem else []
            return own
        self._notes["config.toml"] = [problem] if problem else []
        return edited

    def _own_configs(self) -> List[str]:
        """Returns the files with the configuration as the run itself wrote it, the newest first."""
        steps = []
        for name in os.listdir(self.path):
            digits = name[len(_CHECKPOINT) :] if name.startswith(_CHECKPOINT) else ""
            if digits.isascii() and digits.isdigit():
                steps.append((int(digits), name))
        of_checkpoints = [os.path.join(name, place) for _, name in sorted(steps, reverse=True) for place in _IN_CHECKPOINT]
        return [".config.toml", *of_checkpoints]


def _is_same(one: Dict[str, Any], other: Dict[str, Any]) -> bool:
    """Returns whether two versions are the same, as far as is known: digests of settings are newer than their recording."""
    if one["hash"] != other["hash"]:
        return False
    for key in ("settings", "config"):
        if one[key] is not None and other[key] is not None:
            return bool(one[key] == other[key])
    return True


def _kind(line: Dict[str, Any]) -> str:
    own = [key for key in line if key not in _OF_BOTH]
    return "evaluation" if own and all(key.startswith("eval_") for key in own) else "train"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
