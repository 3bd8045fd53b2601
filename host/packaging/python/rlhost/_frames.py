"""Turns lists of rows into data frames."""

import json
from typing import Any, Dict, List

Rows = List[Dict[str, Any]]

FRAMES = ("auto", "pandas", "polars", "none")


def frame(rows: Rows, kind: str) -> Any:
    """Returns a data frame of rows, or the rows themselves. Values within objects get columns of their own, as in ``rewards/NAME``."""
    if kind == "none":
        return rows
    if kind in ("auto", "pandas"):
        try:
            import pandas
        except ImportError:
            if kind == "pandas":
                raise
        else:
            return pandas.DataFrame.from_records([flat(row) for row in rows], columns=_columns(rows))
    try:
        import polars
    except ImportError:
        if kind == "polars":
            raise
        return rows
    columns = _columns(rows)
    flattened = [flat(row) for row in rows]
    data = {name: _series(polars, name, [row.get(name) for row in flattened]) for name in columns}
    return polars.DataFrame(data)


def _series(polars: Any, name: str, values: List[Any]) -> Any:
    """Returns a column of polars, all of whose values are of one type: what is nested becomes JSON."""
    if any(isinstance(value, (list, dict)) for value in values):
        values = [value if value is None else json.dumps(value) for value in values]
    elif any(isinstance(value, float) for value in values) and all(
        value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)) for value in values
    ):
        values = [value if value is None else float(value) for value in values]
    elif len({type(value) for value in values if value is not None}) > 1:
        values = [value if value is None else json.dumps(value) for value in values]
    return polars.Series(name, values, strict=False)


def flat(row: Dict[str, Any]) -> Dict[str, Any]:
    """Returns a row without objects: what they have gets the keys ``OUTER/INNER``."""
    result: Dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            for inner, part in value.items():
                result[f"{key}/{inner}"] = part
        else:
            result[key] = value
    return result


def _columns(rows: Rows) -> List[str]:
    """Returns the keys of all rows, each once, in the order in which they come."""
    columns: Dict[str, None] = {}
    for row in rows:
        for key in flat(row):
            columns.setdefault(key)
    return list(columns)
