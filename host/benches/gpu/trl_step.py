#!/usr/bin/env python3
"""The GRPO run of run.sh through TRL with transformers' generation, on the same card; then both side by side.

    trl_step.py MODEL PROMPTS --out FOLDER           trains, and writes FOLDER/steps.json
    trl_step.py --compare METRICS.jsonl STEPS.json   prints medians; the first step of each run is dropped
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

BATCH, GROUP, COMPLETION, STEPS, RATE = 64, 8, 128, 20, 1e-6


def train(model, prompts, out):
    import datasets
    import torch
    import transformers
    import trl

    class Clock(transformers.TrainerCallback):
        seconds, lengths = [], []

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
        return [-abs(20.0 - len(ids)) for ids in completion_ids]

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).cuda()

    with open(prompts, encoding="utf-8") as lines:
        rows = [{"prompt": json.loads(line)["prompt"]} for line in lines if line.strip()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    config = trl.GRPOConfig(
        output_dir=str(out), per_device_train_batch_size=BATCH, num_generations=GROUP, max_completion_length=COMPLETION,
        max_steps=STEPS, learning_rate=RATE, beta=0.0, bf16=True, gradient_checkpointing=False, logging_steps=1,
        report_to="none", save_strategy="no", disable_tqdm=True)
    clock = Clock()
    trainer = trl.GRPOTrainer(
        model=load(), reward_funcs=reward, args=config, processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list(rows), callbacks=[clock])
    trainer.train()
    peak = torch.cuda.max_memory_allocated() / 1e9
    del trainer

    network, rates = load().eval(), []
    texts = [row["prompt"] for row in rows[: BATCH // GROUP] for _ in range(GROUP)]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left").to("cuda")
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with torch.no_grad():
            made = network.generate(**inputs, max_new_tokens=COMPLETION, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
        torch.cuda.synchronize()
        rates.append(made.shape[0] * (made.shape[1] - inputs["input_ids"].shape[1]) / (time.perf_counter() - begun))
    result = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__,
              "seconds": clock.seconds, "lengths": clock.lengths, "peak_gb": peak, "generate_tokens_per_second": rates}
    out.mkdir(parents=True, exist_ok=True)
    (out / "steps.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


def compare(metrics, steps):
    with open(metrics, encoding="utf-8") as lines:
        ours = [json.loads(line) for line in lines][1:]
    theirs = json.loads(steps.read_text())
    step = median(m["step_time"] for m in ours), median(theirs["seconds"][1:])
    rollout = median(BATCH * COMPLETION / m["time/rollout"] for m in ours), median(theirs["generate_tokens_per_second"][1:])
    print(f"{'median':<24}{'TRL ' + theirs['trl']:>14}{'rlhost':>14}{'gain':>9}")
    print(f"{'step, s':<24}{step[1]:>14.3f}{step[0]:>14.3f}{step[1] / step[0]:>8.2f}x")
    print(f"{'generation, tokens/s':<24}{rollout[1]:>14.0f}{rollout[0]:>14.0f}{rollout[0] / rollout[1]:>8.2f}x")
    lengths = [m["completions/mean_length"] for m in ours] + theirs["lengths"]
    if any(length < COMPLETION - 1 for length in lengths):
        print(f"not comparable: completions are {min(lengths):.1f} to {max(lengths):.1f} tokens long on average")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("prompts", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("METRICS", "STEPS"))
    args = parser.parse_args()
    if args.compare:
        compare(*args.compare)
    elif args.model and args.prompts and args.out:
        train(args.model, args.prompts, args.out)
    else:
        parser.error("MODEL, PROMPTS and --out, or --compare")


if __name__ == "__main__":
    main()
