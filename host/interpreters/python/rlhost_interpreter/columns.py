"""Columns of numbers with derivatives: `from rlhost import exp, minimum, clamp`.

A loss is written over whole columns, as over tensors. Columns of different units fit together: a sequence's value goes to each of its
tokens, a group's to each of its sequences, a number to everything.
"""

import math
from builtins import abs, bool, float, getattr, id, int, isinstance, len, list, map, max, min, range, sum, zip  # noqa: A004
from operator import add, gt, lt, mul, neg, sub

INFINITY = math.inf
# From the narrowest to the widest unit, each a division of the one before.
ORDER = {"number": 0, "group": 1, "sequence": 2, "token": 3, "prompt_token": 4}


class Layout:
    """How a batch is divided: where each sequence's tokens begin, and each group's sequences; which tokens count; and the step's totals."""

    def __init__(self, tokens: list[int], groups: list[int], mask: list[float], items: float, total: float):
        self.tokens, self.groups, self.mask = tokens, groups, mask
        self.items, self.total = items, total
        self.sizes = {"number": 1, "group": len(groups) - 1, "sequence": len(tokens) - 1, "token": tokens[-1] if tokens else 0}

    def bounds(self, unit: str) -> list[int]:
        """Returns where the parts of each entry of the unit's wider one begin."""
        return self.tokens if unit == "token" else self.groups

    def spread(self, values: list, unit: str, to: str) -> list:
        """Repeats values of a unit for each part of it."""
        while unit != to:
            if unit == "number":
                return values * self.sizes[to]
            unit = "sequence" if unit == "group" else "token"
            ends = self.bounds(unit)
            values = [value for value, start, end in zip(values, ends, ends[1:]) for _ in range(end - start)]
        return values

    def gathered(self, values: list, unit: str, to: str) -> list:
        """Adds up values of parts: the derivative of `spread`."""
        while unit != to:
            if to == "number":
                return [sum(values)]
            ends = self.bounds(unit)
            values = [sum(values[start:end]) for start, end in zip(ends, ends[1:])]
            unit = "group" if unit == "sequence" else "sequence"
        return values


class Column:
    """Numbers, one for each token, sequence or group of a batch."""

    __slots__ = ("values", "unit", "layout", "parents", "number", "tracked")
    __array_priority__ = 1000

    def __init__(self, values: list[float], unit: str, layout: Layout, parents=(), tracked: bool = False):
        self.values, self.unit, self.layout = values, unit, layout
        # Columns that this one was made of, each with what turns this one's derivatives into the other's.
        self.parents = [(column, back) for column, back in parents if column.tracked]
        self.tracked = tracked or bool(self.parents)

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self):
        return iter(self.values)

    def __getitem__(self, at):
        return self.values[at]

    def __repr__(self) -> str:
        shown = ", ".join(f"{value:g}" for value in self.values[:6])
        return f"Column([{shown}{', ...' if len(self.values) > 6 else ''}], {self.unit})"

    def __bool__(self):
        raise TypeError("a column is neither true nor false: use where(condition, a, b), or multiply by the condition")

    def tolist(self) -> list[float]:
        """Returns the numbers."""
        return list(self.values)

    def item(self) -> float:
        """Returns the number of a column that has one."""
        if len(self.values) != 1:
            raise ValueError(f"a column of {len(self.values)} values is not one number")
        return self.values[0]

    def detach(self) -> "Column":
        """Returns the same numbers as constants."""
        return Column(self.values, self.unit, self.layout)

    def _one(self, function, derivative) -> "Column":
        values = [function(x) for x in self.values]

        def back(g):
            return [d * derivative(x, y) for d, x, y in zip(g, self.values, values)]

        return Column(values, self.unit, self.layout, [(self, back)])

    def __neg__(self):
        return Column(list(map(neg, self.values)), self.unit, self.layout, [(self, lambda g: list(map(neg, g)))])

    def __pos__(self):
        return self

    def __abs__(self):
        return self._one(abs, lambda x, y: (x > 0) - (x < 0))

    def __add__(self, other):
        return _two(self, other, add, lambda g, a, b: g, lambda g, a, b: g)

    __radd__ = __add__

    def __sub__(self, other):
        return _two(self, other, sub, lambda g, a, b: g, lambda g, a, b: list(map(neg, g)))

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        return _two(self, other, mul, lambda g, a, b: list(map(mul, g, b)), lambda g, a, b: list(map(mul, g, a)))

    __rmul__ = __mul__

    def __truediv__(self, other):
        return _two(self, other, _divided, _by_dividend, _by_divisor)

    def __rtruediv__(self, other):
        return _column(other, self.layout) / self

    def __pow__(self, exponent):
        if not isinstance(exponent, (int, float)):
            raise TypeError("an exponent is a number: write exp(b * log(a)) for a column")
        return self._one(lambda x: _power(x, exponent), lambda x, y: exponent * _power(x, exponent - 1) if exponent else 0.0)

    def __lt__(self, other):
        return _condition(self, other, lambda a, b: float(a < b))

    def __le__(self, other):
        return _condition(self, other, lambda a, b: float(a <= b))

    def __gt__(self, other):
        return _condition(self, other, lambda a, b: float(a > b))

    def __ge__(self, other):
        return _condition(self, other, lambda a, b: float(a >= b))

    def __eq__(self, other):
        return _condition(self, other, lambda a, b: float(a == b))

    def __ne__(self, other):
        return _condition(self, other, lambda a, b: float(a != b))

    __hash__ = None

    def __and__(self, other):
        return _condition(self, other, lambda a, b: float(bool(a) and bool(b)))

    def __or__(self, other):
        return _condition(self, other, lambda a, b: float(bool(a) or bool(b)))

    def __invert__(self):
        return Column([float(not x) for x in self.values], self.unit, self.layout)

    def exp(self) -> "Column":
        return self._one(_exp, lambda x, y: y)

    def log(self) -> "Column":
        return self._one(_log, lambda x, y: _divided(1.0, x))

    def sqrt(self) -> "Column":
        return self._one(lambda x: math.sqrt(x) if x >= 0 else math.nan, lambda x, y: _divided(0.5, y))

    def square(self) -> "Column":
        return self * self

    def tanh(self) -> "Column":
        return self._one(math.tanh, lambda x, y: 1.0 - y * y)

    def sigmoid(self) -> "Column":
        return self._one(_sigmoid, lambda x, y: y * (1.0 - y))

    def logsigmoid(self) -> "Column":
        return self._one(lambda x: -_softplus(-x), lambda x, y: _sigmoid(-x))

    def softplus(self) -> "Column":
        return self._one(_softplus, lambda x, y: _sigmoid(x))

    def clamp(self, min=None, max=None) -> "Column":
        """Returns the numbers, none smaller than `min` or larger than `max`, which may be columns. The derivative is 0 outside."""
        low = self if min is None else _bounded(self, min, lt)
        return low if max is None else _bounded(low, max, gt)

    def sum(self, dim: int | None = None) -> "Column":
        """Returns the sum of all, or with `dim=-1` of each sequence's tokens or each group's sequences."""
        return self._gathered("number" if dim is None else self._wider(dim))

    def mean(self, dim: int | None = None) -> "Column":
        """Returns the mean over the whole step, of which this batch holds a part: over tokens whose mask is 1, over sequences or pairs. With
        `dim=-1`, the mean of each sequence's tokens whose mask is 1, or of each group's sequences."""
        layout = self.layout
        if self.unit == "token":
            counted = self * Column(layout.mask, "token", layout)
            if dim is None:
                return counted.sum() / max(layout.total, 1.0)
            lengths = [max(n, 1.0) for n in layout.gathered(layout.mask, "token", "sequence")]
            return counted.sum(dim) / Column(lengths, "sequence", layout)
        if dim is None:
            return self.sum() / max(layout.items, 1.0)
        sizes = [float(end - start) for start, end in zip(layout.groups, layout.groups[1:])]
        return self.sum(dim) / Column(sizes, "group", layout)

    def _wider(self, dim: int) -> str:
        if dim not in (-1, 1) or self.unit not in ("token", "sequence"):
            raise ValueError(
                f"a column of {self.unit}s has no dimension {dim}: sum(-1) is over a sequence's tokens or a group's sequences"
            )
        return "sequence" if self.unit == "token" else "group"

    def _gathered(self, to: str) -> "Column":
        if self.unit == "prompt_token":
            values = [sum(self.values)]
            return Column(values, "number", self.layout, [(self, lambda g: g * len(self.values))])
        values = self.layout.gathered(self.values, self.unit, to)
        return Column(values, to, self.layout, [(self, lambda g: self.layout.spread(g, to, self.unit))])


def _column(value, layout: Layout) -> Column:
    if isinstance(value, Column):
        return value
    if isinstance(value, (int, float)):
        return Column([float(value)], "number", layout)
    raise TypeError(f"a column can't be combined with {type(value).__name__}")


def _fitted(a, b) -> tuple[Column, Column]:
    """Brings two columns to the same unit."""
    layout = a.layout if isinstance(a, Column) else b.layout
    a, b = _column(a, layout), _column(b, layout)
    if a.unit == b.unit:
        return a, b
    unit = max(a.unit, b.unit, key=ORDER.__getitem__)
    if unit == "prompt_token" and "number" not in (a.unit, b.unit):
        raise TypeError(f"columns of {a.unit}s and of {b.unit}s don't fit together")
    return _spread(a, unit), _spread(b, unit)


def _spread(column: Column, to: str) -> Column:
    if column.unit == to:
        return column
    layout, unit = column.layout, column.unit
    if to == "prompt_token":
        raise TypeError("a number and a column of prompt tokens: write the number without log_metric or sums")
    return Column(layout.spread(column.values, unit, to), to, layout, [(column, lambda g: layout.gathered(g, to, unit))])


def _two(a, b, function, by_a, by_b) -> Column:
    if not isinstance(b, (Column, int, float)):
        return NotImplemented
    if isinstance(b, (int, float)):
        # The usual case, without a column of the number.
        other = [float(b)] * len(a.values)
        return Column(list(map(function, a.values, other)), a.unit, a.layout, [(a, lambda g: by_a(g, a.values, other))])
    a, b = _fitted(a, b)
    values = list(map(function, a.values, b.values))
    return Column(
        values, a.unit, a.layout, [(a, lambda g: by_a(g, a.values, b.values)), (b, lambda g: by_b(g, a.values, b.values))]
    )


def _condition(a, b, function) -> Column:
    a, b = _fitted(a, b)
    return Column(list(map(function, a.values, b.values)), a.unit, a.layout)


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.copysign(INFINITY, a) * math.copysign(1.0, b) if a else math.nan


def _by_dividend(g, a, b):
    return list(map(_divided, g, b))


def _by_divisor(g, a, b):
    return [-_divided(d * x, y * y) for d, x, y in zip(g, a, b)]


def _power(x: float, exponent: float) -> float:
    try:
        return math.pow(x, exponent)
    except OverflowError:
        return INFINITY
    except ValueError:
        return math.nan if x else INFINITY


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.78 else INFINITY if x == x else x


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -INFINITY if x == 0 else math.nan


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + _exp(-x)) if x > -700 else _exp(x)


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(_exp(-abs(x)))


def _chosen(a, b, is_first) -> Column:
    """Takes each entry of the first column where it is, else of the second. Where both are alike, each gets half of the derivative."""
    a, b = _fitted(a, b)
    values = [x if is_first(x, y) else y for x, y in zip(a.values, b.values)]
    shares = [0.5 if x == y else float(is_first(x, y)) for x, y in zip(a.values, b.values)]
    rest = [1.0 - share for share in shares]
    return Column(values, a.unit, a.layout, [(a, lambda g: list(map(mul, g, shares))), (b, lambda g: list(map(mul, g, rest)))])


def _bounded(a, bound, is_outside) -> Column:
    """Takes the bound where an entry is outside of it. On the bound, the entry keeps its derivative."""
    a, bound = _fitted(a, bound)
    outside = [is_outside(x, y) for x, y in zip(a.values, bound.values)]
    return Column(
        [y if out else x for x, y, out in zip(a.values, bound.values, outside)],
        a.unit,
        a.layout,
        [
            (a, lambda g: [0.0 if out else d for d, out in zip(g, outside)]),
            (bound, lambda g: [d if out else 0.0 for d, out in zip(g, outside)]),
        ],
    )


def minimum(a, b):
    """Returns the smaller of each two."""
    if not isinstance(a, Column) and not isinstance(b, Column):
        return min(a, b)
    return _chosen(a, b, lambda x, y: x < y or x != x)


def maximum(a, b):
    """Returns the larger of each two."""
    if not isinstance(a, Column) and not isinstance(b, Column):
        return max(a, b)
    return _chosen(a, b, lambda x, y: gt(x, y) or x != x)


def where(condition: Column, a, b) -> Column:
    """Returns `a` where the condition is not 0, else `b`."""
    layout = condition.layout
    a, b = _fitted(_column(a, layout), _column(b, layout))
    if ORDER[a.unit] < ORDER[condition.unit]:
        a, b = _spread(a, condition.unit), _spread(b, condition.unit)
    condition = _spread(condition, a.unit)
    holds = [bool(x) for x in condition.values]
    values = [x if h else y for h, x, y in zip(holds, a.values, b.values)]
    return Column(
        values,
        a.unit,
        layout,
        [
            (a, lambda g: [d if h else 0.0 for d, h in zip(g, holds)]),
            (b, lambda g: [0.0 if h else d for d, h in zip(g, holds)]),
        ],
    )


def _function(name: str, of_number):
    def function(x):
        return getattr(x, name)() if isinstance(x, Column) else of_number(x)

    function.__name__ = function.__qualname__ = name
    return function


exp = _function("exp", _exp)
log = _function("log", _log)
sqrt = _function("sqrt", math.sqrt)
tanh = _function("tanh", math.tanh)
sigmoid = _function("sigmoid", _sigmoid)
logsigmoid = _function("logsigmoid", lambda x: -_softplus(-x))
softplus = _function("softplus", _softplus)


def clamp(x, min=None, max=None):
    """Returns the numbers, none smaller than `min` or larger than `max`."""
    if isinstance(x, Column):
        return x.clamp(min, max)
    low = x if min is None or x > min else min
    return low if max is None or low < max else max


def detach(x):
    """Returns the same numbers as constants."""
    return x.detach() if isinstance(x, Column) else x


def _ordered(result: Column) -> list[Column]:
    """Returns all that a column was made of, each before what it was made of itself."""
    done, waiting, order = set(), [(result, False)], []
    while waiting:
        column, is_left = waiting.pop()
        if is_left:
            order.append(column)
        elif id(column) not in done:
            done.add(id(column))
            waiting.append((column, True))
            waiting += [(parent, False) for parent, _ in column.parents if id(parent) not in done]
    return order[::-1]


def derivatives(result: Column, by: dict[str, Column]) -> dict[str, list[float]]:
    """Returns the derivatives of a column with one number by others' entries, for those that have any influence."""
    found = {id(result): [1.0]}
    for column in _ordered(result):
        g = found.get(id(column))
        if g is None:
            continue
        for parent, back in column.parents:
            given = back(g)
            old = found.get(id(parent))
            found[id(parent)] = given if old is None else list(map(add, old, given))
    return {name: found[id(column)] for name, column in by.items() if id(column) in found}
