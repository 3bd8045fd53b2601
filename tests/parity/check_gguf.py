#!/usr/bin/env python3
"""Export a tiny model of each family as GGUF and compare what llama.cpp makes of the file with transformers and with rlhost.

    python -m venv venv && venv/bin/pip install torch transformers llama-cpp-python
    cargo build
    venv/bin/python tests/parity/check_gguf.py target/debug/rlhost [--only NAME]

The models are those of tests/fixtures/make_models.py with a tokenizer of bytes, without the features that llama.cpp lacks, which
`rlhost export` refuses by name: CHANGED below says what is left out. For each, a file in f32 is opened by llama-cpp-python with caches
in f32. Compared are the tokens of a text; the logits after each token of the prompt with transformers' (GELU is a table of f16 there,
so models with GELU differ more); 48 greedy tokens with transformers' and with those that `rlhost generate` writes. The same of an
adapter, and of a model with SentencePiece's pieces in the place of bytes. Then the logits of a file in each other precision, and the
tokens of odd texts with tokenizers that were learned with every pattern which has a name there. The last output is check_gguf.txt
beside this file.

Exits 1 if tokens differ, or logits by more than the tolerance of their activation.
"""

import argparse
import ctypes
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "fixtures"))

import llama_cpp
import numpy
import tokenizers
import torch
import transformers
from checks import Check, make, opened
from make_models import MODELS

NEW, CONTEXT = 48, 512
PROMPT = "question 7: don't say 1234  twice"
# What llama.cpp lacks of the fixtures' features, left out.
CHANGED = {
    "gemma2": dict(query_pre_attn_scalar=16, attention_bias=False),
    "gemma3": dict(query_pre_attn_scalar=16, attention_bias=False),
    "gpt2": dict(scale_attn_by_inverse_layer_idx=False),
    "gpt_neox_serial": dict(attention_bias=True),
    "mistral": dict(sliding_window=None),
    "mixtral": dict(sliding_window=None),
    "olmo2": dict(attention_bias=False),
    "olmoe": dict(num_key_value_heads=4),
    "phi3": dict(sliding_window=None),
    "qwen3_moe": dict(mlp_only_layers=[], norm_topk_prob=True, attention_bias=False, use_sliding_window=False, sliding_window=None),
    "smollm3": dict(
        num_hidden_layers=5, no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0, 1], use_sliding_window=False, mlp_bias=False,
        sliding_window=None, layer_types=["full_attention"] * 5,
    ),
    "starcoder2": dict(sliding_window=None),
}
LEFT_OUT = (
    "llama3_parameters", "qwen2_sharded", "gemma3_vision", "mistral3_vision", "qwen2_sliding", "qwen3_moe_normalised", "ministral", "olmo3",
    "deepseek_v2", "deepseek_v2_greedy", "deepseek_v3", "deepseek_v3_dense", "gemma4", "gemma4_dense", "gemma4_moe", "gemma4_unified", "gemma4_vision",
    "cohere2", "ernie4_5", "exaone4", "glm4", "glm4_moe", "gpt_oss", "hunyuan_v1_dense", "llama4_text", "ministral3", "qwen2_moe",
    "lfm2", "lfm2_wide", "lfm2_moe", "qwen3_5", "qwen3_5_wide", "qwen3_5_moe", "qwen3_next", "granitemoehybrid", "granitemoehybrid_dense",
    "nemotron_h", "nemotron_h_dense", "falcon_h1", "falcon_h1_plain", "falcon_h1_after",
)
NAMES = [name for name in MODELS if name not in LEFT_OUT]


class Llama:
    """A file, opened by llama.cpp with a cache in f32 and without flash attention."""

    def __init__(self, path):
        f32 = 0
        self.of = llama_cpp.Llama(
            str(path), n_ctx=256, n_batch=256, logits_all=True, n_gpu_layers=0, n_threads=1, n_threads_batch=1, type_k=f32, type_v=f32,
            flash_attn=False, verbose=False, seed=0,
        )

    def encode(self, text):
        return self.of.tokenize(text.encode(), add_bos=True, special=True)

    def logits(self, tokens):
        self.of.reset()
        self.of.eval(tokens)
        return numpy.array(self.of.scores[: len(tokens)])

    def greedy(self, tokens):
        self.of.reset()
        self.of.eval(tokens)
        out = []
        while len(out) < NEW:
            token = int(self.of.scores[self.of.n_tokens - 1].argmax())
            out.append(token)
            if token == self.of.token_eos():
                break
            self.of.eval([token])
        return out


@torch.no_grad()
def greedy(model, tokens, end):
    ids, out = torch.tensor([tokens]), []
    while len(out) < NEW:
        following = model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
        out.append(following.item())
        ids = torch.cat([ids, following[None, None]], 1)
        if following == end:
            break
    return out


def compare(name, place, binary, check):
    def run(*arguments):
        done = subprocess.run([binary, *map(str, arguments)], cwd=place, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"rlhost {' '.join(map(str, arguments))}: {done.stderr.decode()}")
        return done.stdout.decode()

    base = place / "base"
    (place / "rows.jsonl").write_text(json.dumps({"text": "a text"}) + "\n")
    model = make(name, base, run, CONTEXT, CHANGED.get(name))
    end = json.loads((base / "config.json").read_text())["eos_token_id"]
    tokenizer = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
    compare_files(name, place, base, model, tokenizer, end, run, check)
    if name == "qwen3":
        adapted = place / "run" / "checkpoint-4"
        training = ["--dataset", "rows.jsonl", "--max-steps", 4, "--save-steps", 4, "--learning-rate", 0.02, "--lora-r", 4]
        run("sft", "--model", base, "--output-dir", place / "run", *training)
        run("merge", adapted, place / "merged")
        compare_files(f"{name} with an adapter", place, adapted, opened(place / "merged"), tokenizer, end, run, check)
        for dtype, tolerance in (("bf16", 0.2), ("f16", 0.02), ("q8_0", 0.2)):
            compare_precision(name, place, base, model, tokenizer, dtype, tolerance, run, check)
    if name == "llama":
        pieces(base)
        tokenizer = tokenizers.Tokenizer.from_file(str(base / "tokenizer.json"))
        compare_files(f"{name} with pieces", place, base, model, tokenizer, end, run, check)


def gelus(model):
    config = model.config
    kind = getattr(config, "hidden_activation", None) or getattr(config, "activation_function", None) or config.hidden_act
    return "gelu" in kind


def compare_files(name, place, base, model, tokenizer, end, run, check):
    file = place / "model.gguf"
    file.unlink(missing_ok=True)
    run("export", base, file, "--format", "gguf", "--dtype", "f32")
    llama = Llama(file)
    tokens = tokenizer.encode(PROMPT).ids
    check(f"{name}: {len(tokens)} tokens of a text", float(llama.encode(PROMPT) != tokens), 0)
    with torch.no_grad():
        want = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    check(f"{name}: logits", numpy.abs(llama.logits(tokens) - want).max(), 2e-2 if gelus(model) else 1e-4)
    got, theirs = llama.greedy(tokens), greedy(model, tokens, end)
    check(f"{name}: {len(theirs)} greedy tokens of transformers", float(got != theirs), 0)
    text = run("generate", "-q", "--model", base, "--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", NEW)
    continued = tokenizer.decode(tokens + got, skip_special_tokens=True)
    check(f"{name}: the text of rlhost generate", float(continued.strip() not in text), 0)


def compare_precision(name, place, base, model, tokenizer, dtype, tolerance, run, check):
    file = place / f"{dtype}.gguf"
    run("export", base, file, "--format", "gguf", "--dtype", dtype)
    tokens = tokenizer.encode(PROMPT).ids
    with torch.no_grad():
        want = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    difference = numpy.abs(Llama(file).logits(tokens) - want).max() / numpy.abs(want).max()
    check(f"{name} in {dtype}: logits, of the largest", difference, tolerance)


def pieces(base):
    """Replaces the tokenizer by one of pieces, as Llama 2 has, with merges learned from a text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    prepend, replace = tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")
    made.normalizer = tokenizers.normalizers.Sequence([prepend, replace])
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=257 - 257 // 2, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    text = "the question is twice asked, and the question 12 times said: say 1234 two times, don't"
    made.train_from_iterator([text], trainer)
    file = json.loads(made.to_str())
    vocabulary = file["model"]["vocab"]
    for byte in range(256):
        if len(vocabulary) < 257:
            vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    end = "</s>"
    file["post_processor"] = json.loads(
        tokenizers.processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]).__getstate__()
    )
    file["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    (base / "tokenizer.json").write_text(json.dumps(file))
    (base / "tokenizer_config.json").write_text(json.dumps({"eos_token": end, "bos_token": "<s>", "unk_token": "<unk>"}))


WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
    r"\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# How text is cut, and whether words that are tokens are taken whole: of Qwen 2, Llama 3, OLMo 2, GPT-4o and Mistral's Tekken.
PATTERNS = {
    "qwen2": (WORDS % "", False),
    "llama-bpe": (WORDS % "{1,3}", True),
    "dbrx": (WORDS % "{1,3}", False),
    "gpt-4o": (CASES % (SHORT, SHORT, "{1,3}"), False),
    "tekken": (CASES % ("", "", ""), True),
    "smollm": ("digits", False),
    "gpt-2": (None, False),
}
ODD = [
    "I'm sure they'LL say 1234567 times: don't!  Three   spaces, a\ttab.\n\n  And\r\nlines\n",
    "na\u00efve caf\u00e9s, \u5317\u4eac in 2024, \u20ac5 \u00bd; \u041c\u043e\u0441\u043a\u0432\u0430 camelCaseWords HTTPServer",
    "x = [1, 22, 333];  // {\"a\": 'b'}\n\tif x>=3: return\n\n\n",
]


def compare_patterns(place, binary, check):
    """Tokens of bytes that were learned from this repository's guides."""
    vocabulary = 700
    guides = [path.read_text() for path in sorted((Path(__file__).resolve().parents[2] / "host" / "docs").glob("*.md"))]
    config = dict(model_type="llama", hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    (place / "config.json").write_text(json.dumps(config))
    (place / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in guides))
    made = ["new-model", "base", "--config", "config.json", "--corpus", "rows.jsonl", "--vocab-size", str(vocabulary)]
    subprocess.run([binary, *made], cwd=place, check=True, capture_output=True)
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    for name, (pattern, whole) in PATTERNS.items():
        made = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=whole))
        if pattern == "digits":
            steps = [tokenizers.pre_tokenizers.Digits(individual_digits=True), byte_level(add_prefix_space=False)]
        elif pattern:
            split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
            steps = [split, byte_level(add_prefix_space=False, use_regex=False)]
        else:
            steps = [byte_level(add_prefix_space=False)]
        made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
        made.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=["<|endoftext|>"], initial_alphabet=byte_level.alphabet(), show_progress=False
        )
        # So often that every word of theirs becomes a token, and another cut is seen.
        made.train_from_iterator(guides + ODD * 2000, trainer)
        made.save(str(place / "base" / "tokenizer.json"))
        file = place / f"{name}.gguf"
        subprocess.run([binary, "export", "base", file, "--format", "gguf"], cwd=place, check=True, capture_output=True)
        llama = Llama(file)
        known = llama.of.metadata["tokenizer.ggml.pre"]
        wrong = sum(llama.encode(text) != made.encode(text).ids for text in ODD)
        tokens = sum(len(made.encode(text).ids) for text in ODD)
        check(f"{tokens} tokens of {len(ODD)} texts, cut as {known}", float(wrong + (known != name)), 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path, help="rlhost")
    parser.add_argument("--only", default="", metavar="NAME", help="only models whose name has this in it")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    # It writes to the terminal what is no error.
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    print(f"llama-cpp-python {llama_cpp.__version__}, transformers {transformers.__version__}")
    check = Check()
    for name in NAMES:
        if given.only in name:
            with tempfile.TemporaryDirectory() as place:
                compare(name, Path(place), given.binary.absolute(), check)
    if given.only in "patterns":
        with tempfile.TemporaryDirectory() as place:
            compare_patterns(Path(place), given.binary.absolute(), check)
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
