"""What the checks of single steps against TRL share: tiny models, made-up rows, runs of both, and the table of what differs."""

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
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

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
SHAPE = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=CONTEXT,
)
MODELS = {"qwen2": (Qwen2Config, False), "llama": (LlamaConfig, True)}
# What all of TRL's runs have in common, and those at a constant rate.
TRL = dict(
    max_steps=STEPS, logging_steps=1, logging_first_step=False, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
    bf16=False, gradient_checkpointing=False, learning_rate=RATE, seed=1, optim="adamw_torch")
TRL_CONSTANT = TRL | dict(
    lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, train_sampling_strategy="sequential")


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


def make_model(folder, kind, rows, template, seed=None):
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
    # transformers gives the embedding of the padding token no gradient where it is read, and conversations have `</s>` within them.
    ids = dict(vocab_size=bpe.get_vocab_size(), bos_token_id=None, eos_token_id=ending, pad_token_id=None)
    model = AutoModelForCausalLM.from_config(config(tie_word_embeddings=tied, **ids, **SHAPE), dtype=torch.float32)
    generator = torch.Generator().manual_seed(len(kind) if seed is None else seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator) + name.endswith("norm.weight"))
    model.save_pretrained(folder)


def load_model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path):
    # Texts may contain separators other than "\n".
    return [json.loads(line) for line in path.read_text().split("\n") if line]


def output_of(command):
    """What a command prints."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def run_rlhost(command, model, dataset, out, flags, settings):
    """Trains with rlhost and returns what each step logs. `settings` are by their names in a configuration file."""
    text = lambda value: json.dumps(value) if isinstance(value, (bool, list, dict)) else value
    flags = {"model": model, "dataset": dataset, "output-dir": out, "max-steps": STEPS, "logging-steps": 1, "save-steps": 1,
             "learning-rate": RATE, "shuffle-dataset": False, "seed": 1, "num-threads": 1} | flags
    for name, value in flags.items():
        command = [*command, f"--{name}", text(value)]
    for name, value in settings.items():
        command += ["--set", f"{name}={text(value)}"]
    output_of(command)
    return {line["step"]: line for line in read_lines(out / "metrics.jsonl")}


def train(trainer):
    """Runs one of TRL's trainers without a word."""
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()


class ByTokens:
    """Averages some figures over the step's tokens rather than over its micro-batches."""

    # Where the trainer keeps its figures.
    kept_in = "_metrics"

    def __init__(self, *args, **kw):
        self.sums = {}
        super().__init__(*args, **kw)

    def weigh(self, name, mean, tokens):
        total = self.sums.setdefault(name, [0.0, 0])
        total[0] += float(mean) * int(tokens)
        total[1] += int(tokens)

    def log(self, logs, start_time=None):
        for name, (total, tokens) in self.sums.items():
            getattr(self, self.kept_in)["train"][name] = [total / tokens]
        self.sums.clear()
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


class Case:
    """A line of the table: a case's runs by both, and how they differ."""

    def __init__(self, name, work):
        self.name, self.work, self.reports, self.losses = name, work, [], None

    def begin(self, kind, accumulation, tolerance=TOLERANCE):
        """The folder of rlhost's next run, and what watches TRL's."""
        out = self.work / "-".join([*self.name.replace(",", "").split(), kind, str(accumulation)])
        self.reports.append(Report(f"{kind}, accumulation {accumulation}"))
        return out, Step(self.reports[-1], out, tolerance)

    def end(self, got, want):
        """Keeps the losses of the first run."""
        steps = range(1, STEPS + 1)
        self.losses = self.losses or [" ".join(f"{run[step]['loss']:8.5f}" for step in steps) for run in (got, want)]

    def print(self, everything):
        """Prints the line with the figures that are out of tolerance, or all; returns whether none is."""
        return print_case(self.name, self.losses, self.reports, everything)


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


def main(description, cases, run_case):
    """Checks the cases that the command line names; `run_case` gets its arguments, a folder and a case's parts."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("rlhost", type=Path, help="the binary")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name contains this")
    parser.add_argument("--all", action="store_true", help="print every figure")
    args = parser.parse_args()

    be_quiet()
    passed = True
    print(HEAD)
    with tempfile.TemporaryDirectory() as work:
        for case in cases:
            if args.only in case[0]:
                passed &= run_case(args, Path(work), *case)
    return 0 if passed else 1
