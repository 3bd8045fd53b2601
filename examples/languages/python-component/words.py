"""Prefers completions of a target number of words: -|words - target|, none without a word."""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.plugin import Info
from wit_world.exports.reward import Batch, Scores
from wit_world.imports.types import Error_Config

SCHEMA = {
    "type": "object",
    "properties": {
        "target": {
            "description": "The number of words that scores highest.",
            "type": "integer",
            "minimum": 0,
            "default": 20,
        },
    },
    "additionalProperties": False,
}

# str.split() without arguments would split at spaces beyond ASCII too.
TO_SPACES = str.maketrans("\t\n\r\v\f", "     ")

target = 20


def is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def count_words(text: str) -> int:
    return sum(1 for word in text.translate(TO_SPACES).split(" ") if word)


class Plugin(exports.Plugin):
    def describe(self) -> Info:
        return Info(
            name="words-python-component",
            version="0.1.0",
            description="Prefers completions of a target number of words",
            config_schema=json.dumps(SCHEMA),
            needs=["completion_text", "dataset_columns"],
            stateless=True,
        )

    def configure(self, config: str) -> None:
        global target
        try:
            settings = json.loads(config)
        except ValueError as error:
            raise Err(Error_Config(str(error)))
        if not isinstance(settings, dict) or settings.keys() - {"target"}:
            raise Err(Error_Config("expected an object with no key but target"))
        given = settings.get("target", 20)
        if not is_integer(given) or given < 0:
            raise Err(Error_Config("target must be an integer from 0"))
        target = given


class Reward(exports.Reward):
    def score(self, batch: Batch) -> Scores:
        targets = [target] * len(batch.prompts)
        for column in batch.columns:
            if column.name == "target":
                values = map(json.loads, column.values)
                targets = [value if is_integer(value) else target for value in values]
        rewards = []
        for prompt, completion in zip(batch.prompt_of, batch.completions, strict=True):
            words = count_words(completion)
            rewards.append(float(-abs(words - targets[prompt])) if words else None)
        return Scores(rewards, metrics=[])
