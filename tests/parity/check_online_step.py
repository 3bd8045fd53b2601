#!/usr/bin/env python3
"""Train on the same completions with TRL's own GRPO and RLOO and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/parity/check_online_step.py target/debug/rlhost [--only NAME] [--all]

For each setting: the two tiny random models of trl_steps.py, with an ending token that is
likelier than others, the same prompts in the same order, three optimizer steps with micro-batches
of 8 completions, 4 to a prompt, without accumulation and with an accumulation of 2. rlhost runs
first and logs its completions and their rewards. TRL's trainer then trains on these: it reads and
tokenizes the prompts itself, and gets the completions where it would generate, and the rewards
where it would call a reward function. Both in f32 on the CPU, AdamW at a rate that falls from step
to step, gradients clipped at 1. AdamW's epsilon is 1e-5, since a smaller one makes updates of full
size of gradients that are mere rounding: with 1e-6 some figures of the third step differ by 1e-4,
which TRL in f32 does from TRL in f64 too. The last output is check_online_step.txt beside this file.

Most cases train on each generation twice: steps 1 and 3 are on-policy and step 2 is not, so that
its ratios are clipped. Compared after each step are all figures that TRL logs but `step_time`,
those of each generation's completions and rewards as well, each advantage, and the weights. The
prompts' tokens and the completions' texts must be the same.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-5 of their
norm. The loss, whose terms may cancel, is measured by the mean size of the advantages at least, and
`kl` by 1e-2 at least, since its terms have no more digits in f32, `grad_norm` by 1e-3 and anything
by 1e-6: what cancels, a gradient where all is clipped or advantages of equal rewards, may leave
1e-8 of a norm and 1e-10 of an advantage in TRL's f32. Weights are held to their updates too, as
check_grpo_step.py says.

What is defined differently is put right on TRL's side:
- TRL shuffles a generation's completions before it cuts it into micro-batches, rlhost whole groups.
  TRL takes rlhost's order.
- TRL logs the mean of its micro-batches' figures. Here they are weighed as in rlhost, by their
  tokens or completions, and `clip_ratio/low_min` and `high_max` are the step's least and greatest.
- `bnpo` and the entropy bonus are means over a micro-batch's tokens in TRL, over the step's in
  rlhost. In these cases TRL has a batch of 16 where rlhost accumulates two of 8.
- `dapo` and its kin are divided by the step's tokens in rlhost; in TRL, where a generation supplies
  several steps, by the mean of theirs. TRL gets the step's number in that case.
- An adaptive `entropy_coef` is logged by TRL as the next step's, by rlhost as the step's own. They
  are compared one step apart.
- Lengths of ended completions are 0 in TRL and absent in rlhost where none has ended.
"""

import math
import sys
from collections import defaultdict

from trl_steps import (
    EOS, MODELS, STEPS, TRL, Case, main, make_model, make_rows, read_lines, run_rlhost, train, write_lines)
import datasets
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.trainer import grpo_trainer, rloo_trainer

BATCH, GENERATIONS, LENGTH, EPSILON, LEAST, WEIGHT_TOLERANCE = 8, 4, 24, 1e-5, 1e-6, 1e-5
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# By how much the ending token's row of the output matrix is longer than others.
ENDING = 4.0
TARGET = {"tldr_length_reward": {"config": {"target": 20, "unit": "characters"}}}
WORDING = {"config": {"blocklist": ["q", "x", "the"], "allowlist": ["a", "e", "in"], "whole_words": False}, "weight": 0.3}
SEVERAL = TARGET | {"keyword_reward": WORDING}
# Every third prompt has no reference and so no reward from it.
SCARCE = {"rouge_reward": {}}
ONCE, TWICE, OFTEN = {}, {"num_iterations": 2}, {"num_iterations": 3}
# Name, algorithm, settings of the loss, settings of the run that both have under one name, and
# what else is special: rewards, the chat template, the batch that TRL has in one.
CASES = [
    ("grpo", "grpo", {"loss_type": "grpo"}, TWICE, {}),
    ("bnpo", "grpo", {"loss_type": "bnpo"}, TWICE, {"in_one": True}),
    ("dr_grpo", "grpo", {"loss_type": "dr_grpo"}, TWICE, {}),
    ("dapo", "grpo", {"loss_type": "dapo"}, TWICE, {}),
    ("cispo", "grpo", {"loss_type": "cispo", "epsilon_high": 0.1}, TWICE, {}),
    ("sapo", "grpo", {"loss_type": "sapo"}, TWICE, {}),
    ("vespo", "grpo", {"loss_type": "vespo"}, TWICE, {}),
    ("luspo", "grpo", {"loss_type": "luspo", "importance_sampling_level": "sequence"}, TWICE, {}),
    ("grpo on-policy", "grpo", {"loss_type": "grpo"}, ONCE, {}),
    ("grpo 3 iterations", "grpo", {"loss_type": "grpo"}, OFTEN, {}),
    ("grpo 2 steps each", "grpo", {"loss_type": "grpo"}, {"steps_per_generation": 2}, {}),
    ("dapo 2 steps each", "grpo", {"loss_type": "dapo"}, {"steps_per_generation": 2}, {}),
    ("grpo beta", "grpo", {"loss_type": "grpo", "beta": 0.04}, TWICE, {}),
    ("dapo beta", "grpo", {"loss_type": "dapo", "beta": 0.04}, ONCE, {}),
    ("cispo beta", "grpo", {"loss_type": "cispo", "epsilon_high": 5.0, "beta": 0.04}, TWICE, {}),
    ("dapo beta uncorrected", "grpo", {"beta": 0.04, "use_bias_correction_kl": False}, TWICE, {}),
    ("dapo beta, ref synced", "grpo", {"beta": 0.4}, {"sync_ref_model": True, "ref_model_sync_steps": 1}, {}),
    ("sequence", "grpo", {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.01}, TWICE, {}),
    ("sequence beta", "grpo", {"importance_sampling_level": "sequence", "beta": 0.04}, TWICE, {}),
    ("scale batch", "grpo", {"scale_rewards": "batch"}, TWICE, {}),
    ("scale none", "grpo", {"scale_rewards": "none"}, TWICE, {}),
    ("masked grpo", "grpo", {"loss_type": "grpo", "mask_truncated_completions": True}, TWICE, {}),
    ("masked dapo beta", "grpo", {"mask_truncated_completions": True, "beta": 0.04}, TWICE, {}),
    ("masked sequence", "grpo", {"mask_truncated_completions": True, "importance_sampling_level": "sequence"}, TWICE, {}),
    ("epsilon_high, delta", "grpo", {"epsilon": 0.05, "epsilon_high": 0.1, "delta": 1.15}, TWICE, {}),
    ("off-policy mask", "grpo", {"off_policy_mask_threshold": 0.05}, TWICE, {}),
    ("top entropy", "grpo", {"top_entropy_quantile": 0.3}, TWICE, {}),
    ("entropy bonus", "grpo", {"entropy_coef": 0.02}, TWICE, {"in_one": True}),
    ("entropy adaptive", "grpo", {"use_adaptive_entropy": True, "entropy_target": 9.0, "entropy_coef_delta": 0.1}, TWICE,
     {"in_one": True}),
    ("temperature 0.7", "grpo", {"beta": 0.04}, TWICE | {"temperature": 0.7}, {}),
    ("weight decay", "grpo", {}, TWICE | {"weight_decay": 0.1}, {}),
    ("two rewards", "grpo", {}, TWICE, {"rewards": SEVERAL}),
    ("normalize_then_sum", "grpo", {"multi_objective_aggregation": "normalize_then_sum"}, TWICE, {"rewards": SEVERAL}),
    ("unscorable", "grpo", {}, TWICE, {"rewards": SCARCE}),
    ("chat", "grpo", {}, TWICE, {"template": "chat"}),
    ("rloo", "rloo", {}, TWICE, {}),
    ("rloo on-policy", "rloo", {}, ONCE, {}),
    ("rloo 2 steps each", "rloo", {}, {"steps_per_generation": 2}, {}),
    ("rloo beta 0", "rloo", {"beta": 0.0}, TWICE, {}),
    ("rloo beta 2", "rloo", {"beta": 2.0}, ONCE, {}),
    ("rloo normalized", "rloo", {"normalize_advantages": True}, TWICE, {}),
    ("rloo clipped rewards", "rloo", {"reward_clip_range": [-15.0, -5.0]}, TWICE, {}),
    ("rloo epsilon_high", "rloo", {"epsilon": 0.05, "epsilon_high": 0.3}, TWICE, {}),
    ("rloo masked", "rloo", {"mask_truncated_completions": True}, TWICE, {}),
    ("rloo temperature 0.7", "rloo", {}, TWICE | {"temperature": 0.7}, {}),
    ("rloo two rewards", "rloo", {}, TWICE, {"rewards": SEVERAL}),
    ("rloo unscorable", "rloo", {}, TWICE, {"rewards": SCARCE}),
    ("rloo chat", "rloo", {}, TWICE, {"template": "chat"}),
]


def make_policy(folder, kind, rows, template):
    """The model of trl_steps.py, which ends about half of its completions in time."""
    make_model(folder, kind, rows, template)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight[model.config.eos_token_id] *= ENDING
    model.save_pretrained(folder)


def rows_of(rows, template):
    """Prompts with a text to resemble, which every third lacks. Random texts have single letters most often."""
    prompts = (row["prompt"] for row in rows)
    if template:
        prompts = ([{"role": "user", "content": prompt.strip()}] for prompt in prompts)
    references = (" ".join([*LETTERS, row["chosen"].removesuffix(EOS)]) for row in rows)
    pairs = enumerate(zip(prompts, references))
    return [{"prompt": prompt} | ({"reference": text} if i % 3 else {}) for i, (prompt, text) in pairs]


def train_rlhost(binary, algorithm, model, dataset, out, accumulation, settings, run, rewards):
    flags = {"log-completions": "all", "per-device-train-batch-size": BATCH, "gradient-accumulation-steps": accumulation,
             "num-generations": GENERATIONS, "max-completion-length": LENGTH, "adam-epsilon": EPSILON}
    tables = {"loss": settings} | {f"plugin.{name}": given for name, given in rewards.items()}
    given = run | {f"{table}.{key}": value for table, keys in tables.items() for key, value in flat(keys)}
    plugins = [part for name in rewards for part in ("--plugin", f"{name}.wasm")]
    metrics = run_rlhost([binary, "train", "--algorithm", algorithm, *plugins], model, dataset, out, flags, given)
    generations = defaultdict(list)
    for row in read_lines(out / "completions.jsonl"):
        generations[row["step"]].append(row)
    return metrics, list(generations.values())


def flat(table, before=""):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def must_agree(what, got, want):
    if got != want:
        sys.exit(f"{what} differ, rlhost's and TRL's:\n{got}\n{want}")


class Fed:
    """A trainer of TRL's that gets another's completions in the place of its own."""

    def __init__(self, *args, generations, rewards, report, by_rows, **kw):
        self.generations, self.rows, self.report, self.by_rows = iter(generations), None, report, by_rows
        self.weighed, self.sizes = defaultdict(list), []
        super().__init__(*args, reward_funcs=[self.looking_up(name) for name in rewards], **kw)

    def looking_up(self, name):
        def reward(completions, **_):
            texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
            must_agree("completions", [row["completion"] for row in self.rows], texts)
            return [row["rewards"][name] for row in self.rows]

        reward.__name__ = name
        return reward

    def fed(self, prompt_ids):
        rows = next(self.generations)
        # TRL has the dataset's order here, and takes rlhost's when it cuts.
        waiting = defaultdict(list)
        for i, row in enumerate(rows):
            waiting[tuple(row["prompt_ids"])].append(i)
        places = [waiting[tuple(prompt)].pop(0) if waiting[tuple(prompt)] else -1 for prompt in prompt_ids]
        Fed.order = sorted(range(len(places)), key=places.__getitem__)
        self.rows = [rows[i] for i in places]
        must_agree("prompts", [row["prompt_ids"] for row in self.rows], prompt_ids)
        return [row["completion_ids"] for row in self.rows]

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        advantages = batch["advantages"].tolist()
        size = max(LEAST, *map(abs, advantages))
        for i, (row, advantage) in enumerate(zip(self.rows, advantages)):
            self.report.add(self.state.global_step + 1, f"advantage {i}", row["advantage"], advantage, size)
        return batch

    def _prepare_inputs(self, batch):
        """With the number of the step's tokens in place of the mean over the generation's steps."""
        inputs = super()._prepare_inputs(batch)
        if "num_items_in_batch" not in inputs:
            return inputs
        accumulation, supplied = self.args.gradient_accumulation_steps, self.args.steps_per_generation
        first = self._step % supplied // accumulation * accumulation
        tokens = sum(part["completion_mask"].sum() for part in self._buffered_inputs[first : first + accumulation])
        return inputs | {"num_items_in_batch": tokens * supplied / accumulation}

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.sizes.append(inputs["advantages"].abs().mean().item())
        tokens, rows = inputs["completion_mask"].sum().item(), len(inputs["completion_mask"])
        for name, values in self._metrics["train"].items():
            if name in ("entropy", "kl") or name.startswith(("clip_ratio", "cispo", "vespo")):
                of_rows = name.startswith("vespo") or self.by_rows and name not in ("entropy", "kl")
                weight = rows if of_rows else tokens
                # RLOO's `kl` is there once for the whole generation.
                if len(values) > len(self.weighed[name]):
                    self.weighed[name].append((values[-1], weight))
        return loss

    def log(self, logs, start_time=None):
        metrics = self._metrics["train"]
        for name, pairs in self.weighed.items():
            values, weights = [value for value, _ in pairs if not math.isnan(value)], sum(weight for _, weight in pairs)
            if name.endswith("_min"):
                metrics[name] = [min(values, default=math.nan)]
            elif name.endswith("_max"):
                metrics[name] = [max(values, default=math.nan)]
            else:
                metrics[name] = [sum(value * weight for value, weight in pairs) / max(weights, 1)]
        if "loss" in logs:
            logs["size of loss"] = sum(self.sizes) / len(self.sizes)
        self.weighed.clear()
        self.sizes.clear()
        super().log(logs, start_time)


def in_order(batch):
    """What TRL shuffles, in rlhost's order."""

    def ordered(column):
        if column is None or isinstance(column, torch.Tensor) and column.ndim == 0:
            return column
        return column[Fed.order] if isinstance(column, torch.Tensor) else [column[i] for i in Fed.order]

    return {name: ordered(column) for name, column in batch.items()}


class Grpo(Fed, GRPOTrainer):
    def _generate_single_turn(self, prompt_ids, *_, **__):
        return self.fed(prompt_ids), None


class Rloo(Fed, RLOOTrainer):
    def _generate_single_turn(self, prompt_ids, *_, **__):
        return self.fed(prompt_ids)


def train_trl(algorithm, model, rows, out, batch, accumulation, settings, run, rewards, generations, callback):
    trainer, config = {"grpo": (Grpo, GRPOConfig), "rloo": (Rloo, RLOOConfig)}[algorithm]
    args = config(
        output_dir=str(out), per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation,
        num_generations=GENERATIONS, max_completion_length=LENGTH, adam_epsilon=EPSILON, shuffle_dataset=False,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "eager"},
        reward_weights=[given.get("weight", 1.0) for given in rewards.values()], **TRL, **settings, **run)
    by_rows = algorithm == "rloo" or settings.get("importance_sampling_level") == "sequence"
    train(trainer(
        model=str(model), args=args, train_dataset=datasets.Dataset.from_list(rows), callbacks=[callback],
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        generations=generations, rewards=rewards, report=callback.report, by_rows=by_rows))
    return callback.logs


def compare_figures(report, got, want, settings):
    coefficient = settings.get("entropy_coef", 0.0)
    for step in range(1, STEPS + 1):
        ours, theirs = got[step], dict(want[step])
        if "entropy_coef" in theirs:
            theirs["entropy_coef"], coefficient = coefficient, theirs["entropy_coef"]
        terms = max(theirs.pop("size of loss"), LEAST)
        least = {"loss": terms, "policy_loss": terms, "kl": 1e-2, "grad_norm": 1e-3}
        for name, figure in theirs.items():
            # What there was nothing to make it of is None in TRL, and absent in rlhost.
            nothing = figure is None or "terminated" in name and figure == 0
            if name == "step_time" or nothing and name not in ours:
                continue
            report.add(step, name, ours.get(name), figure, max(abs(figure), least.get(name, LEAST)))


def run_case(args, work, name, algorithm, settings, run, special):
    """One line of the table; whether all of its runs are within tolerance."""
    template, rewards = special.get("template"), special.get("rewards", TARGET)
    rows, case = rows_of(make_rows(), template), Case(name, work)
    dataset = work / "rows.jsonl"
    write_lines(dataset, rows)
    for kind in MODELS:
        model = work / f"{kind}-{template}"
        if not model.exists():
            make_policy(model, kind, make_rows(), template)
        for accumulation in (1, 2):
            out, callback = case.begin(kind, accumulation, WEIGHT_TOLERANCE)
            cut = (BATCH * accumulation, 1) if special.get("in_one") else (BATCH, accumulation)
            these = {key: value * accumulation if key == "steps_per_generation" else value for key, value in run.items()}
            got, generations = train_rlhost(args.rlhost, algorithm, model, dataset, out, accumulation, settings, these, rewards)
            want = train_trl(algorithm, model, rows, work / "trl", *cut, settings, these, rewards, generations, callback)
            compare_figures(callback.report, got, want, settings)
            case.end(got, want)
    return case.print(args.all)


if __name__ == "__main__":
    grpo_trainer.shuffle_sequence_dict = rloo_trainer.shuffle_sequence_dict = in_order
    sys.exit(main(__doc__, CASES, run_case))
