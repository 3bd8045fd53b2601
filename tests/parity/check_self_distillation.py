#!/usr/bin/env python3
"""Learn from oneself with TRL's SDFTTrainer and with `rlhost sdft`, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets peft torch transformers
    cargo build
    venv/bin/python tests/parity/check_self_distillation.py target/debug/rlhost [--only NAME] [--all]

For each setting: the two tiny random models of trl_steps.py, with an ending token that is likelier than others, on prompts that each have
something that only the teacher reads: a text, or messages beside a conversation. Three optimizer steps with micro-batches of 4
completions, without accumulation and with an accumulation of 2. rlhost runs first and logs its completions; TRL's trainer then trains on
these. It reads and tokenizes the prompts and the teacher's prompts itself. Both in f32 on the CPU, AdamW at a rate that falls from step
to step, gradients clipped at 1. AdamW's epsilon is that of check_online_step.py, for the same reason. The last output is
check_self_distillation.txt beside this file.

Compared after each step are the loss, the norm of the gradient, all other figures that TRL logs and rlhost has, and the weights, or those
of the adapter.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-5 of their norm. The loss of sampled tokens,
whose terms cancel, is measured by the mean size of these terms, and `grad_norm` by 1e-3 at least. Weights are held to their updates too,
as check_grpo_step.py says.

What is defined differently:
- TRL averages `distillation_loss` over micro-batches and multiplies it by the ratios; rlhost's `divergence` is the mean over the step's
  tokens and without them. They are compared where there are no ratios, and weighted by tokens on TRL's side.
- Lengths of ended completions are 0 in TRL and absent in rlhost where none has ended.
- The figures that count TRL's batches are left out where a generation is trained on twice.
"""

import random
import sys

from trl_steps import (
    MODELS, WORDS, ByTokens, Case, load_model, main, make_model, make_rows, train, write_lines)
import datasets
from check_distillation import ADAPTERS, AdapterStep, common, compare_figures, ends_often, opened, rows_of, train_rlhost
from check_online_step import TWICE, WEIGHT_TOLERANCE, must_agree
from peft import LoraConfig, get_peft_model
import torch
from transformers import AutoTokenizer
from trl.experimental.sdft import SDFTConfig, SDFTTrainer

LENGTH = 24
# Each model's likeliest tokens differ from its teacher's more clearly in a small vocabulary, so that a few are enough.
FULL, FEW = {"distillation_mode": "full_logits"}, {"distillation_topk": 7}
TAIL, SAMPLED = FEW | {"distillation_add_tail": True}, {"distillation_mode": "sampled_token", "distillation_alpha": 1.0}
COLD, LIVE = {"temperature": 0.7}, {"teacher_model_kind": "live"}
AVERAGE = {"teacher_model_kind": "ema", "teacher_update_rate": 0.4}
WORDED = {"teacher_prompt_template": "{privileged_context} -- {prompt} ({prompt})"}
# Name, settings of the loss, settings of the run that both have under one name, and what else is special.
CASES = [
    ("default", {}, {}, {}),
    *((f"{name}, alpha {alpha}{', cold' * bool(run)}", mode | {"distillation_alpha": alpha}, run, {})
      for name, mode in (("full", FULL), ("top 7", FEW), ("top 7 and rest", TAIL))
      for alpha, run in ((0.0, {}), (0.3, COLD), (0.5, {}), (1.0, COLD))),
    ("sampled", SAMPLED, {}, {}),
    ("sampled, cold", SAMPLED, COLD, {}),
    ("live", FULL, LIVE, {}),
    ("live, top 7 and rest", TAIL, LIVE | COLD, {}),
    ("live, sampled", SAMPLED, LIVE | COLD, {}),
    ("average", FULL, AVERAGE, {}),
    ("average, each second step", TAIL, AVERAGE | COLD | {"teacher_sync_steps": 2}, {}),
    ("twice", {}, TWICE, {}),
    ("twice, top 7", FEW, TWICE | COLD, {}),
    ("twice, clipped at 1", FULL | {"distillation_is_clip": 1.0}, TWICE, {}),
    ("twice, sampled", SAMPLED, TWICE | COLD, {}),
    ("twice, live", TAIL, TWICE | LIVE, {}),
    ("twice, live, sampled", SAMPLED, TWICE | LIVE, {}),
    ("twice, average, sampled", SAMPLED, TWICE | AVERAGE | COLD, {}),
    ("3 tokens skipped", TAIL | {"num_loss_tokens_to_skip": 3}, {}, {}),
    ("12 tokens skipped", FULL | {"num_loss_tokens_to_skip": 12}, COLD, {}),
    ("template", FEW, WORDED, {}),
    ("two completions each", FEW, {"num_generations": 2}, {}),
    ("weight decay", FULL, {"weight_decay": 0.1}, {}),
    ("chat", FULL, {}, {"template": "chat"}),
    ("chat, messages", TAIL, WORDED | LIVE, {"template": "chat", "messages": True}),
    ("adapter", {}, {}, {"adapter": True}),
    ("adapter, live", TAIL, LIVE | COLD, {"adapter": True}),
    ("adapter, sampled twice", SAMPLED, TWICE, {"adapter": True}),
    ("adapter, average", TAIL, AVERAGE, {"adapter": True}),
    ("adapter, average, sampled", SAMPLED, AVERAGE, {"adapter": True}),
]


def privileged_rows(template, messages):
    """Prompts of varied lengths, each with a text or with messages for the teacher."""
    rng, rows = random.Random(3), rows_of("own", template)
    words = lambda: " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 15)))
    text = lambda: [{"role": "user", "content": words()}, {"role": "assistant", "content": words()}] if messages else words()
    system = lambda: [{"role": "system", "content": words()}] if messages and rng.random() < 0.5 else []
    return [{"prompt": system() + row["prompt"] if messages else row["prompt"], "privileged_context": text()} for row in rows]


def models(work, kind, special):
    """The folders of a case's model and, if it trains one, of its adapter's initial weights, which are made when they are needed first."""
    template = special.get("template")
    base = work / f"{kind}-{template}"
    if not base.exists():
        make_model(base, kind, make_rows(), template)
        ends_often(base)
    if not special.get("adapter"):
        return base, base
    student = work / f"{base.name}-adapter"
    if not student.exists():
        torch.manual_seed(0)
        adapter = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, lora_dropout=0.0, **ADAPTERS[kind])
        get_peft_model(load_model(base), adapter).save_pretrained(student)
    return base, student


class SelfDistillation(ByTokens, SDFTTrainer):
    """TRL's trainer, which gets another's completions in the place of its own."""

    def __init__(self, *args, generations, **kw):
        self.generations, self.sizes = iter(generations), []
        super().__init__(*args, **kw)

    def _generate(self, prompt_ids):
        rows = next(self.generations)
        must_agree("prompts", [row["prompt_ids"] for row in rows], prompt_ids)
        return prompt_ids, [row["completion_ids"] for row in rows]

    def _compute_self_distillation_loss(self, model, inputs, both):
        loss = super()._compute_self_distillation_loss(model, inputs, both)
        mean = self._metrics["train"].pop("sdft/distillation_loss")[-1]
        self._metrics["train"].pop("self_distillation/distillation_loss")
        # All tokens may be skipped.
        if both.loss_mask.sum() == 0:
            return loss
        if self.args.distillation_mode != "sampled_token":
            self.weigh("divergence", mean, both.loss_mask.sum())
        else:
            ours, teachers = (logits.log_softmax(-1).gather(-1, both.completion_ids[..., None]).squeeze(-1).detach()
                              for logits in (both.student_logits, both.teacher_logits))
            self.sizes.append(((ours - teachers) * ours * both.loss_mask).abs().sum().item() / both.loss_mask.sum().item())
        return loss

    def log(self, logs, start_time=None):
        if "loss" in logs and self.sizes:
            logs["size of loss"] = sum(self.sizes) / len(self.sizes)
            self.sizes.clear()
        super().log(logs, start_time)


def train_trl(base, student, tokenizer, rows, out, accumulation, settings, run, generations, callback):
    args = SDFTConfig(
        max_completion_length=LENGTH, max_prompt_length=None, shuffle_dataset=False,
        **common(out, accumulation, {"num_generations": 1} | run), **settings)
    train(SelfDistillation(
        model=opened(base, student), args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer,
        callbacks=[callback], generations=generations))
    return callback.logs


def run_case(args, work, name, settings, run, special):
    """One line of the table; whether all of its runs are within tolerance."""
    template, case = special.get("template"), Case(name, work)
    rows, dataset = privileged_rows(template, special.get("messages")), work / "rows.jsonl"
    write_lines(dataset, rows)
    for kind in MODELS:
        base, student = models(work, kind, special)
        tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
        for accumulation in (1, 2):
            out, callback = case.begin(kind, accumulation, WEIGHT_TOLERANCE)
            if special.get("adapter"):
                callback = AdapterStep(callback.report, out, WEIGHT_TOLERANCE)
            got, generations = train_rlhost([args.rlhost, "sdft"], student, None, dataset, out, accumulation, settings,
                                            {"num_generations": 1} | run)
            want = train_trl(base, student, tokenizer, rows, work / "trl", accumulation, settings, run, generations, callback)
            again = ("epoch", "num_tokens", "divergence") if "num_iterations" in run else ()
            left_out = [figure for figure in want[1] if figure in again or again and figure.startswith("completions/")]
            compare_figures(callback.report, got, want, left_out)
            case.end(got, want)
    return case.print(args.all)


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, run_case))
