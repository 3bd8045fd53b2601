#!/usr/bin/env python3
"""Train on the same texts with TRL's own SFTTrainer and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/parity/check_given_step.py target/debug/rlhost [--only NAME] [--all]

For each kind of rows: the two tiny random models of trl_steps.py, the same rows in the same
order, three optimizer steps with batches of 4, without accumulation and with an accumulation of 2.
Both in f32 on the CPU, AdamW at a constant rate, gradients clipped at 1, no dropout. Compared after
each step are all figures that both log, and the weights. The last output is check_given_step.txt
beside this file.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-4 of
their norm. Weights are held to their updates too, as check_grpo_step.py says.

What is defined differently is put right on TRL's side:
- `entropy` and `mean_token_accuracy` weigh micro-batches by their tokens in rlhost, alike in TRL.
- Packs come in another order in TRL, the fullest first, so that a step has all of them. Their number is that of the steps that
  another run of rlhost takes for an epoch, one sequence a step.
- Parts of texts that teach nothing, such as a part of a prompt or a last token by itself, are packed by TRL and left out by rlhost.
  They are taken from TRL's packs, whose other parts TRL's own function packs again.
"""

import sys

from trl_steps import (
    BATCH, EOS, EPSILON, MODELS, STEPS, TEMPLATES, TRL_CONSTANT, ByTokens, Case, load_model, main, make_model, make_rows, run_rlhost, train,
    write_lines)
import datasets
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer, pack_dataset
from trl.trainer import sft_trainer

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
    ("texts packed, cut", "text", {"packing": True, "packing_strategy": "bfd", "max_length": 16}),
    ("texts split", "text", {"packing": True, "packing_strategy": "bfd_split", "max_length": 16}),
    ("texts wrapped", "text", {"packing": True, "packing_strategy": "wrapped", "max_length": 16}),
    ("completion only", "completion", {}),
    ("completion only, cut", "completion", {"max_length": 20}),
    ("whole rows", "completion", {"completion_only_loss": False}),
    ("completion only packed", "completion", {"packing": True, "max_length": 64}),
    ("completion only split", "completion", {"packing": True, "packing_strategy": "bfd_split", "max_length": 12}),
    ("completion only wrapped", "completion", {"packing": True, "packing_strategy": "wrapped", "max_length": 24}),
    ("chats", "chat", {}),
    ("assistant only", "chat", {"assistant_only_loss": True}),
    ("assistant only packed", "chat", {"assistant_only_loss": True, "packing": True, "max_length": 96}),
    ("assistant only split", "chat", {"assistant_only_loss": True, "packing": True, "packing_strategy": "bfd_split", "max_length": 24}),
    ("assistant only wrapped", "chat", {"assistant_only_loss": True, "packing": True, "packing_strategy": "wrapped", "max_length": 64}),
    ("dft", "completion", {"loss_type": "dft"}),
    ("label smoothing", "completion", {"label_smoothing_factor": 0.1}),
]
TEMPLATES["marked"] = MARKED
# More sequences than there are.
ALL = 512
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


class Sft(ByTokens, SFTTrainer):
    def compute_loss(self, model, inputs, *args, **kw):
        loss = super().compute_loss(model, inputs, *args, **kw)
        learned = (inputs["labels"][:, 1:] != -100).sum()
        for name, tokens in (("entropy", learned), ("mean_token_accuracy", learned)):
            if self._metrics["train"].get(name):
                self.weigh(name, self._metrics["train"][name][-1], tokens)
        return loss


def pack_what_teaches(dataset, length, strategy, map_kwargs):
    """In the place of TRL's function. A part's first token is not predicted, so it teaches nothing."""
    packed = pack_dataset(dataset, length, strategy, map_kwargs)
    parts = []
    for pack in packed:
        start = 0
        for size in pack.get("seq_lengths") or [len(pack["labels"])]:
            parts.append({name: pack[name][start : start + size] for name in ("input_ids", "labels")})
            start += size
    teaching = datasets.Dataset.from_list([part for part in parts if any(label != -100 for label in part["labels"][1:])])
    return teaching if strategy == "wrapped" else pack_dataset(teaching, length, "bfd", map_kwargs)


def train_trl(model, rows, out, batch, accumulation, settings, callback):
    args = SFTConfig(
        output_dir=str(out), per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, adam_epsilon=EPSILON,
        **TRL_CONSTANT, **{"max_length": 1024, **settings})
    trainer = Sft(
        model=load_model(model), args=args, train_dataset=datasets.Dataset.from_list(rows), callbacks=[callback],
        processing_class=AutoTokenizer.from_pretrained(model))
    train(trainer)
    return callback.logs, len(trainer.train_dataset)


def sequences(rlhost, model, dataset, out, settings):
    """How many rlhost makes of the rows."""
    given = {"max-steps": -1, "num-train-epochs": 1, "per-device-train-batch-size": 1, "save-steps": 10**6, "learning-rate": 0}
    return len(run_rlhost([rlhost, "sft"], model, dataset, out, given | settings, {}))


def run_case(args, work, name, kind, settings):
    """One line of the table, and whether all of its runs are within tolerance."""
    rows, case = rows_of(kind), Case(name, work)
    dataset = work / "rows.jsonl"
    write_lines(dataset, rows)
    for family in MODELS:
        model = work / f"{family}-{kind == 'chat'}"
        if not model.exists():
            make_model(model, family, make_rows(), "marked" if kind == "chat" else None)
        for batch, accumulation in [(ALL, 1)] if "packing" in settings else [(BATCH, 1), (BATCH, 2)]:
            out, callback = case.begin(family, accumulation)
            flags = {"lr-scheduler-type": "constant", "adam-epsilon": EPSILON, "per-device-train-batch-size": batch,
                     "gradient-accumulation-steps": accumulation}
            got = run_rlhost([args.rlhost, "sft"], model, dataset, out, flags | settings, {})
            want, number = train_trl(model, rows, work / "trl", batch, accumulation, settings, callback)
            if "packing" in settings:
                counted = sequences(args.rlhost, model, dataset, out.with_name(f"{out.name}-counted"), settings)
                callback.report.add(1, "sequences", counted, number, tolerance=0)
            for step in range(1, STEPS + 1):
                for figure in FIGURES:
                    if figure in want[step]:
                        callback.report.add(step, figure, got[step].get(figure), want[step][figure])
            case.end(got, want)
    return case.print(args.all)


if __name__ == "__main__":
    sft_trainer.pack_dataset = pack_what_teaches
    sys.exit(main(__doc__, CASES, run_case))
