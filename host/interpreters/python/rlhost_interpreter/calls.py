"""Calls of a reward function with a batch."""

import inspect
import json
import math

# Used while the script's own are in force.
from builtins import dict, enumerate, float, isinstance, len, list, zip  # noqa: A004
from contextlib import nullcontext
from functools import partial
from itertools import islice

from .guard import OUTSIDE, called, plain
from .loop import awaited, together
from .scripts import Function, Script, ScriptError
from .signatures import BATCH_INPUTS


class BatchError(Exception):
    """The function can't be called with this batch."""


class AnswerError(Exception):
    """What the function returned is no list of scores."""


class TrainerState:
    """What a function may know of the training, as transformers' TrainerState."""

    def __init__(self, step: int):
        self.global_step = step

    def __getattr__(self, name):
        raise AttributeError(f"trainer_state has global_step only, not {name}")


class Rows:
    """The columns of a batch, one entry per completion, each made when it is first asked for."""

    def __init__(self, batch, takes_rest: bool):
        self.batch = batch
        self.prompt_of = batch.prompt_of
        self.columns = {column.name: column.values for column in batch.columns}
        # With this column, the rows are conversations: it has the prompt's messages.
        messages = self.columns.pop("prompt", None)
        self.conversations = None
        if messages is not None:
            parsed = [json.loads(value) for value in messages]
            if any(isinstance(value, list) for value in parsed):
                self.conversations = parsed
        self.read: dict[str, list] = {}

    def column(self, name: str) -> list | None:
        """Returns a column's values, None if the dataset lacks it. Rows of one prompt share a value's parts, as in TRL."""
        if name not in self.read:
            values = self.columns.get(name)
            if values is None:
                return None
            read = [json.loads(value) for value in values]
            self.read[name] = [read[prompt] for prompt in self.prompt_of]
        return self.read[name]

    def names(self) -> list[str]:
        return list(self.columns)

    def prompts(self) -> list:
        shown = self.conversations if self.conversations is not None else self.batch.prompts
        return [shown[prompt] for prompt in self.prompt_of]

    def completions(self) -> list:
        texts = self.batch.completions
        if self.conversations is None:
            return texts
        return [
            [{"role": "assistant", "content": text}] if isinstance(self.conversations[prompt], list) else text
            for text, prompt in zip(texts, self.prompt_of)
        ]

    def token_ids(self) -> list[list[int]]:
        ids, offsets = self.batch.token_ids, self.batch.offsets
        return [ids[start:end] for start, end in zip(offsets, offsets[1:])]


class Call:
    """A function with its settings, ready to be called with batches."""

    def __init__(self, script: Script, function: Function, settings: dict):
        if function.kind != "reward":
            raise ScriptError(f"{function.name} in {script.name} is no reward")
        self.function, self.signature = function, function.signature
        self.settings = function.settings_of(settings, script.name)
        self.metrics: dict[str, list[float]] = {}
        # What the last batch logged beside each completion, as JSON.
        self.extra: dict[str, list[str]] = {}
        # The row that a function of one row is called with.
        self.row: tuple[int, str] | None = None

    def score(self, batch) -> list[float | None]:
        """Returns the scores of a batch."""
        self.metrics, self.extra, self.row = {}, {}, None
        rows = Rows(batch, self.signature.takes_rest)
        missing = [name for name in self.signature.columns if rows.column(name) is None]
        if missing:
            raise BatchError(f"{self.function.name} takes {missing[0]}, which is {self._elsewhere(missing[0], rows)}")
        answer = self._by_row(batch, rows) if self.signature.by_row else self._whole(batch, rows)
        return self._checked(answer, len(batch.completions))

    def _elsewhere(self, name: str, rows: Rows) -> str:
        """Returns why an argument can't be given."""
        if name in BATCH_INPUTS:
            return "given to functions of a whole batch, which take completions, and not to those of a row"
        return f"no column of the dataset; it has: {', '.join(rows.names()) or 'none besides prompt'}"

    def _columns(self, rows: Rows) -> dict[str, list]:
        signature = self.signature
        names = rows.names() if signature.takes_rest else [*signature.columns, *signature.optional, *signature.settings]
        found = {name: rows.column(name) for name in names if name not in signature.inputs}
        return {name: values for name, values in found.items() if values is not None}

    def _whole(self, batch, rows: Rows):
        make = {
            "prompts": rows.prompts,
            "completions": rows.completions,
            "completion_ids": rows.token_ids,
            "trainer_state": lambda: TrainerState(batch.step),
            "log_extra": lambda: partial(self._log_extra, len(batch.completions)),
            "log_metric": lambda: self._log_metric,
        }
        signature = self.signature
        names = [n for n in make if n != "completion_ids" or signature.reads_ids] if signature.takes_rest else signature.taken
        given = self.settings | {name: make[name]() for name in names} | self._columns(rows)
        answer = called(self.function.call, **given)
        return awaited(answer) if inspect.isawaitable(answer) else answer

    def _by_row(self, batch, rows: Rows):
        make = {
            "prompt": lambda: [batch.prompts[prompt] for prompt in batch.prompt_of],
            "completion": lambda: batch.completions,
            "token_ids": rows.token_ids,
            "finished": lambda: batch.finished,
        }
        names = [name for name in make if name != "token_ids"] if self.signature.takes_rest else self.signature.taken
        given = {name: make[name]() for name in names} | self._columns(rows)
        keys, call, settings, texts = tuple(given), self.function.call, self.settings, batch.completions
        answers = []
        with OUTSIDE:
            for at, values in enumerate(zip(*given.values())):
                self.row = (at, texts[at])
                answers.append(call(**settings, **dict(zip(keys, values))) if settings else call(**dict(zip(keys, values))))
        self.row = None
        if answers and inspect.isawaitable(answers[0]):
            return awaited(together(answers))
        return answers

    def _log_metric(self, name: str, value: float) -> None:
        self.metrics.setdefault(plain(str(name)), []).append(float(value))

    def _log_extra(self, count: int, column: str, values: list) -> None:
        """Keeps a value for each completion, as TRL's table of completions has them. What JSON has no form for is written as text."""
        name, values = plain(str(column)), list(islice(values, count + 1))
        if len(values) != count:
            more = "more than " if len(values) > count else ""
            raise ValueError(f"log_extra({name!r}, ...) got {more}{min(len(values), count)} values for {count} completions")
        self.extra[name] = [_json(value) for value in values]

    def _checked(self, answer, count: int) -> list[float | None]:
        name = self.function.name
        if isinstance(answer, (str, bytes, dict, set, frozenset)) or not hasattr(answer, "__iter__"):
            raise AnswerError(f"{name} returned {type(answer).__name__}, not a list of scores")
        # A generator of the script's may never end; a list runs no code of the script's.
        with nullcontext() if type(answer) is list else OUTSIDE:
            answer = list(islice(answer, count + 1))
        if len(answer) != count:
            more = "more than " if len(answer) > count else ""
            raise AnswerError(f"{name} returned {more}{min(len(answer), count)} scores for {count} completions")
        scores = []
        for at, score in enumerate(answer):
            kind = type(score)
            # Most are plain numbers in range, for which this is much faster.
            if (kind is float or kind is int) and -LARGEST <= score <= LARGEST:
                scores.append(float(score))
            else:
                scores.append(self._score(score, at))
        return scores

    def _score(self, score, at: int) -> float | None:
        if score is None:
            return None
        number = score if type(score) is float else math.inf
        if type(score) is not float and not isinstance(score, (str, bytes)):
            # Objects like numpy's have a method for it.
            try:
                with nullcontext() if type(score) in (int, bool) else OUTSIDE:
                    number = float(score)
            except (TypeError, ValueError, OverflowError):
                pass
        if math.isnan(number):
            return None
        if abs(number) > LARGEST:
            what = "too large for a score" if isinstance(score, (int, float)) else "not a number or None"
            raise AnswerError(f"{self.function.name} returned {shown(score)} for completion {at}, {what}")
        return number


def _json(value) -> str:
    """Returns a value as JSON that holds no NaN and no half of a character."""
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    try:
        return plain(json.dumps(value, default=str, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return plain(json.dumps(shown(value)))


# Scores are passed on as 32-bit numbers.
LARGEST = 3.4028234663852886e38


def shown(value) -> str:
    """Returns a value in few words."""
    try:
        with OUTSIDE:
            text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return plain(text if len(text) <= 60 else text[:60] + "...")
