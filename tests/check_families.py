#!/usr/bin/env python3
"""Train a tiny model of each family with TRL's SFTTrainer and with rlhost, and compare; then read what rlhost wrote.

    python -m venv venv && venv/bin/pip install trl==1.16.0 peft accelerate datasets torch transformers
    cargo build && cargo build --example logits
    venv/bin/python tests/check_families.py target/debug [--only NAME]

The models are those of tests/fixtures/make_models.py, every odd feature on and windows shorter than the texts, with a tokenizer of
bytes. For each, whole and as an adapter that peft made: three optimizer steps of four rows, AdamW at a constant rate, gradients
clipped at 1, in f32 on the CPU. Compared are each step's loss and gradient norm; the names of the tensors in the checkpoint with
those that transformers or peft write; the logits of the checkpoint, opened by transformers or peft, with TRL's and with rlhost's
own; and 48 tokens of greedy text with transformers'. Losses and gradients of mixtures of experts include the auxiliary loss, at the
fixture's coefficient. The last output is check_families.txt beside this file.

Exits 1 if a loss differs by more than 1e-4, a gradient norm by more than 1e-3 of its size, or a logit by more than 1e-4 (by more
than 1e-3 of the largest between two trained models).
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parent / "fixtures"))

import datasets
import torch
import transformers
from checks import Check, make, opened
from make_models import MODELS
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

STEPS, BATCH, RATE, EPSILON, NEW = 3, 4, 1e-3, 1e-6, 48
# Not those that differ only in how they are stored.
NAMES = [name for name in MODELS if name not in ("llama3_parameters", "qwen2_sharded", "gemma3_vision")]
PROMPT = "question 7"


def rows():
    return [{"prompt": f"question {i}", "completion": " " + "abcde"[i % 5] * (3 + i % 7) + "x"} for i in range(STEPS * BATCH)]


def tokenizer_of(base):
    end = json.loads((base / "config.json").read_text())["eos_token_id"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(base / "tokenizer.json"))
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(end)
    return tokenizer


def trl(model, tokenizer, out):
    config = SFTConfig(
        output_dir=str(out), per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=RATE, weight_decay=0.0,
        adam_epsilon=EPSILON, lr_scheduler_type="constant", max_grad_norm=1.0, logging_steps=1, save_strategy="no",
        train_sampling_strategy="sequential", report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, max_length=None, warmup_steps=0,
    )
    if hasattr(model.config, "num_local_experts") and not hasattr(model.config, "num_experts"):
        # TRL 1.16 looks for the other name, which Granite's configurations don't have.
        model.config.num_experts = model.config.num_local_experts
    trainer = SFTTrainer(model, config, train_dataset=datasets.Dataset.from_list(rows()), processing_class=tokenizer)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return trainer.model.eval(), [(step["loss"], step["grad_norm"]) for step in steps]


def greedy(model, tokenizer):
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    with torch.no_grad():
        for _ in range(NEW):
            following = model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
            ids = torch.cat([ids, following[None, None]], 1)
            if following == tokenizer.eos_token_id:
                break
    return tokenizer.decode(ids[0], skip_special_tokens=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path, help="where cargo has put rlhost and examples/logits")
    parser.add_argument("--only", default="", metavar="NAME", help="only models whose name has this in it")
    given = parser.parse_args()
    binaries = given.binaries.absolute()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)
    check = Check()

    for name in NAMES:
        if given.only not in name:
            continue
        with tempfile.TemporaryDirectory() as place:
            compare(name, Path(place), binaries, check)
    return 1 if check.failed else 0


def compare(name, place, binaries, check):
    def run(*arguments, program="rlhost"):
        # As bytes, since a text may have any ends of lines.
        done = subprocess.run([binaries / program, *map(str, arguments)], cwd=place, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"{program} {' '.join(map(str, arguments))}: {done.stderr.decode()}")
        return done.stdout.decode()

    def logits(folder):
        run(folder, "logits.safetensors", program="examples/logits")
        return load_file(place / "logits.safetensors")

    def differ(ours, model):
        with torch.no_grad():
            want = model.eval()(input_ids=ours["input_ids"].long(), use_cache=False).logits
        return (ours["logits"] - want).abs().max().item(), want.abs().max().item()

    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    base = place / "base"
    made = make(name, base, run, 256)
    tokenizer = tokenizer_of(base)
    check(f"{name}: logits", differ(logits(base), made)[0], 1e-4)
    text = run("generate", "-q", "--model", base, "--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", NEW)
    want = greedy(made, tokenizer)
    check(f"{name}: greedy text of {len(want) - len(PROMPT)} characters", float(want.strip() not in text), 0)

    # For these, peft takes all-linear as the experts, too.
    fused = name.startswith(("mixtral", "olmoe", "qwen3_moe"))
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"] if fused else "all-linear"
    theirs = get_peft_model(
        opened(base), LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, r=4, lora_alpha=2, target_modules=targets)
    )
    theirs.save_pretrained(place / "adapter")
    for kind, model, start, file in (
        ("whole", opened(base), base, "model.safetensors"),
        ("adapter", theirs, place / "adapter", "adapter_model.safetensors"),
    ):
        out, peer = place / f"run-{kind}", place / f"peer-{kind}"
        training = ["sft", "--dataset", "rows.jsonl", "--max-steps", STEPS, "--save-steps", STEPS, "--logging-steps", 1]
        training += ["--per-device-train-batch-size", BATCH, "--shuffle-dataset", "false", "--lr-scheduler-type", "constant"]
        training += ["--learning-rate", RATE, "--weight-decay", 0, "--adam-epsilon", EPSILON]
        run(*training, "--model", start, "--output-dir", out)
        ours = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        trained, steps = trl(model, tokenizer, place / "trl")
        for number, ((loss, norm), own) in enumerate(zip(steps, ours, strict=True), 1):
            check(f"{name}, {kind}: loss of step {number}", abs(loss - own["loss"]), 1e-4)
            check(f"{name}, {kind}: gradient norm of step {number}", abs(norm - own["grad_norm"]) / norm, 1e-3)
        trained.save_pretrained(peer)
        last = out / f"checkpoint-{STEPS}"
        names = set(load_file(last / file)) ^ set(load_file(peer / file))
        check(f"{name}, {kind}: names of tensors that only one has {sorted(names)[:2]}", len(names), 0)
        after = logits(last)
        again = opened(last) if kind == "whole" else PeftModel.from_pretrained(opened(base), last)
        check(f"{name}, {kind}: logits of the checkpoint, opened there", differ(after, again)[0], 1e-4)
        difference, largest = differ(after, trained)
        check(f"{name}, {kind}: logits after training, of the largest", difference / largest, 1e-3)


if __name__ == "__main__":
    sys.exit(main())
