#!/usr/bin/env python3
"""Time the same GRPO run through TRL and through rlhost, on the CPU.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build --release
    venv/bin/python host/benches/compare_trl.py

Both train the same random model (float32, tied embeddings, a byte-level BPE tokenizer of 2048
tokens) on the same 64 TL;DR prompts of about 580 tokens: 2 prompts times 8 completions of 64
tokens a step, reward -|20 - tokens|, no KL term, no gradient checkpointing. No completion ends
early: the model is made so that the ending token has next to no probability. So all rewards of a
group are equal and the gradient is zero; neither program takes a short cut for that.

The runs alternate, and each is a process of its own. The first step of every run is dropped. A step
is generation, reward, forward, backward and update: between on_step_begin and on_step_end in TRL,
`step_time` of metrics.jsonl in rlhost. Peak memory is the process's largest resident set, for TRL
with Python and its libraries: 8 GB at 30M and, by extrapolation, more than 24 GB at 135M. Generation
is model.generate() of transformers for 2 x 8 x 64 tokens, reading the prompts included, against
rlhost's rollout (`time/rollout` of metrics.jsonl, where it is there).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

# Only the stages import torch, in processes of their own: Linux counts the parent's memory at the time
# of the fork into a child's peak, so the parent has to stay small.

ROOT = Path(__file__).resolve().parents[2]
EOS, TOKENS, SEED = "<|endoftext|>", 2048, 0
BATCH, GROUP, COMPLETION, RATE = 16, 8, 64, 1e-6
PROMPTS, SHORTEST, USUAL, LONGEST = 64, 500, 580, 660

# name: (architecture, steps, theta of the rotary embedding, shape); 135M is SmolLM2-135M's shape.
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "vocab_size", "max_position_embeddings")
SIZES = {
    "3.4M": ("Qwen2", 6, 1e6, (256, 4, 4, 2, 688, 2048, 2048)),
    "30M": ("Qwen2", 4, 1e6, (512, 10, 8, 4, 1376, 2048, 2048)),
    "135M": ("Llama", 3, 1e5, (576, 30, 9, 3, 1536, 49152, 8192)),
}


def peak_mb(usage):
    """Largest resident set in MB; the kernel counts KiB, but bytes on macOS."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def prepare(work, size, texts):
    """Save the model and its tokenizer to work/model, and the prompts to work/prompts.jsonl."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    with open(texts, encoding="utf-8") as lines:
        texts = list(dict.fromkeys(json.loads(line)["prompt"] for line in lines if line.strip()))

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False))
    if bpe.get_vocab_size() != TOKENS:
        sys.exit(f"the prompts gave {bpe.get_vocab_size()} tokens instead of {TOKENS}")
    eos = bpe.token_to_id(EOS)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=EOS, pad_token=EOS).save_pretrained(work / "model")

    sized = [(len(bpe.encode(text).ids), text) for text in texts]
    fitting = [s for s in sized if SHORTEST <= s[0] <= LONGEST]
    if len(fitting) < PROMPTS:
        sys.exit(f"{len(fitting)} prompts have {SHORTEST} to {LONGEST} tokens, {PROMPTS} are needed")
    chosen = sorted(fitting, key=lambda s: abs(s[0] - USUAL))[:PROMPTS]
    with open(work / "prompts.jsonl", "w", encoding="utf-8") as out:
        out.writelines(json.dumps({"prompt": text}) + "\n" for _, text in chosen)

    architecture, _, theta, shape = SIZES[size]
    config = getattr(transformers, f"{architecture}Config")(
        **dict(zip(SHAPE, shape, strict=True)), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        bos_token_id=None, eos_token_id=eos, pad_token_id=eos)
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # One feature that all tokens share but the ending one: every hidden state points along it,
        # so the ending token's logit is far below the others.
        embedding = model.get_input_embeddings().weight
        embedding[:, 0] = 1
        embedding[eos, 0] = -1
    model.save_pretrained(work / "model")
    lengths = [length for length, _ in chosen]
    return {"parameters": model.num_parameters(), "shortest": min(lengths), "longest": max(lengths)}


def train_trl(work, steps, threads):
    """The run through TRL, then transformers' generation."""
    import resource

    import datasets
    import torch
    import transformers
    import trl

    if threads:
        torch.set_num_threads(threads)

    class Clock(transformers.TrainerCallback):
        seconds, lengths = [], []

        def on_step_begin(self, *_, **__):
            self.begun = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.seconds.append(time.perf_counter() - self.begun)

        def on_log(self, *_, logs, **__):
            if "completions/mean_length" in logs:
                self.lengths.append(logs["completions/mean_length"])

    def reward(completion_ids, **_):
        return [-abs(20.0 - len(ids)) for ids in completion_ids]

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32)

    with open(work / "prompts.jsonl", encoding="utf-8") as lines:
        prompts = [json.loads(line) for line in lines]
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "model")
    config = trl.GRPOConfig(
        output_dir=str(work / "trl"), per_device_train_batch_size=BATCH, num_generations=GROUP,
        max_completion_length=COMPLETION, max_steps=steps, learning_rate=RATE, beta=0.0, use_cpu=True,
        bf16=False, gradient_checkpointing=False, dataloader_pin_memory=False, logging_steps=1,
        report_to="none", save_strategy="no", disable_tqdm=True)
    clock = Clock()
    trainer = trl.GRPOTrainer(
        model=load(), reward_funcs=reward, args=config, processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(prompts), callbacks=[clock])
    trainer.train()
    peak = peak_mb(resource.getrusage(resource.RUSAGE_SELF))
    del trainer

    model, rates = load().eval(), []
    texts = [p["prompt"] for p in prompts[: BATCH // GROUP] for _ in range(GROUP)]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    for _ in range(2):
        begun = time.perf_counter()
        with torch.no_grad():
            out = model.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
                max_new_tokens=COMPLETION, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
        made = out.shape[0] * (out.shape[1] - inputs["input_ids"].shape[1])
        rates.append(made / (time.perf_counter() - begun))
    return {"version": trl.__version__, "seconds": clock.seconds, "lengths": clock.lengths,
            "peak": peak, "rates": rates}


STAGES = {"_prepare": prepare, "_train_trl": train_trl}


def start(command, log):
    """Run a command with its output in a file; gives what it used."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with open(log, "wb") as out:
        child = subprocess.Popen([str(c) for c in command], stdout=out, stderr=subprocess.STDOUT, env=env)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        tail = log.read_text(errors="replace")[-3000:]
        sys.exit(f"{tail}\n{command[0]} ended with {child.returncode}; its output is above")
    return usage


def stage(name, work, *arguments):
    """Run a stage in a process of its own; gives what it returns."""
    result = work / f"{name}.json"
    arguments = json.dumps([str(work), *arguments])
    start([sys.executable, Path(__file__).resolve(), name, arguments, result], work / f"{name}.log")
    return json.loads(result.read_text())


def train_rlhost(binary, work, steps, threads):
    """The run through rlhost."""
    out = work / "rlhost"
    shutil.rmtree(out, ignore_errors=True)
    options = {
        "plugin": "tldr_length_reward.wasm", "model": work / "model", "dataset": work / "prompts.jsonl",
        "per-device-train-batch-size": BATCH, "num-generations": GROUP, "max-completion-length": COMPLETION,
        "max-steps": steps, "learning-rate": RATE, "logging-steps": 1, "save-steps": 1000000,
        "log-completions": "none", "output-dir": out, **({"num-threads": threads} if threads else {}),
    }
    command = [binary, *(part for key, value in options.items() for part in (f"--{key}", value))]
    usage = start(command, work / "rlhost.log")
    with open(out / "metrics.jsonl", encoding="utf-8") as lines:
        logged = [json.loads(line) for line in lines]
    return {"seconds": [m["step_time"] for m in logged],
            "lengths": [m["completions/mean_length"] for m in logged], "peak": peak_mb(usage),
            "rates": [BATCH * COMPLETION / m["time/rollout"] for m in logged[1:] if "time/rollout" in m]}


def report(runs):
    """Print medians over all runs; gain is above 1 where rlhost is ahead."""
    def figure(program, values, pick):
        found = [v for run in runs.get(program, []) for v in values(run)]
        return pick(found) if found else None

    rows = [
        ("step, s", median, lambda run: run["seconds"][1:], "{:.3f}", False),
        ("  fastest step, s", min, lambda run: run["seconds"][1:], "{:.3f}", False),
        ("peak memory, MB", median, lambda run: [run["peak"]], "{:.0f}", False),
        ("generation, tokens/s", median, lambda run: run["rates"], "{:.0f}", True),
        ("  fastest, tokens/s", max, lambda run: run["rates"], "{:.0f}", True),
    ]
    version = next((run["version"] for run in runs.get("TRL", [])), "")
    print(f"\n{'median':<22}{f'TRL {version}'.strip():>12}{'rlhost':>12}{'gain':>9}")
    for name, pick, values, form, more_is_better in rows:
        trl, ours = figure("TRL", values, pick), figure("rlhost", values, pick)
        cells = ["-" if v is None else form.format(v) for v in (trl, ours)]
        gain = "-" if None in (trl, ours) else f"{ours / trl if more_is_better else trl / ours:.2f}x"
        print(f"{name:<22}{cells[0]:>12}{cells[1]:>12}{gain:>9}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="3.4M", help="the model (default %(default)s)")
    parser.add_argument("--steps", type=int, help="steps of a run (default: 6, 4 or 3 by size)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each (default %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of both (default: what each takes)")
    parser.add_argument("--only", choices=["trl", "rlhost"], help="run one of the two")
    parser.add_argument("--rlhost", type=Path, metavar="PATH",
                        help="the binary (default: target/release/rlhost, else target/debug/rlhost)")
    parser.add_argument("--prompts", type=Path, metavar="JSONL", help="default: %(default)s",
                        default=ROOT.parent / "shared/data/tldr/validation.jsonl")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep model, prompts and logs here")
    args = parser.parse_args()

    steps = args.steps or SIZES[args.size][1]
    if steps < 2 or args.rounds < 1:
        parser.error("at least 2 steps and 1 round: the first step of a run is dropped")
    built = [ROOT / "target" / profile / "rlhost" for profile in ("release", "debug")]
    binary = args.rlhost or next((path for path in built if path.exists()), built[0])
    if args.only != "trl" and not binary.exists():
        parser.error(f"no {binary}; build it, name one with --rlhost, or give --only trl")

    with tempfile.TemporaryDirectory(prefix="compare_trl-") as temporary:
        work = (args.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        info = stage("_prepare", work, args.size, str(args.prompts.resolve()))
        print(f"{args.size}: {info['parameters']:,} parameters; {PROMPTS} prompts of {info['shortest']} to "
              f"{info['longest']} tokens; {BATCH} completions of {COMPLETION} a step", flush=True)

        programs = {
            "TRL": lambda: stage("_train_trl", work, steps, args.threads),
            "rlhost": lambda: train_rlhost(binary.resolve(), work, steps, args.threads),
        }
        runs = {name: [] for name in programs if args.only in (None, name.lower())}
        for number in range(1, args.rounds + 1):
            for name in runs:
                run = programs[name]()
                runs[name].append(run)
                seconds = " ".join(f"{s:.2f}" for s in run["seconds"])
                print(f"round {number}, {name:<6} {seconds} s, {run['peak']:.0f} MB", flush=True)
                if len(run["seconds"]) != steps or any(n != COMPLETION for n in run["lengths"]):
                    print(f"  not comparable: {len(run['seconds'])} steps, completions of {run['lengths']} tokens")
        report(runs)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in STAGES:
        work, *arguments = json.loads(sys.argv[2])
        answer = STAGES[sys.argv[1]](Path(work), *arguments)
        Path(sys.argv[3]).write_text(json.dumps(answer))
    else:
        main()
