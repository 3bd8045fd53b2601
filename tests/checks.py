"""What the checks against transformers, peft and llama.cpp share."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "fixtures"))

import torch
from make_models import MODELS, fill
from transformers import AutoModelForCausalLM


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
