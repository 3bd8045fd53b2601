"""What a script may import from rlhost: functions of columns, for losses."""

from rlhost_interpreter.columns import (
    Column,
    clamp,
    detach,
    exp,
    log,
    logsigmoid,
    maximum,
    minimum,
    sigmoid,
    softplus,
    sqrt,
    tanh,
    where,
)

__all__ = [
    "Column",
    "clamp",
    "detach",
    "exp",
    "log",
    "logsigmoid",
    "maximum",
    "minimum",
    "sigmoid",
    "softplus",
    "sqrt",
    "tanh",
    "where",
]
