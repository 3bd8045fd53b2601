#!/usr/bin/env python3
"""Compare which tokens of conversations are learned with TRL's own SFTTrainer, for the chat templates that TRL ships.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/parity/check_chat_masks.py target/debug/rlhost [--only NAME]

For each template, one tiny random Qwen2 with a byte-level tokenizer and `assistant_only_loss`: the loss of the same
conversations in both, none of which rlhost may skip (`--strict-data`). A model's own template and TRL's patched one with
{% generation %} marks count apart. The last output is check_chat_masks.txt beside this file.

Some templates are also tried with variables (`chat_template_kwargs`), which change how the assistant's turn begins, and with
tool calls. TRL replaces the stock templates that it knows with its patched ones; rlhost does the same where that makes a
difference (host/data/src/stock_templates.rs) and finds the turns elsewhere.

Exits 1 if a loss differs by more than 1e-5 of its size.

No marked content here ends with a character of several tokens. transformers leaves all of these but the first unmarked; rlhost marks
them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import datasets
import torch
import transformers
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FAMILIES = ["qwen2_5", "qwen3", "qwen3_instruct_2507", "llama3", "gemma", "gemma3", "phi3", "phi3_5", "cohere", "deepseek_r1_distill",
            "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"]
# Those with a variable for reasoning, and those with tools.
REASONING = {"qwen3", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"}
CALLING = {"qwen2_5", "qwen3", "qwen3_instruct_2507"}
SPECIAL = "<s> </s> <|im_start|> <|im_end|> <|start_header_id|> <|end_header_id|> <|eot_id|> <start_of_turn> <end_of_turn>"
SPECIAL += " <|system|> <|user|> <|assistant|> <|end|> [INST] [/INST] <think> </think>"

# With marks around the content alone, and around its end token too.
TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}MARKED\n{% else %}{{ m.content }}<|im_end|>\n"
TURN += "{% endif %}{% endfor %}"
OWN = {
    "content": TURN.replace("MARKED", "{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>"),
    "content and end": TURN.replace("MARKED", "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"),
}


def conversations():
    def turns(*contents):
        roles = ["user", "assistant"]
        return {"messages": [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]}

    return [
        turns("hi", "hello you", "and?", "é😀 bye"),
        turns("What is it?", "<think>\nhm\n</think>\n\nA test.", "Sure?", "<think>\nwell\n</think>\n\nYes."),
        turns("Say nothing.", "...", "Say it.", "nothing"),
        turns("x", "one answer"),
    ]


def calls():
    call = [{"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}]
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds one.", "parameters": parameters}}]
    asked = [{"role": "user", "content": "One more?"}, {"role": "assistant", "content": "", "tool_calls": call}]
    said = [{"role": "tool", "content": "2"}, {"role": "assistant", "content": "<think>\nsum\n</think>\n\nTwo."}]
    more = [{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}]
    rows = [asked + said, asked + said + more, more + asked, [{"role": "system", "content": "Be kind."}] + asked + said]
    return [{"messages": row, "tools": json.dumps(tools)} for row in rows]


def make_model(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL.split())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def trl_loss(folder, template, rows, out):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    data = datasets.Dataset.from_list(rows)
    config = SFTConfig(
        output_dir=str(out), assistant_only_loss=True, per_device_eval_batch_size=len(rows), report_to="none",
        use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, eos_token="</s>",
    )
    model = Qwen2ForCausalLM.from_pretrained(folder)
    trainer = SFTTrainer(model, config, train_dataset=data, eval_dataset=data, processing_class=tokenizer)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer.evaluate()["eval_loss"]


def own_loss(binary, folder, template, rows, work):
    path = work / "template.jinja"
    path.write_text(template)
    (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [binary, "eval", "--model", folder, "--algorithm", "sft", "--learn-from", "dataset", "--json"]
    command += ["--dataset", work / "rows.jsonl", "--assistant-only-loss", "--chat-template-path", path, "--strict-data"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["eval_loss"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("binary")
    arguments.add_argument("--only", default="")
    arguments = arguments.parse_args()
    transformers.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    rows = conversations()
    cases = [(name, text, rows) for name, text in OWN.items()]
    for name in FAMILIES:
        patched, own = [(TEMPLATES / f"{name}{kind}.jinja").read_text() for kind in ["_training", ""]]
        cases += [(f"{name}, TRL's marks", patched, rows), (name, own, rows)]
        if name in REASONING:
            quiet = [row | {"chat_template_kwargs": {"enable_thinking": False}} for row in rows]
            cases += [(f"{name}, TRL's marks, no thinking", patched, quiet), (f"{name}, no thinking", own, quiet)]
        if name in CALLING:
            cases += [(f"{name}, TRL's marks, tools", patched, calls()), (f"{name}, tools", own, calls())]
    wrong = 0
    print(f"{'template':<42} {'rlhost':>10} {'TRL':>10} {'difference':>11}")
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        make_model(work / "model")
        for name, template, rows in cases:
            if arguments.only not in name:
                continue
            theirs = trl_loss(work / "model", template, rows, work / "out")
            ours = own_loss(arguments.binary, work / "model", template, rows, work)
            difference = abs(ours - theirs) / theirs
            print(f"{name:<42} {ours:>10.5f} {theirs:>10.5f} {difference:>11.1e}", flush=True)
            wrong += difference > 1e-5
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
