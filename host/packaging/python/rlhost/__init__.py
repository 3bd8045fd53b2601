"""Reads the folders of rlhost's runs. The program itself is the command ``rlhost``.

>>> import rlhost
>>> run = rlhost.read_run("runs/demo")
>>> run.training        # a row for each logged step
>>> run.evaluations     # a row for each evaluation
>>> run.completions     # a row for each completion

These are data frames of pandas, or of polars if only that is installed, or else lists of dicts. Nothing but the folder's files is read.
"""

from ._run import Run, RunError, read_run

__all__ = ["Run", "RunError", "read_run"]
