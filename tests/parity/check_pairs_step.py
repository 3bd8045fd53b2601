#!/usr/bin/env python3
"""Train on the same pairs and labelled completions with TRL's own trainers and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/parity/check_pairs_step.py target/debug/rlhost [--only NAME] [--all]

For each loss of DPO, CPO, ORPO and KTO: two tiny random models (an untied Qwen2, and a tied Llama whose
tokenizer begins every text with <s>), the same made-up pairs in the same order, three optimizer
steps with batches of 4 pairs, without accumulation and with an accumulation of 2. Both in f32 on
the CPU, AdamW at a constant rate, gradients clipped at 1, no dropout, the starting model as
reference unless a case has another. Compared after each step are all figures that both log, and the weights. AdamW's epsilon
is 1e-6: what a pair's two answers have in common has a gradient of mere rounding in the first
step, and 1e-8 would make updates of full size of it. The last output is check_pairs_step.txt beside
this file.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-4 of
their norm. Rewards are measured by the greater of both sides, and by a hundredth of
`beta * logps` at least, since they are differences of log-probabilities; mean logits and log odds,
whose terms cancel, by 0.1 at least. Weights are held to their updates too, as check_grpo_step.py says.

What is defined differently is put right on TRL's side:
- A mean over tokens (`sft`, CPO's and ORPO's likelihood term) is one over the whole step in rlhost, over a
  micro-batch in TRL. Cases with such a term run in TRL with a batch of 8 where rlhost accumulates
  two of 4.
- `logits/*` and `entropy` weigh micro-batches by their tokens in rlhost, alike in TRL; KTO's `rewards/*` and `logps/*` by their
  rows with the label.
- CPO's and ORPO's `logits/*` are a mean over the completions' tokens in rlhost, as DPO's are in
  both; TRL's CPO and ORPO take all positions, those of prompt and padding too.
- CPO's `nll_loss` is 0 in TRL where its weight is, and isn't compared there.
- DPO's `sft` alone has no reference model in rlhost and so no rewards, which aren't compared.
- TRL's CPO and ORPO cut prompt and answer apart once for each answer, TRL's DPO and rlhost where the
  first of both answers differs. Their pairs have answers that merge alike with their prompt.
- TRL's CPO and ORPO keep pairs whose prompt alone fills `max_length`, with empty answers; TRL's DPO and
  rlhost drop them. There are none for those two.
"""

import sys

from trl_steps import (
    BATCH, CONTEXT, EOS, EPSILON, MODELS, RATE, STEPS, TRL_CONSTANT, ByTokens, Case, load_model, main, make_model, make_rows, run_rlhost,
    train, write_lines)
import datasets
import torch
from transformers import AutoTokenizer
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

# Name, algorithm, settings of the loss, and what else is special: the chat template, max_length,
# the learning rate, another reference model than the starting one. At 1e-3, forward_kl's exponentials of log-ratios make more than 1e-4 of rounding:
# TRL in f32 then differs from itself in f64 by 6e-5.
CASES = [
    ("dpo sigmoid", "dpo", {"loss_type": ["sigmoid"]}, {}),
    ("dpo hinge", "dpo", {"loss_type": ["hinge"], "beta": 0.3}, {}),
    ("dpo ipo", "dpo", {"loss_type": ["ipo"]}, {}),
    ("dpo robust", "dpo", {"loss_type": ["robust"], "label_smoothing": 0.1}, {}),
    ("dpo apo_zero", "dpo", {"loss_type": ["apo_zero"]}, {}),
    ("dpo apo_down", "dpo", {"loss_type": ["apo_down"]}, {}),
    ("dpo sigmoid_norm", "dpo", {"loss_type": ["sigmoid_norm"], "beta": 2.0}, {}),
    ("dpo exo_pair", "dpo", {"loss_type": ["exo_pair"], "label_smoothing": 1e-3}, {}),
    ("dpo nca_pair", "dpo", {"loss_type": ["nca_pair"]}, {}),
    ("dpo bco_pair", "dpo", {"loss_type": ["bco_pair"]}, {}),
    ("dpo sppo_hard", "dpo", {"loss_type": ["sppo_hard"]}, {}),
    ("dpo aot", "dpo", {"loss_type": ["aot"], "label_smoothing": 0.1}, {}),
    ("dpo aot_unpaired", "dpo", {"loss_type": ["aot_unpaired"]}, {}),
    ("dpo discopop", "dpo", {"loss_type": ["discopop"]}, {}),
    ("dpo sft", "dpo", {"loss_type": ["sft"]}, {}),
    ("dpo sigmoid+sft", "dpo", {"loss_type": ["sigmoid", "sft"], "loss_weights": [0.8, 0.5]}, {}),
    ("dpo forward_kl", "dpo", {"loss_type": ["sigmoid"], "f_divergence_type": "forward_kl"}, {"rate": 2e-4}),
    ("dpo js_divergence", "dpo", {"loss_type": ["sigmoid"], "f_divergence_type": "js_divergence"}, {}),
    ("dpo alpha_divergence", "dpo", {"loss_type": ["sigmoid"], "f_divergence_type": "alpha_divergence"}, {}),
    ("dpo ld_alpha", "dpo", {"loss_type": ["sigmoid"], "ld_alpha": 0.4}, {}),
    ("dpo use_weighting", "dpo", {"loss_type": ["sigmoid"], "use_weighting": True}, {}),
    ("dpo use_weighting sppo_hard+ipo", "dpo", {"loss_type": ["sppo_hard", "ipo"], "use_weighting": True, "ld_alpha": 0.5}, {}),
    ("dpo chat", "dpo", {"loss_type": ["sigmoid"]}, {"template": "chat"}),
    ("dpo max_length 30", "dpo", {"loss_type": ["sigmoid"]}, {"max_length": 30}),
    ("dpo ref_model", "dpo", {"loss_type": ["sigmoid"]}, {"other": True}),
    ("cpo sigmoid", "cpo", {"loss_type": "sigmoid"}, {}),
    ("cpo hinge", "cpo", {"loss_type": "hinge", "beta": 0.3}, {}),
    ("cpo ipo", "cpo", {"loss_type": "ipo"}, {}),
    ("cpo simpo", "cpo", {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.0}, {}),
    ("cpo simpo+nll", "cpo", {"loss_type": "simpo", "cpo_alpha": 0.5, "label_smoothing": 0.1}, {}),
    ("cpo alphapo", "cpo", {"loss_type": "alphapo", "alpha": 0.25, "beta": 2.0}, {}),
    ("cpo chat", "cpo", {"loss_type": "sigmoid"}, {"template": "chat"}),
    ("cpo chat ended", "cpo", {"loss_type": "sigmoid"}, {"template": "ended"}),
    ("cpo max_length 30", "cpo", {"loss_type": "sigmoid"}, {"max_length": 30}),
    ("orpo", "orpo", {}, {}),
    ("orpo beta 1", "orpo", {"beta": 1.0}, {}),
    ("orpo chat", "orpo", {}, {"template": "chat"}),
    ("orpo chat ended", "orpo", {}, {"template": "ended"}),
    ("orpo max_length 30", "orpo", {}, {"max_length": 30}),
    ("kto", "kto", {"loss_type": "kto"}, {}),
    ("kto weights", "kto", {"loss_type": "kto", "beta": 0.5, "desirable_weight": 1.33, "undesirable_weight": 0.7}, {}),
    ("kto apo_zero_unpaired", "kto", {"loss_type": "apo_zero_unpaired"}, {}),
    ("kto pairs", "kto", {"loss_type": "kto"}, {"pairs": True}),
    ("kto chat", "kto", {"loss_type": "kto"}, {"template": "chat"}),
    ("kto max_length 30", "kto", {"loss_type": "kto"}, {"max_length": 30}),
    ("kto ref_model", "kto", {"loss_type": "kto"}, {"other": True}),
]
UNREFERENCED = ("cpo", "orpo")
def labelled(rows):
    """Every other answer of the pairs, with labels in no order."""
    return [
        {"prompt": row["prompt"], "completion": row["chosen" if i % 2 else "rejected"], "label": i % 5 in (0, 2, 3)}
        for i, row in enumerate(rows)
    ]


def rows_of(algorithm, rows, tokenizer, special):
    if algorithm == "kto" and "pairs" not in special:
        rows = labelled(rows)
    if "template" in special:
        speakers = {"prompt": "user", "chosen": "assistant", "rejected": "assistant", "completion": "assistant"}
        said = lambda name, text: [{"role": speakers[name], "content": text.removesuffix(EOS).strip()}]
        turn = lambda name, text: said(name, text) if name in speakers else text
        return [{name: turn(name, text) for name, text in row.items()} for row in rows]
    if algorithm == "kto":
        # Chosen answers come first, all of them: few enough for three steps to reach the rejected ones.
        return rows[:10] if "pairs" in special else rows
    if algorithm == "dpo":
        # One answer merges with its prompt, one doesn't; and a prompt that is too long, perhaps.
        return [
            {"prompt": "the ga", "chosen": "rden waits", "rejected": " runs"},
            {"prompt": "the cat" * 20, "chosen": " runs", "rejected": " sleeps"},
            *rows,
        ]
    longest = special.get("max_length", CONTEXT)
    return [row for row in rows if len(tokenizer(row["prompt"])["input_ids"]) < longest]


class Dpo(ByTokens, DPOTrainer):
    def _compute_loss(self, model, inputs, return_outputs):
        loss = super()._compute_loss(model, inputs, return_outputs)
        chosen, rejected = (mask.sum() for mask in inputs["completion_mask"][:, 1:].chunk(2))
        for name, tokens in [("logits/chosen", chosen), ("logits/rejected", rejected), ("entropy", chosen + rejected)]:
            self.weigh(name, self._metrics["train"][name][-1], tokens)
        return loss


def completions(batch, out):
    """The logits at each side's completion tokens, and these tokens."""
    for side, logits in zip(("chosen", "rejected"), out[2:4]):
        # Padded to the longer side of the batch.
        labels = batch[f"{side}_labels"][:, 1:].to(logits.device)
        mask = labels != -100
        yield side, logits[:, : mask.shape[1]][mask], labels[mask]


class Cpo(ByTokens, CPOTrainer):
    kept_in = "_stored_metrics"

    def concatenated_forward(self, model, batch):
        out = super().concatenated_forward(model, batch)
        for side, logits, _ in completions(batch, out):
            self.weigh(f"logits/{side}", logits.detach().mean(), len(logits))
        return out


class Orpo(ByTokens, ORPOTrainer):
    kept_in = "_stored_metrics"

    def concatenated_forward(self, model, batch):
        out = super().concatenated_forward(model, batch)
        for side, logits, _ in completions(batch, out):
            self.weigh(f"logits/{side}", logits.detach().mean(), len(logits))
        # All of a text's tokens but its first, with the prompt's.
        lengths = batch["chosen_attention_mask"].sum() - len(batch["chosen_attention_mask"])
        self.weigh("nll_loss", out[4].detach(), lengths)
        return out


class Kto(ByTokens, KTOTrainer):
    def _compute_loss(self, model, inputs, return_outputs):
        loss = super()._compute_loss(model, inputs, return_outputs)
        labels, mask = inputs["label"].bool(), inputs["completion_mask"][:, 1:]
        self.weigh("entropy", self._metrics["train"]["entropy"][-1], mask.sum())
        for side, wanted in (("chosen", labels), ("rejected", ~labels)):
            counts = {"logits": mask[wanted].sum(), "logps": wanted.sum(), "rewards": wanted.sum()}
            for name, count in counts.items():
                if count:
                    self.weigh(f"{name}/{side}", self._metrics["train"][f"{name}/{side}"][-1], count)
        return loss


def train_trl(algorithm, model, reference, rows, out, batch, accumulation, settings, special, callback):
    trainer, config = {
        "dpo": (Dpo, DPOConfig), "cpo": (Cpo, CPOConfig), "orpo": (Orpo, ORPOConfig), "kto": (Kto, KTOConfig)}[algorithm]
    args = config(
        output_dir=str(out), per_device_train_batch_size=batch, gradient_accumulation_steps=accumulation, adam_epsilon=EPSILON,
        remove_unused_columns=algorithm not in UNREFERENCED, max_length=special.get("max_length", 1024),
        **TRL_CONSTANT | {"learning_rate": special.get("rate", RATE)}, **settings)
    reference = {"ref_model": load_model(reference)} if algorithm not in UNREFERENCED else {}
    train(trainer(
        model=load_model(model), args=args, train_dataset=datasets.Dataset.from_list(rows), callbacks=[callback],
        processing_class=AutoTokenizer.from_pretrained(model), **reference))
    return callback.logs


FIGURES = ["loss", "grad_norm", "learning_rate", "kl", "entropy", "num_tokens", "nll_loss", "rewards/accuracies", "rewards/margins",
           "log_odds_ratio", "log_odds_chosen"]
FIGURES += [f"{kind}/{side}" for kind in ("rewards", "logps", "logits") for side in ("chosen", "rejected")]


def compare_figures(report, got, want, beta, without):
    for step in range(1, STEPS + 1):
        ours, theirs = got[step], want[step]
        # A step of KTO may have answers of one kind alone.
        logps = max(abs(theirs.get(f"logps/{side}", 0.0)) for side in ("chosen", "rejected"))
        reward = max(*(abs(theirs.get(f"rewards/{side}", 0.0)) for side in ("chosen", "rejected")), 1e-2 * beta * logps)
        for name in FIGURES:
            if name not in without and name in theirs:
                size = None
                if name in ("rewards/chosen", "rewards/rejected", "rewards/margins"):
                    size = reward
                elif name.startswith("logits") or name == "log_odds_chosen":
                    size = max(abs(theirs[name]), 0.1)
                if name == "kl" and name not in ours and theirs[name] == 0:  # Of a loss without one.
                    continue
                if name == "kl":
                    size = max(abs(theirs[name]), 1e-2 * logps)
                report.add(step, name, ours.get(name), theirs[name], size)


def run_case(args, work, name, algorithm, settings, special):
    """One line of the table, and whether all of its runs are within tolerance."""
    loss_type = settings.get("loss_type", [])
    by_tokens = "sft" in loss_type or algorithm == "orpo" or algorithm == "cpo" and settings.get("cpo_alpha", 1.0) > 0
    without = set()
    if settings.get("cpo_alpha") == 0 or loss_type == "alphapo":
        without = {"nll_loss"}
    if loss_type == ["sft"]:  # rlhost then reads no reference model.
        without = {figure for figure in FIGURES if figure.startswith("rewards")}
    rows, case = make_rows(), Case(name, work)
    flags = {"lr-scheduler-type": "constant", "adam-epsilon": EPSILON, "per-device-train-batch-size": BATCH}
    flags |= {"learning-rate": special["rate"]} if "rate" in special else {}
    flags |= {"max-length": special["max_length"]} if "max_length" in special else {}
    loss = {f"loss.{key}": value for key, value in settings.items()}
    for kind in MODELS:
        model = work / f"{kind}-{special.get('template')}"
        if not model.exists():
            make_model(model, kind, rows, special.get("template"))
        reference = work / f"{kind}-other" if "other" in special else model
        if not reference.exists():
            make_model(reference, kind, rows, None, seed=7)
        these = rows_of(algorithm, rows, AutoTokenizer.from_pretrained(model), special)
        dataset = work / "rows.jsonl"
        write_lines(dataset, these)
        for accumulation in (1, 2):
            out, callback = case.begin(kind, accumulation)
            accumulated = flags | {"gradient-accumulation-steps": accumulation}
            accumulated |= {"ref-model": reference} if "other" in special else {}
            got = run_rlhost([args.rlhost, "train", "--algorithm", algorithm], model, dataset, out, accumulated, loss)
            cut = (BATCH * accumulation, 1) if by_tokens else (BATCH, accumulation)
            want = train_trl(algorithm, model, reference, these, work / "trl", *cut, settings, special, callback)
            compare_figures(callback.report, got, want, settings.get("beta", 0.1), without)
            case.end(got, want)
    return case.print(args.all)


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, run_case))
