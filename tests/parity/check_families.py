#!/usr/bin/env python3
"""Train a tiny model of each family with TRL's SFTTrainer and with rlhost, and compare; then read what rlhost wrote.

    python -m venv venv && venv/bin/pip install trl==1.16.0 peft accelerate datasets torch transformers
    cargo build && cargo build --example logits
    venv/bin/python tests/parity/check_families.py target/debug [--only NAME]

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
import sys
import tempfile
from pathlib import Path

import torch
from checks import Check, Rlhost, be_quiet, differ, make, opened, tokenizer_of, trl, write_rows
from make_models import MODELS
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

STEPS, NEW = 3, 48
# Not those that differ only in how they are stored.
NAMES = [name for name in MODELS if name not in ("llama3_parameters", "qwen2_sharded", "gemma3_vision", "gemma4_vision", "mistral3_vision")]
PROMPT = "question 7"


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
    be_quiet()
    check = Check()

    for name in NAMES:
        if given.only not in name:
            continue
        with tempfile.TemporaryDirectory() as place:
            compare(name, Rlhost(given.binaries, Path(place)), check)
    return 1 if check.failed else 0


def compare(name, rlhost, check):
    run, logits, place = rlhost.run, rlhost.logits, rlhost.place
    write_rows(place, STEPS)
    base = place / "base"
    made = make(name, base, run, 256)
    tokenizer = tokenizer_of(base)
    check(f"{name}: logits", differ(logits(base), made)[0], 1e-4)
    text = run("generate", "-q", "--model", base, "--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", NEW)
    want = greedy(made, tokenizer)
    check(f"{name}: greedy text of {len(want) - len(PROMPT)} characters", float(want.strip() not in text), 0)

    # For these, peft takes all-linear as the experts, too.
    fused = name.startswith(("glm4_moe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"))
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"] if fused else "all-linear"
    if name.startswith("lfm2_moe"):
        targets = ["in_proj", "out_proj", "q_proj", "k_proj", "v_proj"]
    if name.startswith("qwen3_next"):
        targets = ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj"]
    if name.startswith("qwen3_5_moe"):
        targets = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj"]
    if name.startswith("deepseek"):
        queries = ["q_proj"] if name == "deepseek_v2" else ["q_a_proj", "q_b_proj"]
        targets = [*queries, "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    if name.startswith("nemotron_h"):
        # peft refuses out_proj there.
        targets = ["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    if name.startswith("falcon_h1"):
        # Nor here.
        targets = ["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    if name.startswith("llama4"):
        # Not the router, which is a linear layer there.
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    theirs = get_peft_model(
        opened(base), LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, r=4, lora_alpha=2, target_modules=targets)
    )
    theirs.save_pretrained(place / "adapter")
    for kind, model, start, file in (
        ("whole", opened(base), base, "model.safetensors"),
        ("adapter", theirs, place / "adapter", "adapter_model.safetensors"),
    ):
        out, peer = place / f"run-{kind}", place / f"peer-{kind}"
        ours = rlhost.sft(start, out, STEPS)
        trained, steps = trl(model, tokenizer, place / "trl", STEPS)
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
