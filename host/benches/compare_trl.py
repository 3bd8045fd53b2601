#!/usr/bin/env python3
"""Time the same work through TRL and through rlhost, on the CPU: GRPO, DPO, distillation and generation.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python host/benches/compare_trl.py [--what grpo,dpo,distillation,generation] [--size 3.4M]

(with peft too for --lora). Both have the same random model (tied embeddings, a byte-level BPE
tokenizer of 2,048 or 49,152 tokens) and the same 64 TL;DR prompts:

| size | model | prompts | GRPO | DPO |
|---|---|---|---|---|
| 3.4M | Qwen2, 256 wide, 4 layers, 2,048 tokens | about 580 tokens | 2 prompts x 8 | 8 pairs |
| 30M | Qwen2, 512 wide, 10 layers, 2,048 tokens | about 580 tokens | 2 prompts x 8 | 8 pairs |
| 135M | SmolLM2-135M's shape: Llama, 576 wide, 30 layers, 49,152 tokens | about 320 tokens | 1 prompt x 8 | 4 pairs |
| 0.5B | Qwen2-0.5B's shape: 896 wide, 24 layers, 151,936 tokens | about 320 tokens | 1 prompt x 8 | 4 pairs |
| 0.6B | Qwen3-0.6B's shape: 1,024 wide, 28 layers, 151,936 tokens | about 320 tokens | 1 prompt x 8 | 4 pairs |

(The last three have fewer rows a step for TRL's memory. 0.6B trains an adapter of rank 16 on all
linear layers, as --lora makes the other sizes do.) An adapter's base is stored in bf16, everything
else in float32.

Each program runs in the settings that its users choose from (--settings):

| setting | TRL | rlhost |
|---|---|---|
| f32 | dtype float32 | --dtype float32 |
| bf16 | bf16 true; an adapter's base is loaded in bfloat16 | --bf16; an adapter's base stays in bf16 |
| f32-recompute, bf16-recompute | the same with gradient_checkpointing | the same with --gradient-checkpointing |
| bf16-int8 | - | bf16, with --rollout-dtype int8: GRPO and generation only |

TRL's own defaults are bf16-recompute. The gain that counts is to TRL's best setting, which is printed
last, for time and for memory each to the best of both.

grpo: completions of 64 tokens, reward -|20 - tokens|, no KL term. No completion ends early: the model is made so that the ending token has next to no probability. So all
rewards of a group are equal and the gradient is zero; neither program takes a short cut for that.
dpo: the post's own summary against another post's, beta 0.1, the starting model as reference, asked
in each step.
distillation: one completion of 64 tokens for each of as many prompts as GRPO has completions, and the reverse divergence from a larger teacher
with the same tokenizer: the 30M model for the 3.4M one, and Qwen3-0.6B's shape, with 49,152 tokens, for the 135M one. The other sizes have none.
generation: model.generate() of transformers (in f32, and in bf16 with the weights in that) for the
prompts and completions of one GRPO step, reading the prompts included, against the rollouts of an rlhost run (`time/rollout` of metrics.jsonl).

The runs alternate, and each is a process of its own. The first step of every run is dropped. A step
is between on_step_begin and on_step_end in TRL, which generates inside of it, and `step_time` of
metrics.jsonl in rlhost. Peak memory is the process's largest resident set, for TRL with Python and
its libraries; there is none of rlhost's generation alone.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from math import log
from pathlib import Path
from statistics import median

# Only the stages import torch, in processes of their own: Linux counts the parent's memory at the time
# of the fork into a child's peak, so the parent has to stay small.

ROOT = Path(__file__).resolve().parents[2]
EOS, SEED, GROUP, COMPLETION, RATE, PROMPTS = "<|endoftext|>", 0, 8, 64, 1e-6, 64
WHATS = ("grpo", "dpo", "distillation", "generation")

# name: (architecture, steps, theta of the rotary embedding, shape, completions of a GRPO step, pairs of
# a DPO step, shortest, usual and longest prompt in tokens)
SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "vocab_size", "max_position_embeddings")
SETTINGS = ("f32", "f32-recompute", "bf16", "bf16-recompute", "bf16-int8")
# Sizes that only train an adapter, and heads that are not the hidden size over their number.
ADAPTED, HEAD_DIM = ("0.6B",), {"0.6B": 128}
# The adapter, as TRL and rlhost have it by default but for its layers.
RANK, ALPHA = 16, 32
# The corpus has no more tokens than these.
MOST_TOKENS = 49152
SIZES = {
    "3.4M": ("Qwen2", 6, 1e6, (256, 4, 4, 2, 688, 2048, 2048), 16, 8, (500, 580, 660)),
    "30M": ("Qwen2", 4, 1e6, (512, 10, 8, 4, 1376, 2048, 2048), 16, 8, (500, 580, 660)),
    "135M": ("Llama", 3, 1e5, (576, 30, 9, 3, 1536, 49152, 8192), 8, 4, (260, 320, 380)),
    "0.5B": ("Qwen2", 3, 1e6, (896, 24, 14, 2, 4864, 151936, 32768), 8, 4, (260, 320, 380)),
    "0.6B": ("Qwen3", 3, 1e6, (1024, 28, 16, 8, 3072, 151936, 40960), 8, 4, (260, 320, 380)),
}
# Teachers of a size: architecture, theta and shape.
TEACHERS = {
    "3.4M": ("Qwen2", 1e6, (512, 10, 8, 4, 1376, 2048, 2048), {}),
    "135M": ("Qwen3", 1e6, (1024, 28, 16, 8, 3072, 49152, 40960), {"head_dim": 128}),
}


def peak_mb(usage):
    """Largest resident set in MB; the kernel counts KiB, but bytes on macOS."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def read_rows(path):
    """Rows of a JSON lines file, one for each prompt."""
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return list({row["prompt"]: row for row in rows}.values())


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def prepare(work, size, lora, prompts, corpus):
    """Save the model and its tokenizer to work/model, and the rows to work/prompts.jsonl and
    work/pairs.jsonl."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    architecture, _, theta, shape, _, _, (shortest, usual, longest) = SIZES[size]
    shape = dict(zip(SHAPE, shape, strict=True))
    rows, tokens = read_rows(prompts), min(shape["vocab_size"], MOST_TOKENS)
    # A large vocabulary is not to be learned from the prompts alone.
    texts = (text for row in (rows if tokens < 4096 else read_rows(corpus)) for text in (row["prompt"], row["completion"]))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=tokens, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False))
    if bpe.get_vocab_size() != tokens:
        sys.exit(f"the texts gave {bpe.get_vocab_size()} tokens instead of {tokens}")
    eos = bpe.token_to_id(EOS)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=EOS, pad_token=EOS).save_pretrained(work / "model")

    sized = [(len(bpe.encode(row["prompt"]).ids), row) for row in rows]
    fitting = [s for s in sized if shortest <= s[0] <= longest]
    if len(fitting) < PROMPTS:
        sys.exit(f"{len(fitting)} prompts have {shortest} to {longest} tokens, {PROMPTS} are needed")
    chosen = sorted(fitting, key=lambda s: abs(s[0] - usual))[:PROMPTS]
    write_rows(work / "prompts.jsonl", [{"prompt": row["prompt"]} for _, row in chosen])
    others = [row for _, row in chosen[1:] + chosen[:1]]
    # As spaces begin words, they begin answers.
    answer = lambda row: " " + row["completion"].strip()
    write_rows(work / "pairs.jsonl", [
        {"prompt": row["prompt"], "chosen": answer(row), "rejected": answer(other)}
        for (_, row), other in zip(chosen, others, strict=True)])

    config = getattr(transformers, f"{architecture}Config")(
        **shape, **({"head_dim": HEAD_DIM[size]} if size in HEAD_DIM else {}), tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": theta},
        bos_token_id=None, eos_token_id=eos, pad_token_id=eos)
    torch.manual_seed(SEED)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        # One feature that all tokens share but the ending one: every hidden state points along it,
        # so the ending token's logit is far below the others.
        embedding = model.get_input_embeddings().weight
        embedding[:, 0] = 1
        embedding[eos, 0] = -1
        # Rows that no token has would be sampled, too.
        embedding[tokens:, 0] = -1
    (model.bfloat16() if lora else model).save_pretrained(work / "model")
    if size in TEACHERS:
        architecture, theta, shape, more = TEACHERS[size]
        config = getattr(transformers, f"{architecture}Config")(
            **dict(zip(SHAPE, shape, strict=True)), **more, tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": theta}, bos_token_id=None, eos_token_id=eos, pad_token_id=eos)
        teacher = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        teacher.save_pretrained(work / "teacher")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(work / "model" / file, work / "teacher" / file)
    lengths = [length for length, _ in chosen]
    answers = [len(bpe.encode(answer(row)).ids) for row in others]
    return {"parameters": model.num_parameters(), "shortest": min(lengths), "longest": max(lengths),
            "shortest_answer": min(answers), "longest_answer": max(answers)}


def load_model(work, dtype="float32", name="model"):
    import torch
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(work / name, dtype=getattr(torch, dtype))


def train_trl(work, what, lora, setting, rows, steps, threads):
    """The run through TRL."""
    import datasets
    import torch
    import transformers
    import trl

    if threads:
        torch.set_num_threads(threads)

    class Clock(transformers.TrainerCallback):
        seconds, logged = [], []

        def on_step_begin(self, *_, **__):
            self.begun = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.seconds.append(time.perf_counter() - self.begun)

        def on_log(self, *_, logs, **__):
            self.logged.append(logs)

    def reward(completion_ids, **_):
        return [-abs(20.0 - len(ids)) for ids in completion_ids]

    settings = dict(
        output_dir=str(work / "trl"), per_device_train_batch_size=rows, max_steps=steps, learning_rate=RATE,
        use_cpu=True, bf16=setting.startswith("bf16"), gradient_checkpointing=setting.endswith("-recompute"),
        dataloader_pin_memory=False, logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True)
    clock, adapter = Clock(), {}
    if lora:
        import peft

        adapter["peft_config"] = peft.LoraConfig(
            r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    common = dict(
        **adapter, model=load_model(work, "bfloat16" if lora and settings["bf16"] else "float32"), processing_class=transformers.AutoTokenizer.from_pretrained(work / "model"), callbacks=[clock])
    if what == "dpo":
        dataset = datasets.Dataset.from_list(read_rows(work / "pairs.jsonl"))
        trainer = trl.DPOTrainer(args=trl.DPOConfig(**settings, beta=0.1), train_dataset=dataset, **common)
    elif what == "distillation":
        dataset = datasets.Dataset.from_list(read_rows(work / "prompts.jsonl"))
        config = trl.DistillationConfig(**settings, max_completion_length=COMPLETION, beta=1.0)
        teacher = load_model(work, "bfloat16" if settings["bf16"] else "float32", "teacher")
        trainer = trl.DistillationTrainer(args=config, teacher_model=teacher, train_dataset=dataset, **common)
    else:
        dataset = datasets.Dataset.from_list(read_rows(work / "prompts.jsonl"))
        config = trl.GRPOConfig(**settings, num_generations=GROUP, max_completion_length=COMPLETION, beta=0.0)
        trainer = trl.GRPOTrainer(args=config, reward_funcs=reward, train_dataset=dataset, **common)
    trainer.train()
    losses = [logs["loss"] for logs in clock.logged if "loss" in logs]
    lengths = [logs["completions/mean_length"] for logs in clock.logged if "completions/mean_length" in logs]
    return {"version": trl.__version__, "seconds": clock.seconds, "losses": losses, "lengths": lengths}


def generate_with_transformers(work, setting, rows, times, threads):
    """Completions of the first prompts, several times; the first time is dropped."""
    import torch
    import transformers

    if threads:
        torch.set_num_threads(threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(work / "model")
    model = load_model(work, "bfloat16" if setting == "bf16" else "float32").eval()
    prompts = read_rows(work / "prompts.jsonl")[: rows // GROUP]
    texts = [row["prompt"] for row in prompts for _ in range(GROUP)]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    rates = []
    for _ in range(times):
        begun = time.perf_counter()
        with torch.no_grad():
            out = model.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
                max_new_tokens=COMPLETION, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
        made = out.shape[0] * (out.shape[1] - inputs["input_ids"].shape[1])
        rates.append(made / (time.perf_counter() - begun))
    return {"version": transformers.__version__, "rates": rates[1:]}


STAGES = {"_prepare": prepare, "_train_trl": train_trl, "_generate": generate_with_transformers}


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
    """Run a stage in a process of its own; gives what it returns, and the process's peak."""
    result = work / f"{name}.json"
    arguments = json.dumps([str(work), *arguments])
    usage = start([sys.executable, Path(__file__).resolve(), name, arguments, result], work / f"{name}.log")
    return {**json.loads(result.read_text()), "peak": peak_mb(usage)}


def train_rlhost(binary, work, what, lora, setting, rows, steps, threads):
    """The run through rlhost."""
    out = work / "rlhost"
    shutil.rmtree(out, ignore_errors=True)
    flow = {
        "dpo": {"algorithm": "dpo", "beta": 0.1, "dataset": work / "pairs.jsonl"},
        "grpo": {"plugin": "tldr_length_reward.wasm", "num-generations": GROUP, "max-completion-length": COMPLETION,
                 "log-completions": "none", "dataset": work / "prompts.jsonl"},
        "distillation": {"algorithm": "distillation", "teacher-model": work / "teacher", "max-completion-length": COMPLETION,
                         "log-completions": "none", "dataset": work / "prompts.jsonl"},
    }[what]
    options = {
        **flow, "model": work / "model", "per-device-train-batch-size": rows, "max-steps": steps, "learning-rate": RATE,
        "logging-steps": 1, "save-steps": 1000000, "save-only-model": "true", "output-dir": out,
        "bf16": str(setting.startswith("bf16")).lower(),
        "dtype": "bfloat16" if lora and setting.startswith("bf16") else "float32",
        "gradient-checkpointing": str(setting.endswith("-recompute")).lower(),
        **({"rollout-dtype": "int8"} if setting.endswith("-int8") else {}),
        **({"lora-r": RANK, "lora-alpha": ALPHA, "lora-dropout": 0} if lora else {}),
        **({"num-threads": threads} if threads else {}),
    }
    command = [binary, "train", *(part for key, value in options.items() for part in (f"--{key}", value))]
    usage = start(command, work / "rlhost.log")
    with open(out / "metrics.jsonl", encoding="utf-8") as lines:
        logged = [json.loads(line) for line in lines]
    shutil.rmtree(out)
    found = {"seconds": [m["step_time"] for m in logged], "losses": [m["loss"] for m in logged],
             "peak": peak_mb(usage)}
    if what == "distillation":
        found["lengths"] = [m["completions/mean_length"] for m in logged]
    if what == "grpo":
        found["lengths"] = [m["completions/mean_length"] for m in logged]
        found["rates"] = [rows * COMPLETION / m["time/rollout"] for m in logged[1:]]
    return found


def generate_with_rlhost(binary, work, *arguments):
    """The rollouts of a GRPO run."""
    return {"rates": train_rlhost(binary, work, "grpo", *arguments)["rates"]}


def said(run):
    """A run in one line."""
    if "seconds" in run:
        line = " ".join(f"{s:.2f}" for s in run["seconds"]) + " s"
    else:
        line = " ".join(f"{r:.0f}" for r in run["rates"]) + " tokens/s"
    return line + (f", {run['peak']:.0f} MB" if "peak" in run else "")


def misfits(what, runs, steps):
    """Why runs are not of the same work."""
    for name, run in ((name, run) for name, all in runs.items() for run in all):
        if "seconds" in run and len(run["seconds"]) != steps:
            yield f"{name} took {len(run['seconds'])} steps, not {steps}"
        if any(n != COMPLETION for n in run.get("lengths", [])):
            yield f"{name} has completions of {run['lengths']} tokens"
    # The policy still is the reference: ln 2, which bf16 rounds. GRPO's loss is zero by construction.
    for name, all in runs.items() if what == "dpo" else ():
        if all and abs(all[0]["losses"][0] - log(2)) > (1e-2 if name.startswith("TRL bf16") else 1e-3):
            yield f"the loss of {name}'s first step is {all[0]['losses'][0]}, not ln 2"


# name, value of several runs' values, values of a run, format, whether more is better
FIGURES = [
    ("step, s", median, lambda run: run.get("seconds", [])[1:], "{:.3f}", False),
    ("  fastest step, s", min, lambda run: run.get("seconds", [])[1:], "{:.3f}", False),
    ("peak memory, MB", median, lambda run: [run["peak"]] if "peak" in run else [], "{:.0f}", False),
    ("generation, tokens/s", median, lambda run: run.get("rates", []), "{:.0f}", True),
    ("  fastest, tokens/s", max, lambda run: run.get("rates", []), "{:.0f}", True),
]


def report(what, runs):
    """Print medians over all runs of each setting, and how far the best of rlhost is ahead of the best of TRL: above 1."""
    theirs = "transformers" if what == "generation" else "TRL"
    version = next((run["version"] for all in runs.values() for run in all if "version" in run), "")
    print(f"\n{'median':<22}" + "".join(f"{name.replace('TRL', theirs):>30}" for name in runs) + f"   ({theirs} {version})")
    for name, pick, values, form, more_is_better in FIGURES:
        found = {program: [v for run in all for v in values(run)] for program, all in runs.items()}
        found = {program: pick(all) for program, all in found.items() if all}
        if not found:
            continue
        best = max if more_is_better else min
        trl, ours = ([v for program, v in found.items() if program.startswith(whose)] for whose in ("TRL", "rlhost"))
        gain = ""
        if trl and ours:
            trl, ours = best(trl), best(ours)
            gain = f"   best against best: {ours / trl if more_is_better else trl / ours:.2f}x"
        print(f"{name:<22}" + "".join(f"{form.format(found[p]) if p in found else '-':>30}" for p in runs) + gain)
    print(flush=True)


def compare(what, binary, work, args, rows, steps):
    """All rounds of one kind of work."""
    lora, programs = args.lora, {}
    for setting in args.settings:
        if what == "dpo" and setting.endswith("-int8"):
            continue
        if what == "generation":
            if setting.endswith("-recompute"):
                continue
            theirs = lambda s=setting: stage("_generate", work, s, rows, steps, args.threads)
            run = lambda s=setting: generate_with_rlhost(binary, work, lora, s, rows, steps, args.threads)
        else:
            theirs = lambda s=setting: stage("_train_trl", work, what, lora, s, rows, steps, args.threads)
            run = lambda s=setting: train_rlhost(binary, work, what, lora, s, rows, steps, args.threads)
        if not setting.endswith("-int8"):
            programs[f"TRL {setting}"] = theirs
        programs[f"rlhost {setting}"] = run
    runs = {name: [] for name in programs if args.only is None or name.lower().startswith(args.only)}
    for number in range(1, args.rounds + 1):
        for name in runs:
            runs[name].append(programs[name]())
            print(f"{what}, round {number}, {name:<21} {said(runs[name][-1])}", flush=True)
    for misfit in misfits(what, runs, steps):
        print(f"  not comparable: {misfit}")
    report(what, runs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default=",".join(WHATS), help="what is compared (default %(default)s)")
    parser.add_argument("--size", choices=SIZES, default="3.4M", help="the model (default %(default)s)")
    parser.add_argument("--settings", default=",".join(SETTINGS), help="how both run (default %(default)s)")
    parser.add_argument("--lora", action="store_true", help="train an adapter, with its base in bf16")
    parser.add_argument("--steps", type=int, help="steps of a run (default: 6, 4 or 3 by size)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each (default %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of both (default: what each takes)")
    parser.add_argument("--completions", type=int, help="completions of a GRPO step, a multiple of 8 (default by size)")
    parser.add_argument("--pairs", type=int, help="pairs of a DPO step (default by size)")
    parser.add_argument("--only", choices=["trl", "rlhost"], help="run one of the two")
    parser.add_argument("--rlhost", type=Path, metavar="PATH", help="the binary (default: target/debug/rlhost)",
                        default=ROOT / "target/debug/rlhost")
    data = ROOT.parent / "shared/data/tldr"
    parser.add_argument("--prompts", type=Path, metavar="JSONL", default=data / "validation.jsonl",
                        help="rows with prompt and completion (default: %(default)s)")
    parser.add_argument("--corpus", type=Path, metavar="JSONL", default=data / "train.jsonl",
                        help="rows that a tokenizer of 49,152 tokens is learned from (default: %(default)s)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep model, rows and logs here")
    args = parser.parse_args()

    whats = args.what.split(",")
    wrong = [what for what in whats if what not in WHATS]
    if wrong:
        parser.error(f"--what {wrong[0]}: there are {', '.join(WHATS)}")
    args.settings, args.lora = args.settings.split(","), args.lora or args.size in ADAPTED
    wrong = [setting for setting in args.settings if setting not in SETTINGS]
    if wrong:
        parser.error(f"--settings {wrong[0]}: there are {', '.join(SETTINGS)}")
    _, steps, _, _, completions, pairs, _ = SIZES[args.size]
    steps, completions, pairs = args.steps or steps, args.completions or completions, args.pairs or pairs
    if steps < 2 or args.rounds < 1:
        parser.error("at least 2 steps and 1 round: the first step of a run is dropped")
    if completions % GROUP:
        parser.error(f"--completions {completions}: prompts have {GROUP} each")
    if args.only != "trl" and not args.rlhost.exists():
        parser.error(f"no {args.rlhost}; build it, name one with --rlhost, or give --only trl")

    with tempfile.TemporaryDirectory(prefix="compare_trl-") as temporary:
        work = (args.work or Path(temporary)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        info = stage("_prepare", work, args.size, args.lora, str(args.prompts.resolve()), str(args.corpus.resolve()))
        print(f"{args.size}{' with an adapter' * args.lora}: {info['parameters']:,} parameters; {PROMPTS} prompts of {info['shortest']} to {info['longest']} "
              f"tokens, answers of {info['shortest_answer']} to {info['longest_answer']}; a step has {completions} completions "
              f"of {COMPLETION}, or {pairs} pairs", flush=True)
        for what in whats:
            if what == "distillation" and args.size not in TEACHERS:
                continue
            compare(what, args.rlhost.resolve(), work, args, pairs if what == "dpo" else completions, steps)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in STAGES:
        work, *arguments = json.loads(sys.argv[2])
        answer = STAGES[sys.argv[1]](Path(work), *arguments)
        Path(sys.argv[3]).write_text(json.dumps(answer))
    else:
        main()
