"""What the checks against transformers, peft, TRL and llama.cpp share."""

import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fixtures"))
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import torch
import transformers
from make_models import MODELS, fill
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

# Of training beside TRL.
BATCH, RATE, EPSILON = 4, 1e-3, 1e-6


def be_quiet():
    """One thread, so that sums are always of the same order, and no word but the checks'."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


class Check:
    """Says of each difference whether it is small enough, and remembers whether one was not."""

    def __init__(self):
        self.failed = False

    def __call__(self, what, difference, tolerance):
        good = difference <= tolerance  # a NaN is not
        self.failed |= not good
        print(f"{'ok  ' if good else 'FAIL'} {difference:9.2e}  {what}", flush=True)


def opened(base):
    """A model in f32, with attention as it is written."""
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()


def make(name, base, run, context, changed=None):
    """A model of the fixture's configuration, with some keys changed, a tokenizer of bytes and longer texts: those of rows.jsonl."""
    seed, config, *_ = MODELS[name]
    config = json.loads(config.to_json_string(use_diff=False))
    for key in ("vocab_size", "bos_token_id", "eos_token_id", "dtype", "transformers_version"):
        config.pop(key, None)
    length = "n_positions" if "n_positions" in config else "max_position_embeddings"
    architecture = type(AutoModelForCausalLM.from_config(MODELS[name][1])).__name__
    if "vocab_size_per_layer_input" in config:
        config["vocab_size_per_layer_input"] = 257
    config |= {"pad_token_id": None, length: context, "architectures": [architecture], **(changed or {})}
    scalings = config.get("rope_parameters") or {}
    for scaling in [scalings, *(scalings.get(kind) or {} for kind in ("full_attention", "sliding_attention"))]:
        if scaling.get("rope_type") == "longrope":
            scaling["original_max_position_embeddings"] = config["original_max_position_embeddings"] = context // 2
    (base.parent / "config.json").write_text(json.dumps(config))
    run("new-model", base, "--config", "config.json", "--corpus", "rows.jsonl", "--vocab-size", 257)
    model = opened(base)
    fill(model, torch.float32, torch.Generator().manual_seed(seed))
    model.save_pretrained(base)
    return model


class Rlhost:
    """The binaries, run in a folder."""

    def __init__(self, binaries, place):
        self.binaries, self.place = binaries.absolute(), place

    def run(self, *arguments, program="rlhost"):
        # As bytes, since a text may have any ends of lines.
        done = subprocess.run([self.binaries / program, *map(str, arguments)], cwd=self.place, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"{program} {' '.join(map(str, arguments))}: {done.stderr.decode()}")
        return done.stdout.decode()

    def logits(self, folder):
        """Those of a model or of an adapter, with the ids that they are of."""
        self.run(folder, "logits.safetensors", program="examples/logits")
        return load_file(self.place / "logits.safetensors")

    def sft(self, model, out, steps, *more):
        """Trains on `rows` as `trl` does, and returns what each step logs."""
        given = ["sft", "--dataset", "rows.jsonl", "--max-steps", steps, "--save-steps", steps, "--logging-steps", 1]
        given += ["--per-device-train-batch-size", BATCH, "--shuffle-dataset", "false", "--lr-scheduler-type", "constant"]
        given += ["--learning-rate", RATE, "--weight-decay", 0, "--adam-epsilon", EPSILON]
        self.run(*given, "--model", model, "--output-dir", out, *more)
        return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def differ(ours, model):
    """The greatest difference of our logits from those of a model of transformers, and its greatest logit."""
    with torch.no_grad():
        want = model.eval()(input_ids=ours["input_ids"].long(), use_cache=False).logits
    return (ours["logits"] - want).abs().max().item(), want.abs().max().item()


def rows(steps):
    """A batch for each step."""
    return [{"prompt": f"question {i}", "completion": " " + "abcde"[i % 5] * (3 + i % 7) + "x"} for i in range(steps * BATCH)]


def write_rows(place, steps):
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(steps)))


def tokenizer_of(base):
    """Its tokenizer, with the ending token that its configuration names."""
    end = json.loads((base / "config.json").read_text())["eos_token_id"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(base / "tokenizer.json"))
    tokenizer.eos_token = tokenizer.pad_token = tokenizer.convert_ids_to_tokens(end)
    return tokenizer


def trl(model, tokenizer, out, steps):
    """Trains a model with TRL's SFTTrainer; returns it with the loss and the gradient norm of each step."""
    # Not every check needs these.
    import datasets
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    config = SFTConfig(
        output_dir=str(out), per_device_train_batch_size=BATCH, max_steps=steps, learning_rate=RATE, weight_decay=0.0,
        adam_epsilon=EPSILON, lr_scheduler_type="constant", max_grad_norm=1.0, logging_steps=1, save_strategy="no",
        train_sampling_strategy="sequential", report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, max_length=None, warmup_steps=0,
    )
    if hasattr(model.config, "num_local_experts") and not hasattr(model.config, "num_experts"):
        # TRL 1.16 looks for the other name, which Granite's configurations don't have.
        model.config.num_experts = model.config.num_local_experts
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    if inner.base_model_prefix == "language_model" and hasattr(inner, "model"):
        # TRL 1.16 finds the layers by it, and that of Llama 4's text models is its multimodal model's.
        inner.base_model_prefix = "model"
    trainer = SFTTrainer(model, config, train_dataset=datasets.Dataset.from_list(rows(steps)), processing_class=tokenizer)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return trainer.model.eval(), [(step["loss"], step["grad_norm"]) for step in logged]
