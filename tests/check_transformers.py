#!/usr/bin/env python3
"""Compare logits computed elsewhere with those of `transformers` for the same model.

usage: check_transformers.py MODEL_DIR LOGITS.safetensors

The file holds `input_ids` (I64 or U32, [B, T]) and `logits` ([B, T, vocab]). Prints the
greatest absolute difference; exits 0 if it is at most 1e-4, else 1. If the folder has
tokenizer files, also prints the ids AutoTokenizer gives for 'Once upon a time'.
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

TOLERANCE = 1e-4
TEXT = "Once upon a time"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL_DIR")
    parser.add_argument("logits", type=Path, metavar="LOGITS.safetensors")
    args = parser.parse_args()

    if any((args.model / name).exists() for name in TOKENIZER_FILES):
        print(f"ids of {TEXT!r}: {AutoTokenizer.from_pretrained(args.model)(TEXT)['input_ids']}")

    given = load_file(args.logits)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        expected = model(input_ids=given["input_ids"].long(), use_cache=False).logits
    logits = given["logits"].float()
    if logits.shape != expected.shape:
        print(f"logits have shape {list(logits.shape)}, expected {list(expected.shape)}")
        return 1
    diff = (logits - expected).abs().max().item()
    print(f"greatest absolute difference: {diff:.3e}")
    return 0 if diff <= TOLERANCE else 1  # a NaN fails too


if __name__ == "__main__":
    sys.exit(main())
