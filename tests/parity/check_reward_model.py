#!/usr/bin/env python3
"""Train reward models on the same pairs with TRL's RewardTrainer and with rlhost, and compare every figure and the scores.

    python -m venv venv && venv/bin/pip install trl==1.16.0 peft accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/parity/check_reward_model.py target/debug/rlhost [--only NAME] [--all]

Two tiny random models (an untied Qwen2, and a tied Llama whose tokenizer begins every text with <s>), made for sequence
classification by transformers, the same made-up pairs in the same order, ten optimizer steps with batches of 4 pairs, with and
without margins and centering, as texts and as conversations, with an adapter, and with an accumulation of 2. Both in f32 on the CPU,
AdamW at a constant rate, gradients clipped at 1, no dropout. One tokenizer pads with its ending token, so that a value is that of the
token before it; the other has a padding token of its own. After the last step transformers, or peft, opens what rlhost saved and
scores texts of the dataset; `rlhost score` scores them with what TRL saved. The last output is check_reward_model.txt beside this
file.

Exits 1 if the loss differs by more than 1e-4 of its size, the gradient's norm by more than 1e-3, another figure by more than 1e-4
of the greatest reward, or a score by more than 1e-4.

What is defined differently: over several micro-batches, `min_reward` and `max_reward` are the least and the greatest in rlhost and
means in TRL, so they aren't compared where gradients are accumulated.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import datasets
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer

from trl_steps import EOS, MODELS, make_model, make_rows, output_of, read_lines, write_lines

STEPS, BATCH, RATE, EPSILON = 10, 4, 1e-3, 1e-6
# Name, settings of the loss, and what else is special.
CASES = [
    ("plain", {}, {}),
    ("margin", {}, {"margin": True}),
    ("centering", {"center_rewards_coefficient": 0.01}, {}),
    ("margin and centering", {"center_rewards_coefficient": 0.1}, {"margin": True}),
    ("chat", {}, {"template": "chat"}),
    ("no prompt column", {}, {"joined": True}),
    ("max_length 120", {}, {"max_length": 120}),
    ("accumulation", {}, {"accumulation": 2, "margin": True}),
    ("adapter", {}, {"lora": True}),
]
FIGURES = ["loss", "grad_norm", "learning_rate", "num_tokens", "accuracy", "margin", "min_reward", "mean_reward", "max_reward"]


def rows_of(special):
    rows = [{name: text for name, text in row.items()} for row in make_rows()]
    if special.get("template"):
        role = {"prompt": "user", "chosen": "assistant", "rejected": "assistant"}
        turn = lambda name, text: [{"role": role[name], "content": text.removesuffix(EOS).strip()}]
        rows = [{name: turn(name, text) for name, text in row.items()} for row in rows]
    if special.get("joined"):
        rows = [{side: row["prompt"] + row[side] for side in ("chosen", "rejected")} for row in rows]
    if special.get("margin"):
        rng = random.Random(3)
        rows = [{**row, "margin": rng.choice([0.0, 0.5, 1, 2.25])} for row in rows]
    return rows


def make_start(folder, kind, rows, special):
    """A model for sequence classification with a random head of some size."""
    texts = [{"prompt": "", "chosen": json.dumps(row)} for row in rows]
    make_model(folder, kind, texts, special.get("template"))
    if kind == "llama":
        # Padding of its own.
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": "!"}))
    torch.manual_seed(len(kind))
    pad = AutoTokenizer.from_pretrained(folder).pad_token_id
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32, pad_token_id=pad)
    with torch.no_grad():
        model.score.weight.mul_(10)
    model.save_pretrained(folder)


def run_rlhost(binary, model, dataset, out, settings, special):
    command = [binary, "reward", "--model", model, "--dataset", dataset, "--output-dir", out, "--max-steps", STEPS,
               "--logging-steps", 1, "--save-steps", STEPS, "--per-device-train-batch-size", BATCH,
               "--gradient-accumulation-steps", special.get("accumulation", 1), "--learning-rate", RATE,
               "--lr-scheduler-type", "constant", "--adam-epsilon", EPSILON, "--shuffle-dataset", "false", "--seed", 1,
               "--num-threads", 1]
    if "max_length" in special:
        command += ["--max-length", special["max_length"]]
    for key, value in settings.items():
        command += ["--" + key.replace("_", "-"), value]
    output_of(command)
    return {line["step"]: line for line in read_lines(out / "metrics.jsonl")}


class Logs(transformers.TrainerCallback):
    def __init__(self):
        self.logs = {}

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.setdefault(state.global_step, dict(logs))


def open_model(model):
    kw = dict(dtype=torch.float32, attn_implementation="eager", num_labels=1)
    if (model / "adapter_config.json").exists():
        base = json.loads((model / "adapter_config.json").read_text())["base_model_name_or_path"]
        return PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base, **kw), model, is_trainable=True)
    return AutoModelForSequenceClassification.from_pretrained(model, **kw)


def train_trl(model, rows, out, settings, special):
    args = RewardConfig(
        output_dir=str(out), max_steps=STEPS, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        bf16=False, gradient_checkpointing=False, per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=special.get("accumulation", 1), learning_rate=RATE, lr_scheduler_type="constant",
        weight_decay=0.0, adam_epsilon=EPSILON, max_grad_norm=1.0, seed=1, train_sampling_strategy="sequential",
        max_length=special.get("max_length", 1024), optim="adamw_torch", **settings)
    logs = Logs()
    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = RewardTrainer(
        model=open_model(model), args=args, train_dataset=datasets.Dataset.from_list(rows), callbacks=[logs],
        processing_class=tokenizer)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return logs.logs


def texts_of(rows):
    """Conversations, or texts with their end, as RewardTrainer makes them."""
    for row in rows:
        for side in ("chosen", "rejected"):
            whole = row.get("prompt", "" if isinstance(row[side], str) else []) + row[side]
            yield whole if isinstance(whole, list) or whole.endswith(EOS) else whole + EOS


@torch.no_grad()
def scores_of_transformers(model, rows):
    tokenizer, model = AutoTokenizer.from_pretrained(model), open_model(model).eval()
    ids = [tokenizer.apply_chat_template(text, return_dict=True)["input_ids"] if isinstance(text, list)
           else tokenizer(text)["input_ids"] for text in texts_of(rows)]
    longest = max(map(len, ids))
    padded = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    return model(input_ids=padded, attention_mask=mask).logits.squeeze(-1).tolist()


def scores_of_rlhost(binary, model, dataset):
    command = [binary, "score", model, "--dataset", dataset, "--json"]
    lines = map(json.loads, output_of(command).splitlines())
    return [score for line in lines for score in (line["chosen"], line["rejected"])]


def compare(got, want, accumulates):
    worst = {}
    for step in range(1, STEPS + 1):
        ours, theirs = got[step], want[step]
        reward = max(abs(theirs["min_reward"]), abs(theirs["max_reward"]))
        for name in FIGURES:
            if accumulates and name in ("min_reward", "max_reward"):
                continue
            size = reward if name.endswith("reward") or name == "margin" else max(abs(theirs[name]), 1e-12)
            off = abs(float(ours.get(name, float("nan"))) - float(theirs[name])) / size
            if not off <= worst.get(name, (0.0, 0))[0]:
                worst[name] = (off, step)
    return worst


def check(binary, kind, name, settings, special, folder, show):
    rows = rows_of(special)
    start, dataset = folder / "start", folder / "pairs.jsonl"
    make_start(start, kind, rows, special)
    if special.get("lora"):
        base, start = start, folder / "adapter"
        torch.manual_seed(5)
        lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], modules_to_save=["score"],
                          task_type="SEQ_CLS", init_lora_weights=False)
        get_peft_model(open_model(base), lora).save_pretrained(start)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(base / file, start / file)
    write_lines(dataset, rows)
    got = run_rlhost(binary, start, dataset, folder / "run", settings, special)
    want = train_trl(start, rows, folder / "trl", settings, special)
    worst = compare(got, want, special.get("accumulation", 1) > 1)
    if show:
        for step in range(1, STEPS + 1):
            print({key: (got[step].get(key), want[step].get(key)) for key in FIGURES})
    tolerance = lambda figure: 1e-3 if figure == "grad_norm" else 1e-4
    saved = folder / "run" / f"checkpoint-{STEPS}"
    here, there = scores_of_rlhost(binary, saved, dataset), scores_of_transformers(saved, rows)
    of_trl = scores_of_rlhost(binary, folder / "trl", dataset), scores_of_transformers(folder / "trl", rows)
    off = {"scores of rlhost's model": max(abs(a - b) for a, b in zip(here, there, strict=True)),
           "scores of TRL's model": max(abs(a - b) for a, b in zip(*of_trl, strict=True))}
    spread = max(there) - min(there)
    good = all(share <= tolerance(figure) for figure, (share, _) in worst.items()) and max(off.values()) <= 1e-4 and spread > 0.1
    words = [f"{figure} {share:.1e} in step {step}" for figure, (share, step) in worst.items() if share > 0]
    print(f"{'ok  ' if good else 'FAIL'} {kind} {name}: greatest differences {', '.join(words) or 'none'}; "
          + ", ".join(f"{what} {far:.1e}" for what, far in off.items()) + f", which spread over {spread:.2f}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--all", action="store_true", help="print every figure")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    good = True
    for name, settings, special in CASES:
        for kind in MODELS:
            if args.only is None or args.only in f"{kind} {name}":
                with tempfile.TemporaryDirectory() as folder:
                    good &= check(args.binary.resolve(), kind, name, settings, special, Path(folder), args.all)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
