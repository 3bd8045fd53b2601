#!/usr/bin/env python3
"""The GRPO run of run.sh through TRL with transformers' generation, on the same card, with a reward of its own; then both side by side.

    trl_step.py MODEL PROMPTS --out FOLDER [--steps N] [--continuous-batching]
        trains, and writes FOLDER/steps.json
    trl_step.py --compare METRICS.jsonl STEPS.json...
        prints medians, and the gain over the fastest of TRL's runs; the first two steps of each run are dropped
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

BATCH, GROUP, COMPLETION, RATE = 64, 8, 128, 1e-6

# Steps that are dropped: TRL's second still takes three times as long as the next ones.
WARM_UP = 2


def train(model, prompts, out, steps, continuous_batching):
    import datasets
    import torch
    import transformers
    import trl

    class Clock(transformers.TrainerCallback):
        seconds, lengths, generating = [], [], []

        def on_step_begin(self, *_, **__):
            torch.cuda.synchronize()
            self.begun = time.perf_counter()

        def on_step_end(self, *_, **__):
            torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - self.begun)

        def on_log(self, *_, logs, **__):
            if "completions/mean_length" in logs:
                self.lengths.append(logs["completions/mean_length"])

    def reward(completion_ids, **_):
        # Differs within a group, so that there is a gradient.
        return [float(sum(ids) % 97) for ids in completion_ids]

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).cuda()

    with open(prompts, encoding="utf-8") as lines:
        rows = [{"prompt": json.loads(line)["prompt"]} for line in lines if line.strip()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    config = trl.GRPOConfig(
        output_dir=str(out), per_device_train_batch_size=BATCH, num_generations=GROUP, max_completion_length=COMPLETION,
        max_steps=steps, learning_rate=RATE, beta=0.0, bf16=True, gradient_checkpointing=False, logging_steps=1,
        use_transformers_continuous_batching=continuous_batching, report_to="none", save_strategy="no", disable_tqdm=True)
    clock = Clock()
    trainer = trl.GRPOTrainer(
        model=load(), reward_funcs=reward, args=config, processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(rows), callbacks=[clock])
    generate = trainer._generate

    def timed(*args, **kwargs):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        made = generate(*args, **kwargs)
        torch.cuda.synchronize()
        clock.generating.append(time.perf_counter() - begun)
        return made

    trainer._generate = timed
    trainer.train()
    peak = torch.cuda.max_memory_allocated() / 1e9
    del trainer

    result = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__,
              "seconds": clock.seconds, "lengths": clock.lengths, "peak_gb": peak, "generate_seconds": clock.generating}
    out.mkdir(parents=True, exist_ok=True)
    (out / "steps.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


def compare(metrics, steps):
    with open(metrics, encoding="utf-8") as lines:
        ours = [json.loads(line) for line in lines][WARM_UP:]
    runs = [json.loads(path.read_text()) for path in steps]
    theirs = min(runs, key=lambda run: median(run["seconds"][WARM_UP:]))
    step = median(theirs["seconds"][WARM_UP:]), median(m["step_time"] for m in ours)
    made = [BATCH * COMPLETION / median(theirs["generate_seconds"][WARM_UP:]), median(BATCH * COMPLETION / m["time/rollout"] for m in ours)]
    rest = step[0] - median(theirs["generate_seconds"][WARM_UP:]), median(m["step_time"] - m["time/rollout"] for m in ours)
    print(f"{'median':<24}{'TRL ' + theirs['trl']:>14}{'rlhost':>14}{'gain':>9}")
    print(f"{'step, s':<24}{step[0]:>14.3f}{step[1]:>14.3f}{step[0] / step[1]:>8.2f}x")
    print(f"{'all but generation, s':<24}{rest[0]:>14.3f}{rest[1]:>14.3f}{rest[0] / rest[1]:>8.2f}x")
    print(f"{'generation, tokens/s':<24}{made[0]:>14.0f}{made[1]:>14.0f}{made[1] / made[0]:>8.2f}x")
    lengths = [m["completions/mean_length"] for m in ours] + theirs["lengths"]
    if any(length < COMPLETION - 1 for length in lengths):
        print(f"not comparable: completions are {min(lengths):.1f} to {max(lengths):.1f} tokens long on average")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("prompts", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--continuous-batching", action="store_true")
    parser.add_argument("--compare", type=Path, nargs="+", metavar="FILE")
    args = parser.parse_args()
    if args.compare:
        compare(args.compare[0], args.compare[1:])
    elif args.model and args.prompts and args.out:
        train(args.model, args.prompts, args.out, args.steps, args.continuous_batching)
    else:
        parser.error("MODEL, PROMPTS and --out, or --compare")


if __name__ == "__main__":
    main()
