"""What an estimator's and a loss's function is called with: the contract's batch of grouped sequences, as lists and columns."""

import inspect
from .columns import Column, Layout
from .signatures import Arguments, SignatureError, parameters_of

# Columns that the host knows, each with its unit, for the two kinds of calls.
GENERATION = {
    "old_logp": "token",
    "ref_logp": "token",
    "teacher_logp": "token",
    "sampling_logp": "token",
    "old_value": "token",
    "has_teacher_prompt": "sequence",
    "finished": "sequence",
    "turn_reward": "turn",
}
LOSS = {
    "logp": "token",
    "old_logp": "token",
    "ref_logp": "token",
    "teacher_logp": "token",
    "forward_kl": "token",
    "jensen_shannon": "token",
    "reverse_kl": "token",
    "sampling_logp": "token",
    "entropy": "token",
    "mean_logits": "token",
    "log_sum_squares": "token",
    "prompt_logp": "prompt_token",
    "value": "token",
    "old_value": "token",
    "sequence_value": "sequence",
    "label": "sequence",
    "margin": "group",
    "has_teacher_prompt": "sequence",
    "finished": "sequence",
}
# Divergences from the teacher, whose names in the contract are no identifiers.
DIVERGENCES = {"forward_kl": "teacher_divergence/0", "jensen_shannon": "teacher_divergence/0.5", "reverse_kl": "teacher_divergence/1"}
ARGUMENTS = {column: argument for argument, column in DIVERGENCES.items()}
DIFFERENTIATED = ("logp", *DIVERGENCES, "entropy", "value", "prompt_logp", "sequence_value")
# Whole columns of pairs: `chosen_logp` is the sum of the chosen sequence's `logp`.
OF_PAIRS = ("chosen_", "rejected_")


def _divided(values: list, offsets: list[int]) -> list[list]:
    return [list(values[start:end]) for start, end in zip(offsets, offsets[1:])]


def _with_missing(column) -> list:
    values = list(column.values)
    for at in column.missing:
        values[at] = None
    return values


def advantages(rewards, groups):
    """Gives each completion its reward, centred on its group's mean and divided by its deviation: what a loss that takes `advantage` gets if
    its script has no function of that name."""
    found = [0.0] * len(rewards)
    for group in groups:
        scored = [at for at in group if rewards[at] is not None]
        if len(scored) < 2:
            continue
        mean = sum(rewards[at] for at in scored) / len(scored)
        deviation = (sum((rewards[at] - mean) ** 2 for at in scored) / (len(scored) - 1)) ** 0.5
        for at in scored:
            found[at] = (rewards[at] - mean) / (deviation + 1e-4)
    return found


class Generation:
    """What `advantages` is called with."""

    INPUTS = (
        "rewards",
        "groups",
        "rewards_by_name",
        "weights",
        "step",
        "mask",
        "lengths",
        "max_completion_length",
        "turns",
        "log_metric",
    )

    def __init__(self, batch, rewards: list):
        self.batch = batch
        self.given = {column.name: column for column in batch.columns}
        self.weights = {reward.name: reward.weight for reward in rewards}

    def by_name(self) -> dict[str, list]:
        """Returns the scores of each reward; None where it has no opinion."""
        return {name: _with_missing(self.given[f"reward/{name}"]) for name in self.weights if f"reward/{name}" in self.given}

    def rewards(self) -> list:
        """Returns the weighted sum of each completion's scores, None where no reward has one."""
        sums: list = [None] * (len(self.batch.tokens) - 1)
        for name, scores in self.by_name().items():
            for at, score in enumerate(scores):
                if score is not None:
                    sums[at] = (sums[at] or 0.0) + self.weights[name] * score
        return sums

    def groups(self) -> list[range]:
        """Returns the places of each prompt's completions."""
        return [range(start, end) for start, end in zip(self.batch.groups, self.batch.groups[1:])]

    def turns(self) -> list[list]:
        """Returns for each completion its turns: where each begins and ends among the completion's tokens."""
        found: list[list] = [[] for _ in range(len(self.batch.tokens) - 1)]
        for turn in self.batch.turns:
            first = self.batch.tokens[turn.sequence]
            found[turn.sequence].append((turn.start - first, turn.end - first))
        return found

    def turn_rewards(self) -> dict[str, list]:
        """Returns for each environment and completion the rewards of its turns."""
        found = {}
        for name, column in self.given.items():
            if name.startswith("turn_reward/"):
                rewards: list[list] = [[] for _ in range(len(self.batch.tokens) - 1)]
                for turn, reward in zip(self.batch.turns, _with_missing(column)):
                    rewards[turn.sequence].append(reward)
                found[name.removeprefix("turn_reward/")] = rewards
        return found

    def column(self, name: str):
        """Returns a column of the generation, with a list for each completion if it has a value per token; None if it is not there."""
        if name == "turn_reward":
            return self.turn_rewards()
        if name not in self.given:
            return None
        column = self.given[name]
        values = _with_missing(column)
        return _divided(values, self.batch.tokens) if GENERATION[name] == "token" else values

    def inputs(self, names: list[str], log_metric) -> dict:
        batch = self.batch
        make = {
            "rewards": self.rewards,
            "groups": self.groups,
            "rewards_by_name": self.by_name,
            "weights": lambda: self.weights,
            "step": lambda: batch.step,
            "mask": lambda: _divided(batch.mask, batch.tokens),
            "lengths": lambda: [end - start for start, end in zip(batch.tokens, batch.tokens[1:])],
            "max_completion_length": lambda: batch.scale.max_completion_length,
            "turns": self.turns,
            "log_metric": lambda: log_metric,
        }
        return {name: make[name]() if name in make else self.column(name) for name in names}


class EstimatorSignature(Arguments):
    """How `advantages` is called."""

    def __init__(self, function):
        super().__init__(function, (*Generation.INPUTS, *GENERATION))
        if self.columns:
            known = ", ".join((*Generation.INPUTS, *GENERATION))
            raise SignatureError(f"it takes {self.columns[0]}, which is not known in a generation; known are: {known}")
        if self.rest:
            self.taken += [name for name in ("rewards", "groups", "finished") if name not in self.taken]
        optional = [name for name in self.taken if parameters_of(function).get(name) is not None]
        self.required = [name for name in optional if parameters_of(function)[name].default is inspect.Parameter.empty]

    def needs(self) -> list[str]:
        return [name for name in GENERATION if name in self.taken]


class PromptingSignature(Arguments):
    """How `teacher_prompts` is called."""

    INPUTS = ("questions", "completions", "rewards", "finished", "groups", "step", "log_metric")

    def __init__(self, function):
        super().__init__(function, self.INPUTS)


class LossSignature(Arguments):
    """How `loss` is called."""

    INPUTS = ("mask", "step", "log_metric", "items", "tokens", "max_completion_length")

    def __init__(self, function, estimates: list[str]):
        names = list(parameters_of(function))
        self.pairs = [name for name in names if name.startswith(OF_PAIRS)]
        unknown = [name for name in self.pairs if self.source_of(name) not in (*LOSS, "length")]
        if unknown:
            raise SignatureError(
                f"it takes {unknown[0]}, which is no column; known are chosen_logp, chosen_ref_logp, chosen_length and the like"
            )
        self.estimates = estimates
        super().__init__(function, (*self.INPUTS, *LOSS, *estimates, *self.pairs))
        if self.columns:
            known = ", ".join((*LOSS, *estimates, *self.INPUTS))
            raise SignatureError(f"it takes {self.columns[0]}, which is no column; known are: {known}")
        if not {self.source_of(name) for name in self.taken} & set(DIFFERENTIATED):
            raise SignatureError(
                f"it takes no column with derivatives: {', '.join(DIFFERENTIATED)}, or chosen_logp and rejected_logp"
            )

    @staticmethod
    def source_of(name: str) -> str:
        """Returns the column that an argument is made of."""
        return next((name.removeprefix(prefix) for prefix in OF_PAIRS if name.startswith(prefix)), name)

    def needs(self) -> list[str]:
        wanted = {self.source_of(name) for name in self.taken}
        return [DIVERGENCES.get(name, name) for name in (*LOSS, *self.estimates) if name in wanted]


class Learned:
    """What `loss` is called with."""

    def __init__(self, batch, differentiated: set[str]):
        self.batch = batch
        self.layout = Layout(
            list(batch.tokens),
            list(batch.groups),
            [float(m) for m in batch.mask],
            float(batch.scale.items),
            float(batch.scale.tokens),
        )
        self.layout.sizes["prompt_token"] = batch.prompt_tokens[-1] if batch.prompt_tokens else 0
        self.columns = {}
        for column in batch.columns:
            name = ARGUMENTS.get(column.name, column.name)
            unit = LOSS.get(name) or ("token" if len(column.values) == self.layout.sizes["token"] else "sequence")
            self.columns[name] = Column(list(column.values), unit, self.layout, tracked=name in differentiated)
        self.mask = Column(self.layout.mask, "token", self.layout)

    def _of_pair(self, name: str) -> Column | None:
        """Returns an argument of pairs: for each pair the sum over the tokens of one of its sequences."""
        source = LossSignature.source_of(name)
        counted = self.mask if source == "length" else self.columns.get(source)
        if counted is None:
            return None
        if counted.unit == "token":
            counted = (counted * self.mask).sum(-1)
        is_chosen = name.startswith("chosen_")
        picked = [0.0] * self.layout.sizes["sequence"]
        for start in self.layout.groups[:-1]:
            picked[start if is_chosen else start + 1] = 1.0
        return (counted * Column(picked, "sequence", self.layout)).sum(-1)

    def inputs(self, names: list[str], log_metric) -> dict:
        scale = self.batch.scale
        make = {
            "mask": self.mask,
            "step": self.batch.step,
            "items": scale.items,
            "tokens": scale.tokens,
            "max_completion_length": scale.max_completion_length,
            "log_metric": log_metric,
        }
        found = {}
        for name in names:
            value = make[name] if name in make else self._of_pair(name) if name.startswith(OF_PAIRS) else self.columns.get(name)
            if value is not None:
                found[name] = value
        return found
