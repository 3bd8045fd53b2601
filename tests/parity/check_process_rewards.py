#!/usr/bin/env python3
"""Score the steps of completions with transformers' token classification models and with rlhost, and compare the values.

    python -m venv venv && venv/bin/pip install torch transformers tokenizers
    cargo build
    venv/bin/python tests/parity/check_process_rewards.py target/debug/rlhost

Tiny random models with two labels for each token: a Qwen2, and a Llama whose tokenizer begins every text with <s>, as written by
transformers. A text is laid out as TRL's PRM trainer did: the prompt's tokens, then each step's, tokenized by itself, with the separator's
after it. A step's value is the probability of the second label at the separator's last token. `rlhost score` reads prompts and completions
as text. The last output is check_process_rewards.txt beside this file. Exits 1 if a value differs by more than 1e-5.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import torch
from checks import Check
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForTokenClassification, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

ROWS = [
    ("What is 3 + 4?", ["3 + 4 is 7", "so the answer is 7"]),
    ("q", ["one"]),
    ("Tell me:", ["é😀 first", " second ", "third, at length and with many words", "4"]),
    ("a prompt that is longer than the others, so that it spans more positions", ["x", "y", "z"]),
]
SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


def make_model(folder, kind):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<step>"])
    if kind is LlamaConfig:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    torch.manual_seed(5)
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = kind(vocab_size=len(tokenizer), max_position_embeddings=512, num_labels=2, initializer_range=0.3, **ends, **SHAPE)
    model = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def values(folder, prompt, steps, separator):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForTokenClassification.from_pretrained(folder, dtype=torch.float32).eval()
    plain = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    ids, ends = tokenizer(prompt)["input_ids"], []
    for step in steps:
        ids += plain(step) + plain(separator)
        ends.append(len(ids) - 1)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    return logits.softmax(-1)[ends, 1].tolist()


def main():
    rlhost, check = Path(sys.argv[1]).resolve(), Check()
    for kind in (Qwen2Config, LlamaConfig):
        with tempfile.TemporaryDirectory() as work:
            folder, rows = Path(work) / "prm", Path(work) / "rows.jsonl"
            make_model(folder, kind)
            for separator in ("\n", "<step>", "\n\n"):
                said = [{"prompt": prompt, "completion": separator.join(steps)} for prompt, steps in ROWS]
                rows.write_text("".join(json.dumps(row) + "\n" for row in said))
                command = [rlhost, "score", folder, "--dataset", rows, "--json"]
                if separator != "\n":
                    command += ["--step-separator", separator]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(done.stderr)
                lines = [json.loads(line) for line in done.stdout.splitlines()]
                for line, (prompt, steps) in zip(lines, ROWS, strict=True):
                    wanted = values(folder, prompt, steps, separator)
                    off = max(abs(a - b) for a, b in zip(line["steps"], wanted, strict=True))
                    check(f"{kind.model_type}, separator {separator!r}, {len(steps)} steps from {min(wanted):.4f} to {max(wanted):.4f}", off, 1e-5)
    sys.exit(check.failed)


if __name__ == "__main__":
    main()
