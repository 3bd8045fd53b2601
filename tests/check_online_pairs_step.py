#!/usr/bin/env python3
"""Train on the same completions with TRL's own OnlineDPOTrainer and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/check_online_pairs_step.py target/debug/rlhost [--only NAME] [--all]

For each setting: the two tiny random models of check_online_step.py, the same prompts in the same
order, three optimizer steps of 4 prompts with two completions each. rlhost runs first and logs its
completions and their rewards; TRL's trainer gets the completions where it would generate, and the
rewards where it would call a reward function. Both in f32 on the CPU, AdamW at a constant rate,
gradients clipped at 1. Compared after each step are all figures that TRL logs, and the weights. The
last output is check_online_pairs_step.txt beside this file.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-5 of their
norm. Rewards and divergences are differences of log-probabilities and are measured by a hundredth of
those at least.

What is defined differently is put right on TRL's side:
- TRL's `objective/kl`, `objective/entropy` and what is made of them include padding's
  log-probabilities. Here they are 0.
- TRL's sampling temperature also divides the logits that are trained. Both sample at 1 here.
- TRL rounds the loss that it logs to four digits. Here it is the one of its training step.
- rlhost with an accumulation of 2 is compared with TRL with a batch of 8, which sums micro-batches'
  gradients where rlhost averages them.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from check_pairs_step import HEAD, MODELS, RATE, STEPS, Report, Step, be_quiet, make_rows, print_case
from check_online_step import EPSILON, LEAST, LENGTH, TARGET, WEIGHT_TOLERANCE, make_policy, must_agree, rows_of
import datasets
import subprocess
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

PROMPTS = 4
# Name, settings of the loss, and the chat template.
CASES = [
    ("online_dpo sigmoid", {}, None),
    ("online_dpo beta 1", {"beta": 1.0}, None),
    ("online_dpo ipo", {"loss_type": "ipo"}, None),
    ("online_dpo eos penalty", {"missing_eos_penalty": 1.5}, None),
    ("online_dpo chat", {}, "chat"),
]


def run_rlhost(binary, model, dataset, out, accumulation, settings):
    command = [binary, "online_dpo", "--model", model, "--dataset", dataset, "--output-dir", out, "--max-steps", STEPS,
               "--logging-steps", 1, "--save-steps", 1, "--log-completions", "all", "--per-device-train-batch-size", PROMPTS,
               "--gradient-accumulation-steps", accumulation, "--max-completion-length", LENGTH, "--learning-rate", RATE,
               "--lr-scheduler-type", "constant", "--adam-epsilon", EPSILON, "--shuffle-dataset", "false", "--temperature", 1,
               "--seed", 1, "--num-threads", 1, "--plugin", "tldr_length_reward.wasm"]
    for key, value in TARGET["tldr_length_reward"]["config"].items():
        command += ["--set", f"plugin.tldr_length_reward.config.{key}={value}"]
    for key, value in settings.items():
        command += ["--set", f"loss.{key}={value}"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    metrics, completions = (
        [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()] for name in ("metrics", "completions"))
    return {line["step"]: line for line in metrics}, completions


class OnlineDpo(OnlineDPOTrainer):
    """Gets another's completions in the place of its own."""

    def __init__(self, *args, completions, **kw):
        self.waiting, self.rows = completions, None

        def tldr_length_reward(completions, **_):
            return [row["rewards"]["tldr_length_reward"] for row in self.rows]

        super().__init__(*args, reward_funcs=tldr_length_reward, **kw)

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
        output_dir=str(out), max_steps=STEPS, logging_steps=1, logging_first_step=False, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, per_device_train_batch_size=batch,
        learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, adam_epsilon=EPSILON, max_grad_norm=1.0, seed=1,
        max_new_tokens=LENGTH, temperature=1.0, train_sampling_strategy="sequential", optim="adamw_torch", **settings)
    load = lambda: AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    this = OnlineDpo(
        model=load(), ref_model=load(), args=args, train_dataset=datasets.Dataset.from_list(rows), callbacks=[callback],
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"), completions=completions)
    this.remove_callback(transformers.PrinterCallback)
    this.train()
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


def run_case(args, work, name, settings, template):
    """One line of the table, and whether all of its runs are within tolerance."""
    rows, reports, losses = rows_of(make_rows(), template), [], None
    dataset = work / "rows.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for kind in MODELS:
        model = work / f"{kind}-{template}"
        if not model.exists():
            make_policy(model, kind, make_rows(), template)
        for accumulation in (1, 2):
            report = Report(f"{kind}, accumulation {accumulation}")
            out = work / "-".join([*name.split(), kind, str(accumulation)])
            got, completions = run_rlhost(args.rlhost, model, dataset, out, accumulation, settings)
            callback = Step(report, out, WEIGHT_TOLERANCE)
            want = train_trl(model, rows, work / "trl", PROMPTS * accumulation, settings, completions, callback)
            compare_figures(report, got, want, settings.get("beta", 0.1))
            reports.append(report)
            steps = range(1, STEPS + 1)
            losses = losses or [" ".join(f"{run[step]['loss']:8.5f}" for step in steps) for run in (got, want)]
    return print_case(name, losses, reports, args.all)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path, help="the binary")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name contains this")
    parser.add_argument("--all", action="store_true", help="print every figure")
    args = parser.parse_args()

    be_quiet()
    passed = True
    print(HEAD)
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            if args.only in case[0]:
                passed &= run_case(args, Path(work), *case)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
