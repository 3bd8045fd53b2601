#!/usr/bin/env python3
"""Compare kinds of adapters with peft and TRL: magnitudes (DoRA), modules that are trained whole, and adapters on experts.

    python -m venv venv && venv/bin/pip install trl==1.16.0 peft accelerate datasets torch transformers
    cargo build && cargo build --example logits
    venv/bin/python tests/parity/check_adapters.py target/debug [--only NAME]

For each case, peft makes an adapter on a tiny model of tests/fixtures/make_models.py and changes all that it trains. Compared are the
logits of that folder; the gradients of one step, which an update by SGD shows; the losses and gradient norms of ten steps of TRL's
SFTTrainer beside `rlhost sft --model ADAPTER` (AdamW at a constant rate, four rows a step, f32 on the CPU); the names of the tensors
in the last checkpoint with those that peft writes; the logits of that checkpoint, opened by peft, and after TRL's steps; and the
logits of what `rlhost merge` makes of it, opened by transformers, with peft's own merge. Then rlhost makes an adapter by its own
flags, trains it, and peft opens it. The last output is check_adapters.txt beside this file.

Exits 1 if a logit differs by more than 1e-4 (after training, by more than 1e-3 of the largest), a gradient by more than 1e-4 of the
parameter's largest, a loss by more than 1e-4, or a gradient norm by more than 1e-3 of its size.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from checks import BATCH, Check, Rlhost, be_quiet, differ, make, opened, rows, tokenizer_of, trl, write_rows
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

STEPS = 10
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
# A name, a model, what peft is asked for, and the same in flags.
CASES = [
    ("dora", "qwen3", {"use_dora": True}, ["--use-dora"]),
    ("dora, biases", "llama_biased", {"use_dora": True, "use_rslora": True}, ["--use-dora", "--use-rslora"]),
    ("dora, joined", "phi3", {"use_dora": True}, ["--use-dora"]),
    ("dora, transposed", "gpt2", {"use_dora": True}, ["--use-dora"]),
    ("head, tied", "qwen3", {"modules_to_save": ["lm_head"]}, ["--lora-modules-to-save", "lm_head"]),
    ("embedding, tied", "qwen3", {"modules_to_save": ["embed_tokens"]}, ["--lora-modules-to-save", "embed_tokens"]),
    ("both, tied", "llama", {"modules_to_save": ["embed_tokens", "lm_head"]},
     ["--lora-modules-to-save", "embed_tokens", "lm_head"]),
    ("both", "qwen2", {"modules_to_save": ["embed_tokens", "lm_head"]}, ["--lora-modules-to-save", "embed_tokens,lm_head"]),
    ("norms", "qwen3", {"modules_to_save": ["norm"]}, ["--lora-modules-to-save", "norm"]),
    ("layer norms", "gpt_neox", {"modules_to_save": ["final_layer_norm", "lm_head"]},
     ["--lora-modules-to-save", "final_layer_norm", "lm_head"]),
    ("dora, head and norm", "llama_biased", {"use_dora": True, "modules_to_save": ["lm_head", "model.norm"]},
     ["--use-dora", "--lora-modules-to-save", "lm_head", "model.norm"]),
    ("experts", "qwen3_moe", {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
     ["--lora-target-parameters", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    ("experts, down", "mixtral", {"target_parameters": ["experts.down_proj"]}, ["--lora-target-parameters", "experts.down_proj"]),
    ("experts, wide", "olmoe", {"target_parameters": ["gate_up_proj"]}, ["--lora-target-parameters", "gate_up_proj"]),
    ("experts, stored together", "granitemoe", {"target_parameters": ["gate_up_proj", "down_proj"]},
     ["--lora-target-parameters", "gate_up_proj,down_proj"]),
]


def gradients(model, tokenizer):
    """Of the first batch's loss, by the names in files."""
    batch = []
    for row in rows(1):
        prompt, answer = (tokenizer.encode(row[key]) for key in ("prompt", "completion"))
        batch.append((prompt + answer + [tokenizer.eos_token_id], len(prompt)))
    tokens = sum(len(ids) - prompt for ids, prompt in batch)
    for ids, prompt in batch:
        logp = model(input_ids=torch.tensor([ids])).logits[0, prompt - 1 : -1].log_softmax(-1)
        (-logp.gather(1, torch.tensor(ids[prompt:])[:, None]).sum() / tokens).backward()
    found = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            name = name.replace(".modules_to_save.default", "").replace("lora_magnitude_vector.default.weight", "lora_magnitude_vector")
            found[name.replace(".default", "")] = p.grad.clone()
            p.grad = None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path, help="where cargo has put rlhost and examples/logits")
    parser.add_argument("--only", default="", metavar="NAME", help="only cases whose name has this in it")
    given = parser.parse_args()
    be_quiet()
    check = Check()
    for case, name, options, flags in CASES:
        if given.only in case:
            with tempfile.TemporaryDirectory() as place:
                compare(f"{case} ({name})", name, options, flags, Rlhost(given.binaries, Path(place)), check)
    return 1 if check.failed else 0


def compare(case, name, options, flags, rlhost, check):
    run, logits, place = rlhost.run, rlhost.logits, rlhost.place
    write_rows(place, STEPS)
    base, adapter = place / "base", place / "adapter"
    make(name, base, run, 256)
    tokenizer = tokenizer_of(base)
    targets = ATTENTION if name in ("mixtral", "olmoe", "qwen3_moe") else "all-linear"
    torch.manual_seed(0)
    config = {"r": 4, "lora_alpha": 2, "target_modules": targets, "init_lora_weights": False} | options
    theirs = get_peft_model(opened(base), LoraConfig(task_type="CAUSAL_LM", **config))
    with torch.no_grad():
        for parameter, p in theirs.named_parameters():
            if p.requires_grad and "lora_A" not in parameter and "lora_B" not in parameter:
                p.mul_(1 + 0.2 * torch.rand_like(p))
    theirs.save_pretrained(adapter)
    check(f"{case}: logits of what peft has written", differ(logits(adapter), theirs)[0], 1e-4)

    # Of the loss alone, without a mixture's auxiliary one.
    once = ["sft", "--dataset", "rows.jsonl", "--max-steps", 1, "--save-steps", 1, "--per-device-train-batch-size", BATCH]
    once += ["--shuffle-dataset", "false", "--optim", "sgd", "--learning-rate", 1, "--lr-scheduler-type", "constant"]
    once += ["--max-grad-norm", 0, "--weight-decay", 0, "--model", adapter, "--output-dir", place / "once"]
    run(*once, *(["--router-aux-loss-coef", 0] if "experts" in case else []))
    before, after = load_file(adapter / "adapter_model.safetensors"), load_file(place / "once/checkpoint-1/adapter_model.safetensors")
    want = gradients(theirs, tokenizer)
    check(f"{case}: names of parameters with a gradient that only one has", len(want.keys() ^ after.keys()), 0)
    far = max(((before[key] - after[key] - want[key]).abs().max() / want[key].abs().max()).item() for key in want)
    check(f"{case}: gradients of {len(want)} parameters, of their largest", far, 1e-4)

    out, peer = place / "run", place / "peer"
    ours = rlhost.sft(adapter, out, STEPS)
    trained, steps = trl(theirs, tokenizer, place / "trl", STEPS)
    pairs = list(zip(steps, ours, strict=True))
    check(f"{case}: losses of {STEPS} steps", max(abs(loss - own["loss"]) for (loss, _), own in pairs), 1e-4)
    check(f"{case}: their gradient norms", max(abs(norm - own["grad_norm"]) / norm for (_, norm), own in pairs), 1e-3)
    trained.save_pretrained(peer)
    last = out / f"checkpoint-{STEPS}"
    names = set(load_file(last / "adapter_model.safetensors")) ^ set(load_file(peer / "adapter_model.safetensors"))
    check(f"{case}: names of tensors that only one has {sorted(names)[:2]}", len(names), 0)
    own = logits(last)
    again = PeftModel.from_pretrained(opened(base), last)
    check(f"{case}: logits of the checkpoint, opened by peft", differ(own, again)[0], 1e-4)
    difference, largest = differ(own, trained)
    check(f"{case}: logits after training, of the largest", difference / largest, 1e-3)
    run("merge", last, place / "merged")
    check(f"{case}: logits of the merged model, opened by transformers", differ(own, opened(place / "merged"))[0], 1e-4)
    check(f"{case}: logits of the merged model, of peft's", differ(logits(place / "merged"), again.merge_and_unload())[0], 1e-4)

    fresh = place / "fresh"
    rlhost.sft(base, fresh, STEPS, "--use-peft", "--lora-r", 4, "--lora-dropout", 0, *flags)
    last = fresh / f"checkpoint-{STEPS}"
    check(f"{case}: logits of a new adapter's checkpoint", differ(logits(last), PeftModel.from_pretrained(opened(base), last))[0], 1e-4)


if __name__ == "__main__":
    sys.exit(main())
