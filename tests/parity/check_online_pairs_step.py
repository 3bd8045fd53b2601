#!/usr/bin/env python3
"""Train on the same completions with TRL's own OnlineDPOTrainer and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/parity/check_online_pairs_step.py target/debug/rlhost [--only NAME] [--all]

For each setting: the two tiny random models of check_online_step.py, the same prompts in the same
order, three optimizer steps of 4 prompts with two completions each. rlhost runs first and logs its
completions and their rewards; TRL's trainer gets the completions where it would generate, and the
rewards where it would call a reward function. Both in f32 on the CPU, AdamW at a constant rate,
gradients clipped at 1, sampled at temperature 1, by which neither divides the logits that it trains.
Compared after each step are all figures that TRL logs, and the weights. The last output is
check_online_pairs_step.txt beside this file.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-5 of their
norm. Rewards and divergences are differences of log-probabilities and are measured by a hundredth of
those at least.

What is defined differently is put right on TRL's side:
- TRL's `objective/kl`, `objective/entropy` and what is made of them include padding's
  log-probabilities. Here they are 0.
- TRL rounds the loss that it logs to four digits. Here it is the one of its training step.
- TRL's `objective/rlhf_reward` leaves out half of the completions of an epoch's last batch, since its collection of figures from
  processes takes their number for that of rows. Here it has all.
- rlhost with an accumulation of 2 is compared with TRL with a batch of 8, which sums micro-batches'
  gradients where rlhost averages them.
"""

import sys

from trl_steps import (
    MODELS, STEPS, TRL_CONSTANT, Case, load_model, main, make_rows, read_lines, run_rlhost, train, write_lines)
from check_online_step import EPSILON, LEAST, LENGTH, TARGET, WEIGHT_TOLERANCE, make_policy, must_agree, rows_of
import datasets
import torch
from transformers import AutoTokenizer
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

PROMPTS = 4
# Name, settings of the loss, and the chat template.
CASES = [
    ("online_dpo sigmoid", {}, None),
    ("online_dpo beta 1", {"beta": 1.0}, None),
    ("online_dpo ipo", {"loss_type": "ipo"}, None),
    ("online_dpo eos penalty", {"missing_eos_penalty": 1.5}, None),
    ("online_dpo chat", {}, "chat"),
    # Six prompts: an epoch ends with two, or with one batch that is not full.
    ("online_dpo rest", {}, None, 6),
]


def train_rlhost(binary, model, dataset, out, accumulation, settings):
    flags = {"log-completions": "all", "per-device-train-batch-size": PROMPTS, "gradient-accumulation-steps": accumulation,
             "max-completion-length": LENGTH, "lr-scheduler-type": "constant", "adam-epsilon": EPSILON, "temperature": 1}
    given = {f"plugin.tldr_length_reward.config.{key}": value for key, value in TARGET["tldr_length_reward"]["config"].items()}
    given |= {f"loss.{key}": value for key, value in settings.items()}
    metrics = run_rlhost([binary, "online_dpo", "--plugin", "tldr_length_reward.wasm"], model, dataset, out, flags, given)
    return metrics, read_lines(out / "completions.jsonl")


class OnlineDpo(OnlineDPOTrainer):
    """Gets another's completions in the place of its own."""

    def __init__(self, *args, completions, **kw):
        self.waiting, self.rows = completions, None

        def tldr_length_reward(completions, **_):
            return [row["rewards"]["tldr_length_reward"] for row in self.rows]

        super().__init__(*args, reward_funcs=tldr_length_reward, **kw)
        self.accelerator.gather_for_metrics = lambda figures: figures

    def _generate(self, model, prompts, images=None):
        taken, self.waiting = self.waiting[: 2 * len(prompts)], self.waiting[2 * len(prompts) :]
        # Both of a prompt are adjacent in rlhost; TRL has the first of each, then the second.
        self.rows = taken[::2] + taken[1::2]
        if isinstance(prompts[0], str):
            must_agree("prompts", [row["prompt"] for row in self.rows], 2 * list(prompts))
        pad = self.processing_class.pad_token_id

        def padded(columns, left):
            longest = max(map(len, columns))
            fill = [[pad] * (longest - len(column)) for column in columns]
            ids = [f + column if left else column + f for f, column in zip(fill, columns)]
            mask = [[0] * len(f) + [1] * len(c) if left else [1] * len(c) + [0] * len(f) for f, c in zip(fill, columns)]
            return torch.tensor(ids), torch.tensor(mask)

        prompt = padded([row["prompt_ids"] for row in self.rows], True)
        return *prompt, *padded([row["completion_ids"] for row in self.rows], False), None

    def _forward(self, model, prompt_ids, prompt_mask, completion_ids, completion_mask, vision_inputs=None):
        logp = super()._forward(model, prompt_ids, prompt_mask, completion_ids, completion_mask, vision_inputs)
        return logp * completion_mask

    def training_step(self, *args, **kw):
        loss = super().training_step(*args, **kw)
        self.exact = loss.item()
        return loss

    def log(self, logs, start_time=None):
        if "loss" in logs:
            logs["loss"] = self.exact
        super().log(logs, start_time)


def train_trl(model, rows, out, batch, settings, completions, callback):
    args = OnlineDPOConfig(
        output_dir=str(out), per_device_train_batch_size=batch, adam_epsilon=EPSILON, max_new_tokens=LENGTH, temperature=1.0,
        **TRL_CONSTANT, **settings)
    train(OnlineDpo(
        model=load_model(model), ref_model=load_model(model), args=args, train_dataset=datasets.Dataset.from_list(rows),
        callbacks=[callback], processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"), completions=completions))
    return callback.logs


def compare_figures(report, got, want, beta):
    for step in range(1, STEPS + 1):
        ours, theirs = got[step], want[step]
        logps = max(abs(theirs["logps/chosen"]), abs(theirs["logps/rejected"]))
        for name, figure in theirs.items():
            if name in ("epoch", "train_runtime") or not isinstance(figure, (int, float)):
                continue
            least = LEAST
            if name.startswith("rewards/") and name != "rewards/accuracies" or name == "objective/non_score_reward":
                least = 1e-2 * beta * logps
            elif name == "objective/kl":
                least = 1e-2 * logps
            report.add(step, name, ours.get(name), figure, max(abs(figure), least))


def run_case(args, work, name, settings, template, count=None):
    """One line of the table, and whether all of its runs are within tolerance."""
    rows, case = rows_of(make_rows(), template)[:count], Case(name, work)
    dataset = work / "rows.jsonl"
    write_lines(dataset, rows)
    for kind in MODELS:
        model = work / f"{kind}-{template}"
        if not model.exists():
            make_policy(model, kind, make_rows(), template)
        for accumulation in (1, 2):
            out, callback = case.begin(kind, accumulation, WEIGHT_TOLERANCE)
            got, completions = train_rlhost(args.rlhost, model, dataset, out, accumulation, settings)
            want = train_trl(model, rows, work / "trl", PROMPTS * accumulation, settings, completions, callback)
            compare_figures(callback.report, got, want, settings.get("beta", 0.1))
            case.end(got, want)
    return case.print(args.all)


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, run_case))
