#!/usr/bin/env python3
"""Compare adapters with the peft package: reading, writing, merging, and training beside it.

    python -m venv venv && venv/bin/pip install torch transformers peft
    cargo build && cargo build --example logits
    venv/bin/python tests/parity/check_lora.py target/debug

For two tiny random models (a tied Qwen2 with biases, and an untied Llama): peft makes an adapter
that is not zero, on all linear layers or, with rsLoRA, on two of them; `rlhost sft --model ADAPTER`
goes on with it for three steps, and torch with peft does the same. Compared are each step's loss and
the adapter of each checkpoint. Logits are compared of peft's adapter, of the last checkpoint opened
by peft (by itself and by AutoPeftModelForCausalLM), and of what `rlhost merge` and peft's own
`merge_and_unload` make of it. A new adapter's checkpoint is opened by peft too.

AdamW's epsilon is 1e-6, so that gradients of mere rounding make no updates of full size. Exits 1
if a logit differs by more than 1e-4, or a loss or a weight of an adapter by more than 1e-5.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch
from checks import Check, opened
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers.utils.logging import disable_progress_bar

LOGITS, TOLERANCE = 1e-4, 1e-5
STEPS, BATCH, RATE, DECAY, EPSILON = 3, 4, 1e-3, 0.1, 1e-6
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}
MODELS = {
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True},
    "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
}
ADAPTERS = {
    "qwen2": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "llama": {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
}


def rows(base, dataset):
    """Token ids of each row and the length of its prompt; one token a byte, and the end."""
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    end = json.loads((base / "config.json").read_text())["eos_token_id"]
    for line in dataset.read_text().splitlines():
        row = json.loads(line)
        prompt, answer = (tokenizer.encode(row[key]).ids for key in ("prompt", "completion"))
        yield prompt + answer + [end], len(prompt)


def train(model, batches):
    """SFT by hand; yields each step's loss and the adapter after it."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    optimizer = torch.optim.AdamW(trained.values(), lr=RATE, weight_decay=DECAY, eps=EPSILON)
    for batch in batches:
        optimizer.zero_grad()
        tokens = sum(len(ids) - prompt for ids, prompt in batch)
        total = 0.0
        for ids, prompt in batch:
            logp = model(input_ids=torch.tensor([ids])).logits[0, prompt - 1 : -1].log_softmax(-1)
            loss = -logp.gather(1, torch.tensor(ids[prompt:])[:, None]).sum() / tokens
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
        optimizer.step()
        yield total, {name.replace(".default", ""): p.detach().clone() for name, p in trained.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path, help="where cargo has put rlhost and examples/logits")
    binaries = parser.parse_args().binaries.absolute()
    disable_progress_bar()
    check = Check()

    with tempfile.TemporaryDirectory() as place:
        place = Path(place)

        def run(*arguments, program="rlhost"):
            done = subprocess.run([binaries / program, *map(str, arguments)], cwd=place, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{program} {' '.join(map(str, arguments))}: {done.stderr}")

        def same_logits(what, folder, model):
            run(folder, "logits.safetensors", program="examples/logits")
            given = load_file(place / "logits.safetensors")
            with torch.no_grad():
                want = model.eval()(input_ids=given["input_ids"].long()).logits
            check(what, (given["logits"] - want).abs().max().item(), LOGITS)

        dataset = place / "answers.jsonl"
        lines = ({"prompt": f"question {i}", "completion": " " + "abc"[i % 3] * (3 + i % 5)} for i in range(STEPS * BATCH))
        dataset.write_text("".join(json.dumps(line) + "\n" for line in lines))
        training = ["sft", "--dataset", dataset, "--max-steps", STEPS, "--save-steps", 1, "--logging-steps", 1]
        training += ["--per-device-train-batch-size", BATCH, "--shuffle-dataset", "false", "--lr-scheduler-type", "constant"]
        training += ["--learning-rate", RATE, "--weight-decay", DECAY, "--adam-epsilon", EPSILON]

        for name, family in MODELS.items():
            base, adapter, out = place / name, place / f"{name}-adapter", place / f"{name}-run"
            (place / "config.json").write_text(json.dumps(SIZES | family))
            run("new-model", base, "--config", "config.json", "--corpus", dataset, "--vocab-size", 257)
            torch.manual_seed(0)
            theirs = get_peft_model(
                opened(base), LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, lora_dropout=0.0, **ADAPTERS[name])
            )
            theirs.save_pretrained(adapter)
            same_logits(f"{name}: logits of an adapter that peft has written", adapter, theirs)

            run(*training, "--model", adapter, "--output-dir", out)
            logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            given = list(rows(base, dataset))
            batches = [given[i : i + BATCH] for i in range(0, len(given), BATCH)]
            for step, (loss, want) in enumerate(train(theirs, batches), 1):
                check(f"{name}: loss of step {step}", abs(loss - logged[step - 1]["loss"]), TOLERANCE)
                got = load_file(out / f"checkpoint-{step}" / "adapter_model.safetensors")
                if got.keys() != want.keys():
                    sys.exit(f"names differ: {sorted(got.keys() ^ want.keys())}")
                worst = max((got[key] - want[key]).abs().max().item() for key in got)
                check(f"{name}: adapter after step {step}", worst, TOLERANCE)

            last = out / f"checkpoint-{STEPS}"
            same_logits(f"{name}: logits of a checkpoint, opened by peft", last, PeftModel.from_pretrained(opened(base), last))
            auto = AutoPeftModelForCausalLM.from_pretrained(last, dtype=torch.float32)
            same_logits(f"{name}: the same by AutoPeftModelForCausalLM", last, auto)
            run("merge", last, place / f"{name}-merged")
            same_logits(f"{name}: logits of the checkpoint, of the merged model", last, opened(place / f"{name}-merged"))
            same_logits(f"{name}: logits of the merged model, of peft's", place / f"{name}-merged", auto.merge_and_unload())

            fresh = place / f"{name}-fresh"
            run(*training, "--model", base, "--use_peft", "--lora-target-modules", "k_proj,up_proj", "--output-dir", fresh)
            last = fresh / f"checkpoint-{STEPS}"
            same_logits(f"{name}: logits of a new adapter's checkpoint", last, PeftModel.from_pretrained(opened(base), last))
            bounds = [
                t.abs().max().item() * math.sqrt(t.shape[1])
                for key, t in load_file(last / "adapter_model.safetensors").items()
                if "lora_A" in key
            ]
            # Three updates have moved it, each by the rate at most.
            check(f"{name}: its A lies within Kaiming's bounds", max(bounds) - 1, 1.01 * STEPS * RATE * math.sqrt(SIZES["hidden_size"]))
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
