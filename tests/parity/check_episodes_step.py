#!/usr/bin/env python3
"""Train on episodes with rlhost, do the same with transformers and torch, and compare every figure.

    python -m venv venv && venv/bin/pip install torch transformers trl==1.16.0 datasets
    cargo build
    venv/bin/python tests/parity/check_episodes_step.py target/debug/rlhost [--all]

For each setting: a tiny random model with a chat template plays `guess_number` for three optimizer steps, 4 episodes to a prompt,
in micro-batches of 8. The model is made so that digits and the ending token are likelier than others, so turns differ in length and
some guess. rlhost runs first. Then check_grpo_step.py replays the very ids that it logged: prompt, turns and replies as one row,
padded, through transformers' model; masks, advantages, losses and gradients are written there from the formulas alone.

Before that, each row is checked against the tokenizer: what is between two turns must be what the template writes there. At least
one row must have ids that decoding and encoding again would change, else the case fails: it would not show that trained ids are the
sampled ones.

Compared are loss, gradient norm, each turn's advantage, every other figure and the weights, with the tolerances of
check_grpo_step.py. Exits 1 if one is exceeded. The last output is check_episodes_step.txt beside this file.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

import check_grpo_step
import trl_steps
from check_grpo_step import read_lines, turns_of
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

STEPS = trl_steps.STEPS
# By how much the output rows of digits and of the ending token are longer than others.
LIKELY = 3.0
GAME = {"high": 9, "no_number": -0.5}
# Name, settings of the loss, flags, and what is set besides.
CASES = [
    ("dapo", {"loss_type": "dapo"}, {}, {}),
    ("grpo, beta", {"loss_type": "grpo", "beta": 0.1}, {}, {}),
    ("dr_grpo, unscaled", {"loss_type": "dr_grpo", "scale_rewards": "none"}, {}, {}),
    ("two rewards", {}, {"plugin": "tldr_length_reward.wasm"}, {"environment.guess_number.weight": 2}),
    ("by turn", {"turn_advantages": "turn", "turn_discount": 0.5}, {}, {}),
    ("by turn, unscaled", {"turn_advantages": "turn", "scale_rewards": "none"}, {}, {}),
    ("by turn, two rewards", {"turn_advantages": "turn", "turn_discount": 0.9, "scale_rewards": "batch"},
     {"plugin": "tldr_length_reward.wasm"}, {"environment.guess_number.weight": 2}),
    ("by group", {"turn_advantages": "group", "loss_type": "grpo"}, {}, {}),
    ("truncated out", {"turn_advantages": "group", "mask_truncated_completions": True}, {"max-turns": 2}, {}),
]


def make(folder, kind):
    """A model of trl_steps.py that says digits and ends its turns more often."""
    trl_steps.make_model(folder, kind, trl_steps.make_rows(), "ended")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    likely = [tokenizer.eos_token_id, *(i for text, i in tokenizer.get_vocab().items() if text.isdigit())]
    with torch.no_grad():
        model.get_output_embeddings().weight[likely] *= LIKELY
    model.save_pretrained(folder)


def check_ids(model, rows):
    """Counts the rows whose ids decoding and encoding again would change; exits if what is between turns is not the template's."""
    tokenizer, changed = AutoTokenizer.from_pretrained(model), 0
    for row in rows:
        ids = row["completion_ids"]
        heard = [m["content"] for m in row["messages"] if m["role"] == "user"][1:]
        replies = [ids[begin:end] for begin, end in row["replies"]]
        for (_, ended), text, reply in zip(turns_of(row), heard, replies):
            closing = "" if ids[ended - 1] == tokenizer.eos_token_id else trl_steps.EOS
            want = f"{closing}[user]{text}[end]\n[assistant]"
            if tokenizer.decode(reply) != want:
                sys.exit(f"between turns is {tokenizer.decode(reply)!r}, not {want!r}: {row}")
        own = [ids[ended - 1] == tokenizer.eos_token_id for _, ended in turns_of(row)]
        if own != [turn["finished"] for turn in row["turns"]]:
            sys.exit(f"the turns that ended on their own are {own}: {row}")
        again = tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
        changed += again != ids
    if not changed:
        sys.exit("encoding again changes no row's ids")
    return changed


def replay(run, model):
    """Runs check_grpo_step.py; returns its exit code and its table."""
    said, arguments = io.StringIO(), sys.argv
    sys.argv = ["check_grpo_step.py", str(run), str(model), "--steps", str(STEPS)]
    try:
        with contextlib.redirect_stdout(said):
            code = check_grpo_step.main()
    finally:
        sys.argv = arguments
    return code, said.getvalue()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path)
    parser.add_argument("--all", action="store_true", help="print every figure, not only those out of tolerance")
    args = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    failed = False
    print(f"{'case':<24} {'model':<6} {'rows':>5} {'changed':>8}  {'loss after step 1, 2, 3':<32} {'grad_norm after step 1, 2, 3':<30} greatest difference")
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        dataset = work / "rows.jsonl"
        trl_steps.write_lines(dataset, [{"prompt": [{"role": "user", "content": "Guess."}], "secret": 1 + i % 9} for i in range(12)])
        for kind in trl_steps.MODELS:
            model = work / kind
            make(model, kind)
            for name, loss, flags, settings in CASES:
                out = work / f"{name.replace(',', '').replace(' ', '-')}-{kind}"
                flags = {"environment": "guess_number.wasm", "num-generations": 4, "per-device-train-batch-size": 8, "max-turns": 4,
                         "max-completion-length": 6, "log-completions": "all"} | flags
                settings = {f"loss.{key}": value for key, value in loss.items()} | settings
                settings |= {f"environment.guess_number.config.{key}": value for key, value in GAME.items()}
                metrics = trl_steps.run_rlhost([args.rlhost.resolve(), "train"], model, dataset, out, flags, settings)
                rows = read_lines(out / "completions.jsonl")
                changed = check_ids(model, rows)
                code, table = replay(out, model)
                failed |= code != 0
                losses, norms = ([f"{metrics[step][key]:9.6f}" for step in range(1, STEPS + 1)] for key in ("loss", "grad_norm"))
                last = table.splitlines()[-1].removeprefix("greatest difference: ")
                print(f"{name:<24} {kind:<6} {len(rows):>5} {changed:>8}  {' '.join(losses):<32} {' '.join(norms):<30} {last}", flush=True)
                for line in table.splitlines()[1:-1]:
                    if args.all or line.endswith("<--"):
                        print("    " + line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
