#!/usr/bin/env python3
"""Train on the same texts with TRL's own SFTTrainer and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/check_given_step.py target/debug/rlhost [--only NAME] [--all]

For each kind of rows: the two tiny random models of check_pairs_step.py, the same rows in the same
order, three optimizer steps with batches of 4, without accumulation and with an accumulation of 2.
Both in f32 on the CPU, AdamW at a constant rate, gradients clipped at 1, no dropout. Compared after
each step are all figures that both log, and the weights. The last output is check_given_step.txt
beside this file.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-4 of
their norm. Weights are held to their updates too, as check_grpo_step.py says.

What is defined differently is put right on TRL's side:
- `entropy` and `mean_token_accuracy` weigh micro-batches by their tokens in rlhost, alike in TRL.
- Packs come in another order in TRL, the fullest first, so that a step has all of them.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from check_pairs_step import (
    BATCH, CONTEXT, EOS, EPSILON, HEAD, MODELS, RATE, STEPS, TEMPLATES, ByTokens, Report, Step, be_quiet, make_model, make_rows, print_case)
import datasets
import subprocess
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

MARKED = (
    "{% for m in messages %}{{ '[' + m.role + ']' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content + '[end]\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
# Name, kind of rows, and settings that both have under one name.
CASES = [
    ("texts", "text", {}),
    ("texts max_length 20", "text", {"max_length": 20}),
    ("texts packed", "text", {"packing": True, "max_length": 64}),
    ("completion only", "completion", {}),
    ("completion only, cut", "completion", {"max_length": 20}),
    ("whole rows", "completion", {"completion_only_loss": False}),
    ("completion only packed", "completion", {"packing": True, "max_length": 64}),
    ("chats", "chat", {}),
    ("assistant only", "chat", {"assistant_only_loss": True}),
    ("assistant only packed", "chat", {"assistant_only_loss": True, "packing": True, "max_length": 96}),
    ("dft", "completion", {"loss_type": "dft"}),
]
TEMPLATES["marked"] = MARKED
# More packs than there are.
ALL = 64
FIGURES = ["loss", "grad_norm", "learning_rate", "entropy", "num_tokens", "mean_token_accuracy"]


def rows_of(kind):
    rows = make_rows()
    if kind == "text":
        return [{"text": row["prompt"] + row["chosen"].removesuffix(EOS)} for row in rows]
    if kind == "completion":
        return [{"prompt": row["prompt"], "completion": row["chosen"].removesuffix(EOS)} for row in rows]
    said = lambda role, text: {"role": role, "content": text.removesuffix(EOS).strip()}
    return [
        {"messages": [said("user", row["prompt"]), said("assistant", row["chosen"])]
         + ([said("user", row["rejected"]), said("assistant", row["prompt"])] if i % 3 else [])}
        for i, row in enumerate(rows)
    ]


def run_rlhost(binary, model, dataset, out, batch, accumulation, settings):
    command = [binary, "sft", "--model", model, "--dataset", dataset, "--output-dir", out,
               "--max-steps", STEPS, "--logging-steps", 1, "--save-steps", 1, "--per-device-train-batch-size", batch,
               "--gradient-accumulation-steps", accumulation, "--learning-rate", RATE, "--lr-scheduler-type", "constant",
               "--adam-epsilon", EPSILON, "--shuffle-dataset", "false", "--seed", 1, "--num-threads", 1]
    for key, value in settings.items():
        command += [f"--{key}", value if isinstance(value, str) else json.dumps(value)]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return {line["step"]: line for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())}


class Sft(ByTokens, SFTTrainer):
    def compute_loss(self, model, inputs, *args, **kw):
        loss = super().compute_loss(model, inputs, *args, **kw)
        learned = (inputs["labels"][:, 1:] != -100).sum()
        for name, tokens in (("entropy", learned), ("mean_token_accuracy", learned)):
            if self._metrics["train"].get(name):
                self.weigh(name, self._metrics["train"][name][-1], tokens)
        return loss

    def log(self, logs, start_time=None):
        for name, mean in self.weighed().items():
            self._metrics["train"][name] = [mean]
        super().log(logs, start_time)


def train_trl(model, rows, out, batch, accumulation, settings, callback):
    args = SFTConfig(
        output_dir=str(out), max_steps=STEPS, logging_steps=1, logging_first_step=False, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation, learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0,
        adam_epsilon=EPSILON, max_grad_norm=1.0, seed=1, train_sampling_strategy="sequential", optim="adamw_torch",
        **{"max_length": 1024, **settings})
    this = Sft(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager"), args=args,
        train_dataset=datasets.Dataset.from_list(rows), callbacks=[callback],
        processing_class=AutoTokenizer.from_pretrained(model))
    this.remove_callback(transformers.PrinterCallback)
    this.train()
    return callback.logs


def run_case(args, work, name, kind, settings):
    """One line of the table, and whether all of its runs are within tolerance."""
    rows, reports, losses = rows_of(kind), [], None
    dataset = work / "rows.jsonl"
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for family in MODELS:
        model = work / f"{family}-{kind == 'chat'}"
        if not model.exists():
            make_model(model, family, make_rows(), "marked" if kind == "chat" else None)
        for batch, accumulation in [(ALL, 1)] if "packing" in settings else [(BATCH, 1), (BATCH, 2)]:
            report = Report(f"{family}, accumulation {accumulation}")
            out = work / "-".join([*name.replace(",", "").split(), family, str(accumulation)])
            got = run_rlhost(args.rlhost, model, dataset, out, batch, accumulation, settings)
            callback = Step(report, out)
            want = train_trl(model, rows, work / "trl", batch, accumulation, settings, callback)
            for step in range(1, STEPS + 1):
                for figure in FIGURES:
                    if figure in want[step]:
                        report.add(step, figure, got[step].get(figure), want[step][figure])
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
