#!/usr/bin/env python3
"""Train on the same pairs and labelled completions with TRL's own trainers and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/check_pairs_step.py target/debug/rlhost [--only NAME] [--all]

For each loss of DPO, CPO, ORPO and KTO: two tiny random models (an untied Qwen2, and a tied Llama whose
tokenizer begins every text with <s>), the same made-up pairs in the same order, three optimizer
steps with batches of 4 pairs, without accumulation and with an accumulation of 2. Both in f32 on
the CPU, AdamW at a constant rate, gradients clipped at 1, no dropout, the starting model as
reference. Compared after each step are all figures that both log, and the weights. AdamW's epsilon
is 1e-6: what a pair's two answers have in common has a gradient of mere rounding in the first
step, and 1e-8 would make updates of full size of it. The last output is check_pairs_step.txt beside
this file.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-4 of
their norm. Rewards are measured by the greater of both sides, and by a hundredth of
`beta * logps` at least, since they are differences of log-probabilities; mean logits, whose terms
cancel, by 0.1 at least. Weights are held to their updates too, as check_grpo_step.py says.

What is defined differently is put right on TRL's side:
- A mean over tokens (`sft`, CPO's and ORPO's likelihood term) is one over the whole step in rlhost, over a
  micro-batch in TRL. Cases with such a term run in TRL with a batch of 8 where rlhost accumulates
  two of 4.
- `logits/*` and `entropy` weigh micro-batches by their tokens in rlhost, alike in TRL; KTO's `rewards/*` and `logps/*` by their
  rows with the label.
- CPO's and ORPO's `logits/*` are a mean over the completions' tokens in rlhost, as DPO's are in
  both; TRL's CPO and ORPO take all positions, those of prompt and padding too.
- ORPO's likelihood term is that of the chosen completion in rlhost, as in the paper; TRL's includes
  the prompt.
- CPO's `nll_loss` is 0 in TRL where its weight is, and isn't compared there.
- DPO's `sft` alone has no reference model in rlhost and so no rewards, which aren't compared.
- TRL's CPO and ORPO cut prompt and answer apart once for each answer, TRL's DPO and rlhost where the
  first of both answers differs. Their pairs have answers that merge alike with their prompt.
- TRL's CPO and ORPO keep pairs whose prompt alone fills `max_length`, with empty answers; TRL's DPO and
  rlhost drop them. There are none for those two.
"""

import argparse
import json
import logging
import math
import os
import random
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import datasets
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from check_grpo_step import TOLERANCE, Weights

STEPS, BATCH, RATE, EPSILON, ROWS, CONTEXT = 3, 4, 1e-3, 1e-6, 48, 256
BOS, EOS = "<s>", "</s>"
WORDS = (
    "the a cat dog river house train garden morning letter runs sleeps waits opens crosses finds green small old quick "
    "quiet very often never near behind under with without and but because so it she they we naïve 日本 42"
).split()
# How Qwen2 parts words. transformers parts every Qwen2's texts so, whatever its tokenizer.json says.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# `ended` gives an assistant's turn the ending token.
TURNS = (
    "{{ bos_token }}{% for m in messages %}{{ '[' + m.role + ']' + m.content + END }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
TEMPLATES = {
    "chat": TURNS.replace("END", r"'[end]\n'"),
    "ended": TURNS.replace("END", r"(eos_token if m.role == 'assistant' else '[end]\n')"),
}
# Name, algorithm, settings of the loss, and what else is special: the chat template, max_length,
# the learning rate. At 1e-3, forward_kl's exponentials of log-ratios make more than 1e-4 of rounding:
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
    ("dpo chat", "dpo", {"loss_type": ["sigmoid"]}, {"template": "chat"}),
    ("dpo max_length 30", "dpo", {"loss_type": ["sigmoid"]}, {"max_length": 30}),
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
]
SHAPE = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=CONTEXT,
)
UNREFERENCED = ("cpo", "orpo")
MODELS = {"qwen2": (Qwen2Config, False), "llama": (LlamaConfig, True)}


def make_rows():
    """Pairs of varied lengths, some of which merge with their prompt or end already."""
    rng = random.Random(7)

    def words(least, most):
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))

    rows = []
    for i in range(ROWS):
        prompt, chosen, rejected = words(2, 12) + ":", " " + words(1, 20), " " + words(1, 20)
        if i % 4 == 1:  # The prompt's last space becomes part of the answers' first word.
            prompt, chosen, rejected = prompt + " ", "the" + chosen, "the" + rejected
        if i % 4 == 2:
            chosen += EOS
        if i % 12 == 3:
            rejected = " " + words(40, 50)
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return rows


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


def make_model(folder, kind, rows, template):
    config, tied = MODELS[kind]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "qwen2":
        bpe.normalizer = normalizers.NFC()
        bpe.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bpe.decoder = decoders.ByteLevel()
    texts = [f"{row['prompt']}{row['chosen'].removesuffix(EOS)}" for row in rows]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=320, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False))
    named = {"eos_token": EOS, "pad_token": EOS}
    if kind == "llama":
        bpe.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bpe.token_to_id(BOS))])
        named["bos_token"] = BOS
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, **named)
    tokenizer.chat_template = TEMPLATES.get(template)
    tokenizer.save_pretrained(folder)
    ending = bpe.token_to_id(EOS)
    ids = dict(vocab_size=bpe.get_vocab_size(), bos_token_id=None, eos_token_id=ending, pad_token_id=ending)
    model = AutoModelForCausalLM.from_config(config(tie_word_embeddings=tied, **ids, **SHAPE), dtype=torch.float32)
    generator = torch.Generator().manual_seed(len(kind))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator) + name.endswith("norm.weight"))
    model.save_pretrained(folder)


def run_rlhost(binary, algorithm, model, dataset, out, accumulation, settings, special):
    command = [binary, "train", "--algorithm", algorithm, "--model", model, "--dataset", dataset, "--output-dir", out,
               "--max-steps", STEPS, "--logging-steps", 1, "--save-steps", 1, "--per-device-train-batch-size", BATCH,
               "--gradient-accumulation-steps", accumulation, "--learning-rate", special.get("rate", RATE),
               "--lr-scheduler-type", "constant", "--adam-epsilon", EPSILON, "--shuffle-dataset", "false",
               "--seed", 1, "--num-threads", 1]
    if "max_length" in special:
        command += ["--max-length", special["max_length"]]
    for key, value in settings.items():
        command += ["--set", f"loss.{key}={value if isinstance(value, str) else json.dumps(value)}"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return {line["step"]: line for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())}


class ByTokens:
    """Averages some figures over the step's tokens rather than over its micro-batches."""

    def __init__(self, *args, **kw):
        self.sums = {}
        super().__init__(*args, **kw)

    def weigh(self, name, mean, tokens):
        total = self.sums.setdefault(name, [0.0, 0])
        total[0] += float(mean) * int(tokens)
        total[1] += int(tokens)

    def weighed(self):
        means = {name: total / tokens for name, (total, tokens) in self.sums.items()}
        self.sums.clear()
        return means


class Dpo(ByTokens, DPOTrainer):
    def _compute_loss(self, model, inputs, return_outputs):
        loss = super()._compute_loss(model, inputs, return_outputs)
        chosen, rejected = (mask.sum() for mask in inputs["completion_mask"][:, 1:].chunk(2))
        for name, tokens in [("logits/chosen", chosen), ("logits/rejected", rejected), ("entropy", chosen + rejected)]:
            self.weigh(name, self._metrics["train"][name][-1], tokens)
        return loss

    def log(self, logs, start_time=None):
        for name, mean in self.weighed().items():
            self._metrics["train"][name] = [mean]
        super().log(logs, start_time)


class Cpo(ByTokens, CPOTrainer):
    def concatenated_forward(self, model, batch):
        out = super().concatenated_forward(model, batch)
        for side, logits in zip(("chosen", "rejected"), out[2:4]):
            # Padded to the longer side of the batch.
            mask = (batch[f"{side}_labels"][:, 1:] != -100).to(logits.device)
            kept = logits.detach()[:, : mask.shape[1]][mask]
            self.weigh(f"logits/{side}", kept.mean(), len(kept))
        return out

    def log(self, logs, start_time=None):
        for name, mean in self.weighed().items():
            self._stored_metrics["train"][name] = [mean]
        super().log(logs, start_time)


class Orpo(ByTokens, ORPOTrainer):
    def concatenated_forward(self, model, batch):
        out = super().concatenated_forward(model, batch)
        for side, logits in zip(("chosen", "rejected"), out[2:4]):
            # Padded to the longer side of the batch.
            labels = batch[f"{side}_labels"][:, 1:].to(logits.device)
            mask = labels != -100
            kept = logits[:, : mask.shape[1]][mask]
            self.weigh(f"logits/{side}", kept.detach().mean(), len(kept))
            if side == "chosen":
                likelihood = torch.nn.functional.cross_entropy(kept, labels[mask])
        return *out[:4], likelihood

    def log(self, logs, start_time=None):
        for name, mean in self.weighed().items():
            self._stored_metrics["train"][name] = [mean]
        super().log(logs, start_time)


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

    def log(self, logs, start_time=None):
        for name, mean in self.weighed().items():
            self._metrics["train"][name] = [mean]
        super().log(logs, start_time)


class Step(transformers.TrainerCallback):
    """Compares the weights after each step, and keeps what is logged."""

    def __init__(self, report, run, tolerance=TOLERANCE):
        self.report, self.run, self.tolerance, self.logs, self.weights = report, run, tolerance, {}, None

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        self.model, self.optimizer = model, getattr(optimizer, "optimizer", optimizer)
        self.weights = Weights(model, self.optimizer)

    def on_step_end(self, args, state, control, **_):
        folder, step = self.run / f"checkpoint-{state.global_step}", state.global_step
        self.weights.check(self.report, step, folder)
        saved = load_file(folder / "model.safetensors")
        pairs = [(saved[name], p.detach()) for name, p in self.model.named_parameters()]
        off, norm = (math.sqrt(sum(part.square().sum().item() for part in parts))
                     for parts in ([a - b for a, b in pairs], [b for _, b in pairs]))
        self.report.add(step, "weights, all", off, 0.0, norm, self.tolerance)

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.setdefault(state.global_step, dict(logs))


def train_trl(algorithm, model, rows, out, batch, accumulation, settings, special, callback):
    trainer, config = {
        "dpo": (Dpo, DPOConfig), "cpo": (Cpo, CPOConfig), "orpo": (Orpo, ORPOConfig), "kto": (Kto, KTOConfig)}[algorithm]
    args = config(
        output_dir=str(out), max_steps=STEPS, logging_steps=1, logging_first_step=False, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation, learning_rate=special.get("rate", RATE),
        lr_scheduler_type="constant", weight_decay=0.0, adam_epsilon=EPSILON,
        max_grad_norm=1.0, seed=1, train_sampling_strategy="sequential", remove_unused_columns=algorithm not in UNREFERENCED,
        max_length=special.get("max_length", 1024), optim="adamw_torch", **settings)
    load = lambda: AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    reference = {"ref_model": load()} if algorithm not in UNREFERENCED else {}
    this = trainer(
        model=load(), args=args, train_dataset=datasets.Dataset.from_list(rows), callbacks=[callback],
        processing_class=AutoTokenizer.from_pretrained(model), **reference)
    this.remove_callback(transformers.PrinterCallback)
    this.train()
    return callback.logs


class Report:
    """Differences of one run as shares of their sizes."""

    def __init__(self, run):
        self.run, self.lines = run, []

    def add(self, step, name, got, want, size=None, tolerance=TOLERANCE):
        got, want = math.nan if got is None else float(got), float(want)
        size = max(abs(got), abs(want)) if size is None else float(size)
        off = abs(got - want)
        share = off / size if size and math.isfinite(off) else 0.0 if off == 0 else math.inf
        self.lines.append((step, name, got, want, share, share <= tolerance))


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
                elif name.startswith("logits"):
                    size = max(abs(theirs[name]), 0.1)
                if name == "kl" and name not in ours and theirs[name] == 0:  # Of a loss without one.
                    continue
                if name == "kl":
                    size = max(abs(theirs[name]), 1e-2 * logps)
                report.add(step, name, ours.get(name), theirs[name], size)


def run_case(args, work, rows, name, algorithm, settings, special):
    """One line of the table, and whether all of its runs are within tolerance."""
    loss_type = settings.get("loss_type", [])
    by_tokens = "sft" in loss_type or algorithm == "orpo" or algorithm == "cpo" and settings.get("cpo_alpha", 1.0) > 0
    without = set()
    if settings.get("cpo_alpha") == 0 or loss_type == "alphapo":
        without = {"nll_loss"}
    if loss_type == ["sft"]:  # rlhost then reads no reference model.
        without = {figure for figure in FIGURES if figure.startswith("rewards")}
    reports, losses = [], None
    for kind in MODELS:
        model = work / f"{kind}-{special.get('template')}"
        if not model.exists():
            make_model(model, kind, rows, special.get("template"))
        these = rows_of(algorithm, rows, AutoTokenizer.from_pretrained(model), special)
        dataset = work / "rows.jsonl"
        dataset.write_text("".join(json.dumps(row) + "\n" for row in these))
        for accumulation in (1, 2):
            report = Report(f"{kind}, accumulation {accumulation}")
            out = work / "-".join([*name.split(), kind, str(accumulation)])
            got = run_rlhost(args.rlhost, algorithm, model, dataset, out, accumulation, settings, special)
            cut = (BATCH * accumulation, 1) if by_tokens else (BATCH, accumulation)
            callback = Step(report, out)
            want = train_trl(algorithm, model, these, work / "trl", *cut, settings, special, callback)
            compare_figures(report, got, want, settings.get("beta", 0.1), without)
            reports.append(report)
            steps = range(1, STEPS + 1)
            losses = losses or [" ".join(f"{run[step]['loss']:8.5f}" for step in steps) for run in (got, want)]
    return print_case(name, losses, reports, args.all)


HEAD = f"""{'':<24} {'loss after step 1, 2, 3 of the first run':^53}  {'greatest difference of all runs'}
{'case':<24} {'rlhost':>26} {'TRL':>26}  {'figures: step 1':<29} {'steps 2 and 3':<29} {'weights':>8} {'updates':>8}"""


def print_case(name, losses, reports, everything):
    """One line of the table with the figures that are out of tolerance, or all; whether none is."""

    def worst(wanted):
        lines = (line for report in reports for line in report.lines if wanted(*line[:2]))
        return max((share, figure) for _, figure, _, _, share, _ in lines)

    first = worst(lambda step, figure: step == 1 and not figure.startswith("weights"))
    later = worst(lambda step, figure: step > 1 and not figure.startswith("weights"))
    weights = worst(lambda _, figure: figure == "weights, all")[0]
    updates = worst(lambda _, figure: figure.startswith("weights") and figure != "weights, all")[0]
    first, later = (f"{share:.1e} {figure}" for share, figure in (first, later))
    print(f"{name:<24} {losses[0]:>26} {losses[1]:>26}  {first:<29} {later:<29} {weights:>8.1e} {updates:>8.1e}", flush=True)
    for report in reports:
        for step, figure, ours, theirs, share, good in report.lines:
            if everything or not good:
                both = f"{ours:>15.9g} {theirs:>15.9g} {share:>9.1e}{'' if good else '  <--'}"
                print(f"    {report.run}, step {step}  {figure:<44} {both}")
    return all(line[5] for report in reports for line in report.lines)


def be_quiet():
    """One thread, so that sums are always of the same order, and no word but the table's."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("trl").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path, help="the binary")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name contains this")
    parser.add_argument("--all", action="store_true", help="print every figure")
    args = parser.parse_args()

    be_quiet()
    rows, passed = make_rows(), True
    print(HEAD)
    with tempfile.TemporaryDirectory() as work:
        for case in CASES:
            if args.only in case[0]:
                passed &= run_case(args, Path(work), rows, *case)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
