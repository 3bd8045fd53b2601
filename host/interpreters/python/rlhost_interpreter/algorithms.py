"""Calls of `advantages` and of `loss`."""

import inspect
import math
import random

# `Measured.log` runs while the script's own are in force.
from builtins import float, isinstance, len, str, sum, zip  # noqa: A004

from .batches import DIFFERENTIATED, LOSS, EstimatorSignature, Generation, Learned, LossSignature
from .columns import Column, derivatives
from .guard import called
from .loop import awaited
from .signatures import parameters_of

# Columns that built-in losses read for each token.
PER_TOKEN = ("advantage", "return", "mask")


class ResultError(Exception):
    """What the function returned can't be used."""


class Measured:
    """Metrics that a function logs: sums of values times weights, and of weights."""

    def __init__(self, mask: Column | None = None):
        self.mask = mask
        self.found: dict[str, list[float]] = {}

    def log(self, name: str, value, weight: float = 1.0) -> None:
        if isinstance(value, Column):
            weights = self.mask.values if self.mask is not None and value.unit == "token" else [1.0] * len(value.values)
            total, weight = sum(x * w for x, w in zip(value.values, weights)), sum(weights)
        else:
            total = float(value) * weight
        sums = self.found.setdefault(str(name), [0.0, 0.0])
        sums[0] += total
        sums[1] += weight

    def means(self) -> list[tuple[str, float, float]]:
        """Returns name, mean and weight of each that is finite."""
        means = [(name, total / weight, weight) for name, (total, weight) in self.found.items() if weight > 0]
        return [entry for entry in means if math.isfinite(entry[1])]


class Estimator:
    """A function `advantages(rewards, groups, **columns)` with its settings."""

    def __init__(self, function, name: str, estimates: list[str], settings: dict):
        self.function, self.name, self.estimates = function, name, estimates
        self.signature = EstimatorSignature(function)
        self.settings = settings

    def estimate(self, batch, rewards: list) -> tuple[dict[str, tuple[str, list]], Measured]:
        """Returns columns by name, each with its unit, and metrics."""
        measured = Measured()
        generation = Generation(batch, rewards)
        inputs = generation.inputs(self.signature.taken, measured.log)
        missing = [name for name in self.signature.required if inputs[name] is None]
        if missing:
            raise ResultError(f"{self.name} takes {missing[0]}, which this run does not have")
        given = self.settings | {name: value for name, value in inputs.items() if value is not None}
        random.seed(batch.seed)
        answer = called(self.function, **given)
        answer = awaited(answer) if inspect.isawaitable(answer) else answer
        found = answer if isinstance(answer, dict) else {"advantage": answer}
        undeclared = [name for name in found if name not in self.estimates]
        if undeclared:
            raise ResultError(f"{self.name} returned a column {undeclared[0]!r}: name it in ESTIMATES = [...]")
        return {name: self._column(name, values, batch) for name, values in found.items()}, measured

    def _column(self, name: str, values, batch) -> tuple[str, list]:
        """Checks a column: a number for each completion, or a list of one for each of its tokens."""
        tokens, count = batch.tokens, len(batch.tokens) - 1
        if isinstance(values, (str, bytes, dict, set)) or not hasattr(values, "__iter__"):
            raise ResultError(f"{self.name} returned {type(values).__name__} for {name}, not a list")
        values = list(values)
        if len(values) != count:
            raise ResultError(f"{self.name} returned {len(values)} values of {name} for {count} completions")
        per_token = any(isinstance(value, (list, tuple)) for value in values)
        flat: list[float] = []
        for at, value in enumerate(values):
            length = tokens[at + 1] - tokens[at]
            if per_token:
                if not isinstance(value, (list, tuple)) or len(value) != length:
                    raise ResultError(
                        f"{self.name} returned {value!r:.60} of {name} for completion {at}, which has {length} tokens"
                    )
                flat += [self._number(name, entry, at) for entry in value]
            elif name in PER_TOKEN:
                number = self._number(name, value, at)
                flat += [number if counted or name == "mask" else 0.0 for counted in batch.mask[tokens[at] : tokens[at + 1]]]
            else:
                flat.append(self._number(name, value, at))
        return ("token" if per_token or name in PER_TOKEN else "sequence"), flat

    def _number(self, name: str, value, at: int) -> float:
        if value is None:
            return 0.0
        if isinstance(value, str):
            raise ResultError(f"{self.name} returned {value!r:.60} of {name} for completion {at}, not a number")
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ResultError(f"{self.name} returned {value!r:.60} of {name} for completion {at}, not a number") from None
        if not math.isfinite(number):
            raise ResultError(f"{self.name} returned {number} of {name} for completion {at}, which is not finite")
        return number


class Loss:
    """A function `loss(logp, advantage, ...)` with its settings."""

    def __init__(self, function, name: str, estimates: list[str], settings: dict):
        self.function, self.name = function, name
        self.signature = LossSignature(function, estimates)
        self.settings = settings

    def loss(self, batch) -> tuple[float, dict[str, tuple[str, list]], Measured]:
        """Returns this batch's part of the step's loss, its derivatives by column, each with its unit, and metrics."""
        wanted = {LossSignature.source_of(name) for name in self.signature.taken} & set(DIFFERENTIATED)
        learned = Learned(batch, wanted)
        measured = Measured(learned.mask)
        inputs = learned.inputs(self.signature.taken, measured.log)
        parameters = parameters_of(self.function)
        missing = [n for n in self.signature.taken if n not in inputs and parameters[n].default is inspect.Parameter.empty]
        if missing:
            raise ResultError(f"{self.name} takes {missing[0]}, which this run does not have")
        random.seed(batch.seed)
        result = called(self.function, **(self.settings | inputs))
        total = self._total(result, learned)
        value = total.item()
        if not math.isfinite(value):
            raise ResultError(f"{self.name} is {value}, which is not finite")
        by = {name: column for name, column in learned.columns.items() if name in wanted}
        found = derivatives(total, by)
        gradients = {}
        for name, values in found.items():
            unit = LOSS[name]
            if unit == "token":
                values = [d if counted else 0.0 for d, counted in zip(values, batch.mask)]
            wrong = next((at for at, d in enumerate(values) if not math.isfinite(d)), None)
            if wrong is not None:
                raise ResultError(
                    f"the derivative of {self.name} by {name} is {values[wrong]} at entry {wrong}, which is not finite"
                )
            gradients[name] = (unit, values)
        return value, gradients, measured

    def _total(self, result, learned: Learned) -> Column:
        """Returns the loss as one number, as a part of the step's."""
        if not isinstance(result, Column):
            raise ResultError(f"{self.name} returned {type(result).__name__}, not a column or a number made of columns")
        if result.unit == "number":
            return result
        if result.unit == "prompt_token":
            return result.sum() / max(float(learned.batch.scale.prompt_tokens), 1.0)
        return result.mean()
