"""Calls of `teacher_prompts`, which writes what a teacher reads."""

import inspect
import json
import random

from .algorithms import Measured, ResultError
from .batches import PromptingSignature
from .calls import BatchError
from .guard import called, plain
from .loop import awaited

class Prompting:
    """A function `teacher_prompts(questions, completions, rewards, **columns)` with its settings."""

    def __init__(self, function, name: str, settings: dict):
        self.function, self.name, self.settings = function, name, settings
        self.signature = PromptingSignature(function)

    def write(self, generation) -> tuple[list[str | None], Measured]:
        """Returns a question for the teacher for each completion, None where it reads the policy's prompt, and metrics."""
        measured = Measured()
        random.seed(generation.seed)
        answer = called(self.function, **(self.settings | self._inputs(generation, measured.log) | self._columns(generation)))
        answer = awaited(answer) if inspect.isawaitable(answer) else answer
        if isinstance(answer, (str, bytes, dict, set)) or not hasattr(answer, "__iter__"):
            raise ResultError(f"{self.name} returned {type(answer).__name__}, not a list")
        questions, count = list(answer), len(generation.completions)
        if len(questions) != count:
            raise ResultError(f"{self.name} returned {len(questions)} questions for {count} completions")
        wrong = next((at for at, text in enumerate(questions) if text is not None and not isinstance(text, str)), None)
        if wrong is not None:
            raise ResultError(f"{self.name} returned {type(questions[wrong]).__name__} for completion {wrong}, not a text or None")
        return [None if text is None else plain(text) for text in questions], measured

    def _inputs(self, generation, log_metric) -> dict:
        prompt_of = generation.prompt_of
        make = {
            "questions": lambda: [generation.questions[prompt] for prompt in prompt_of],
            "completions": lambda: generation.completions,
            "rewards": lambda: generation.rewards,
            "finished": lambda: generation.finished,
            "groups": lambda: _groups(prompt_of),
            "step": lambda: generation.step,
            "log_metric": lambda: log_metric,
        }
        names = [name for name in PromptingSignature.INPUTS if name != "log_metric"] if self.signature.rest else self.signature.taken
        return {name: make[name]() for name in [*names, *(n for n in self.signature.taken if n not in names)]}

    def _columns(self, generation) -> dict[str, list]:
        """Returns the dataset's columns that the function takes, a value for each completion."""
        signature, given = self.signature, {column.name: column.values for column in generation.columns}
        missing = [name for name in signature.columns if name not in given]
        if missing:
            raise BatchError(
                f"{self.name} takes {missing[0]}, which is no column of the dataset; it has: {', '.join(given) or 'none besides prompt'}"
            )
        wanted = given if signature.rest else [*signature.columns, *signature.optional]
        read = {name: [json.loads(value) for value in given[name]] for name in wanted if name in given and name not in PromptingSignature.INPUTS}
        return {name: [values[prompt] for prompt in generation.prompt_of] for name, values in read.items()}


def _groups(prompt_of: list[int]) -> list[range]:
    """Returns the places of each prompt's completions."""
    starts = [at for at, prompt in enumerate(prompt_of) if at == 0 or prompt != prompt_of[at - 1]]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(prompt_of)])]
