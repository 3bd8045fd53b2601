#!/usr/bin/env python3
"""Distil a larger teacher into the built-in model on TL;DR posts, by its own completions and by given ones: what it learns.

    pip install torch safetensors
    cargo build
    python tests/parity/check_distillation_learns.py target/debug/rlhost --train train.jsonl --validation validation.jsonl

The rows have "prompt" and "completion", as those of trl-lib/tldr. The teacher is the built-in model with twice the layers, of which the new
ones begin without an effect, fine-tuned on the summaries. The student is the built-in model as it is. It learns for as many steps from its
own completions (the reverse divergence, and the mean of both) and from the dataset's (the forward divergence, as GKD with lmbda 0), with
three seeds. Afterwards two figures are computed of posts that no model has seen: the loss of the authors' summaries, and the reverse
divergence on what the student writes.

Margins, fixed before the first run: the divergence on own completions falls by at least 30% with each way of learning, and the loss of the
summaries by at least a quarter of what separates the student from its teacher where given completions are learned, and does not rise with
own ones. Whether own completions bring a student nearer to its teacher on what it writes, as the papers say (arXiv 2306.13649), is printed.
Exits 1 if a margin is missed. The last output is check_distillation_learns.txt beside this file.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BUILT_IN = Path(__file__).resolve().parents[2] / "examples/builtin-model/model"
LENGTHS = ["--max-completion-length", 48]
WAYS = {
    "own, reverse": ["--beta", 1, "--max-prompt-length", 192, *LENGTHS],
    "own, both": ["--beta", 0.5, "--max-prompt-length", 192, *LENGTHS],
    "given, forward": ["--beta", 0, "--learn-from", "dataset", "--max-length", 240],
}
SEEDS = (1, 2, 3)
FALL, SHARE = 0.3, 0.25


def make_teacher(folder):
    """The built-in model with twice the layers. Each new layer is a copy of the one before it, and adds nothing to the residual stream."""
    # Imported here, so that --help needs no packages.
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    config = json.loads((BUILT_IN / "config.json").read_text())
    config["num_hidden_layers"] *= 2
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((BUILT_IN / name).read_bytes())
    tensors = {}
    for name, tensor in load_file(BUILT_IN / "model.safetensors").items():
        if not name.startswith("model.layers."):
            tensors[name] = tensor
            continue
        layer, part = name.removeprefix("model.layers.").split(".", 1)
        tensors[f"model.layers.{2 * int(layer)}.{part}"] = tensor
        writes = part in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
        tensors[f"model.layers.{2 * int(layer) + 1}.{part}"] = 0 * tensor if writes else tensor.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def run(*arguments):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr[-3000:]}")
    return done.stdout


class Comparison:
    def __init__(self, rlhost, place, options):
        self.rlhost, self.place, self.options = rlhost, place, options
        self.start, self.train, self.held_out = place / "start", place / "train.jsonl", place / "held_out.jsonl"
        for path, rows, count in ((self.train, options.train, None), (self.held_out, options.validation, options.held_out)):
            path.write_text("".join(rows.read_text().splitlines(keepends=True)[:count]))
        make_teacher(self.start)
        self.teacher = place / "teacher" / f"checkpoint-{options.teacher_steps}"

    def teach(self):
        run(self.rlhost, "sft", "--model", self.start, "--dataset", self.train, "--max-length", 240, "--per-device-train-batch-size", 8,
            "--max-steps", self.options.teacher_steps, "--learning-rate", 3e-4, "--lr-scheduler-type", "cosine", "--warmup-steps", 20,
            "--output-dir", self.place / "teacher", "--quiet")

    def learn(self, way, seed):
        out = self.place / f"{way}-{seed}".replace(", ", "-")
        run(self.rlhost, "distillation", "--teacher-model", self.teacher, "--dataset", self.train, *WAYS[way],
            "--per-device-train-batch-size", 8, "--max-steps", self.options.steps, "--learning-rate", 2e-4, "--lr-scheduler-type", "cosine",
            "--warmup-steps", 10, "--seed", seed, "--output-dir", out, "--quiet")
        return out / f"checkpoint-{self.options.steps}"

    def evaluate(self, model):
        """The loss of the held-out summaries, and the reverse divergence on what the model writes."""
        common = ["--json", "--quiet", "--eval-dataset", self.held_out, "--dataset", self.train, "--per-device-eval-batch-size", 16,
                  *(["--model", model] if model else [])]
        given = run(self.rlhost, "eval", "--algorithm", "sft", "--max-length", 240, *common)
        own = run(self.rlhost, "eval", "--algorithm", "distillation", "--teacher-model", self.teacher, "--max-prompt-length", 192, *LENGTHS,
                  "--seed", 7, *common)
        return tuple(json.loads(text)["eval_loss"] for text in (given, own))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--held-out", type=int, default=200, help="rows of the validation that are used")
    parser.add_argument("--teacher-steps", type=int, default=400)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    failed = False

    def show(what, figures, good=None):
        said = "" if good is None else "ok  " if good else "FAIL"
        print(f"{said:<4}  {what:<24} {figures[0]:9.4f} {figures[1]:10.4f}", flush=True)

    with tempfile.TemporaryDirectory() as place:
        compared = Comparison(options.rlhost.resolve(), Path(place), options)
        compared.teach()
        teacher, before = compared.evaluate(compared.teacher), compared.evaluate(None)
        print(f"      {'':<24} {'summaries':>9} {'divergence':>10}")
        show("teacher", teacher)
        show("student before", before)
        gap, after = before[0] - teacher[0], {}
        for way in WAYS:
            for seed in SEEDS:
                figures = compared.evaluate(compared.learn(way, seed))
                learned = before[0] - figures[0] >= (SHARE * gap if way.startswith("given") else 0)
                good = learned and figures[1] <= (1 - FALL) * before[1]
                failed |= not good
                after.setdefault(way, []).append(figures)
                show(f"{way}, seed {seed}", figures, good)
    mean = {way: [statistics.mean(column) for column in zip(*figures)] for way, figures in after.items()}
    for way, figures in mean.items():
        show(f"{way}, mean", figures)
    nearer = mean["own, reverse"][1] < mean["given, forward"][1]
    print(f"      on what it writes, the student is nearer to its teacher after learning from {'its own' if nearer else 'given'} completions")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
