"""Prefers completions of a target number of words. Save the file while a run uses it, and the run goes on with what it says then."""


def words_python(completion: str, target: int = 20) -> float | None:
    """Prefers completions of a target number of words."""
    words = len(completion.split())
    # None is no score: the completion is left out of its group.
    return -abs(words - target) if words else None
