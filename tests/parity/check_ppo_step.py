#!/usr/bin/env python3
"""Train on the same completions with TRL's PPO and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.10.0 accelerate datasets torch transformers
    cargo build
    venv/bin/python tests/parity/check_ppo_step.py target/debug/rlhost [--only NAME] [--all]

TRL 1.10 is the last version with PPO. For each setting: the two tiny random models of trl_steps.py
with an ending token that is likelier than others, a value model of its own beside each, three
generations of 8 completions, two updates on each (of all of them, or once of each half: TRL then takes
them in rlhost's order), and rlhost once with an accumulation of 2. rlhost
runs first and logs its completions and their rewards. TRL's own training loop then runs on these:
it gets the completions where it would generate, and the rewards where it would ask a reward model.
Both in f32 on the CPU, AdamW at a constant rate, gradients not clipped, as in TRL's PPO. Compared
after each generation are all figures that TRL logs but times, and the weights of policy and value
model. The last output is check_ppo_step.txt beside this file.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights of a model by more than
1e-5 of their norm. What cancels is measured by a size that its terms have: the policy's loss by 1e-2
at least, and a completion's divergence by 1e-1.

What is defined differently is put right in the source of TRL's loop, where each line must be found:
- A score goes onto a completion's last token. TRL adds it to the first padded position, if there is
  one, and learns that position's value too.
- Means over tokens leave out the padding, which TRL takes in for `policy/approxkl_avg`,
  `policy/entropy_avg` and `val/ratio`. `val/ratio_var` is another figure in rlhost and left out.
TRL logs the mean of a generation's updates. So rlhost's are averaged.
"""

import inspect
import math
import sys
import textwrap

import numpy
import torch
import transformers
from check_online_step import TARGET, flat, make_policy, rows_of
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer
from trl_steps import MODELS, STEPS, Case, Step, load_model, main, make_rows, read_lines, run_rlhost, write_lines

BATCH, LENGTH, RATE, EPSILON, UPDATES, WEIGHT_TOLERANCE = 8, 16, 3e-4, 1e-5, 2, 1e-5
# Name, settings of the algorithm, settings of the run.
CASES = [
    ("ppo", {}, {}),
    ("k3", {"kl_estimator": "k3", "kl_coef": 0.5}, {}),
    ("gamma, lam", {"gamma": 0.9, "lam": 0.8}, {}),
    ("vf_coef", {"vf_coef": 2.0}, {}),
    ("cliprange", {"cliprange": 0.02}, {}),
    ("cliprange_value", {"cliprange_value": 0.01, "vf_coef": 1.0}, {}),
    ("whiten_rewards", {"whiten_rewards": True}, {}),
    ("missing_eos_penalty", {"missing_eos_penalty": 3.0}, {}),
    ("temperature 0.7", {}, {"temperature": 0.7}),
    ("mini-batches", {}, {"num_mini_batches": 2, "num_ppo_epochs": 1}),
]
(REWARD,) = TARGET
# In TRL's loop, and what stands there instead.
CHANGES = [
    ("sequence_lengths_p1 = sequence_lengths + 1", "sequence_lengths_p1 = sequence_lengths"),
    ("approxkl = 0.5 * (logprobs_diff**2).mean()",
     "approxkl = 0.5 * masked_mean(logprobs_diff**2, ~padding_mask[micro_batch_inds])"),
    ('accelerator.print("===training policy===")', "pass"),
    ("= entropy.mean()", "= masked_mean(entropy, ~padding_mask[micro_batch_inds])"),
    ("= ratio.mean()", "= masked_mean(ratio, ~padding_mask[micro_batch_inds])"),
]
# Figures that TRL logs, by whether they are of a generation or of an update.
OF_GENERATION = [
    "objective/kl", "objective/entropy", "objective/non_score_reward", "objective/rlhf_reward", "objective/scores",
    "val/num_eos_tokens", "episode", "lr"]
OF_UPDATE = [
    "policy/approxkl_avg", "policy/clipfrac_avg", "loss/policy_avg", "loss/value_avg", "val/clipfrac_avg",
    "policy/entropy_avg", "val/ratio"]
LEAST = {"loss/policy_avg": 1e-2, "loss": 1e-2, "objective/kl": 1e-1, "objective/non_score_reward": 1e-2}


def changed_loop():
    source = textwrap.dedent(inspect.getsource(PPOTrainer.train))
    for old, new in CHANGES:
        if source.count(old) != 1:
            sys.exit(f"TRL's loop has another text than this check was written for: {old}")
        source = source.replace(old, new)
    made = {}
    exec(source, ppo_trainer.__dict__, made)
    return made["train"]


def make_value_model(folder, policy):
    model = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator) + name.endswith("norm.weight"))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(policy).save_pretrained(folder)


def load_value_model(folder):
    return AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float32, attn_implementation="eager")


class Scores(torch.nn.Module):
    """Stands where a reward model would."""


class Fed:
    """What TRL gets from rlhost's run, a generation at a time."""

    def __init__(self, rows, accumulation):
        self.generations = {}
        for row in rows:
            self.generations.setdefault(row["step"], []).append(row)
        self.generations = list(self.generations.values())
        used = {token for row in rows for token in row["prompt_ids"] + row["completion_ids"]}
        self.pad = next(token for token in range(10_000) if token not in used)
        self.at = -1

    def padded(self, lists, left):
        longest = max(map(len, lists))
        padding = [[self.pad] * (longest - len(tokens)) for tokens in lists]
        return torch.tensor([pad + tokens if left else tokens + pad for pad, tokens in zip(padding, lists)])

    def batches(self):
        return [{"input_ids": self.padded([row["prompt_ids"] for row in rows], True)} for rows in self.generations]

    def generation(self, model, queries, _, pad, config):
        """In the place of TRL's sampling: rlhost's completions with the model's logits."""
        self.at += 1
        responses = self.padded([row["completion_ids"] for row in self.generations[self.at]], False)
        both = torch.cat((queries, responses), 1)
        logits = ppo_trainer.forward(model, both, pad).logits[:, queries.shape[1] - 1 : -1]
        return both, logits / config.temperature

    def reward(self, asked, model, *args):
        if not isinstance(model, Scores):
            return asked(model, *args)
        return None, torch.tensor([row["rewards"][REWARD] for row in self.generations[self.at]]), None


class Watched(Step):
    """Compares the weights after each generation."""

    def on_train_begin(self, args, state, control, model=None, **_):
        self.model = model

    def on_step_end(self, args, state, control, **_):
        folder, step = self.run / f"checkpoint-{UPDATES * state.global_step}", state.global_step
        for part, module, place in [("policy", self.model.policy, folder), ("value", self.model.value_model, folder / "trainer" / "value_model")]:
            saved = load_file(place / "model.safetensors")
            pairs = [(saved[name], p.detach()) for name, p in module.named_parameters()]
            off, norm = (math.sqrt(sum(x.square().sum().item() for x in parts))
                         for parts in ([a - b for a, b in pairs], [b for _, b in pairs]))
            for name in ["weights, all", f"weights of {part}"]:
                self.report.add(step, name, off, 0.0, norm, WEIGHT_TOLERANCE)


def train_rlhost(binary, model, value_model, dataset, out, accumulation, settings, run):
    flags = {"log-completions": "all", "per-device-train-batch-size": BATCH // accumulation, "num-generations": 1,
             "gradient-accumulation-steps": accumulation, "max-completion-length": LENGTH,
             "adam-epsilon": EPSILON, "max-grad-norm": 0, "lr-scheduler-type": "constant", "max-steps": UPDATES * STEPS,
             "learning-rate": RATE, "critic-learning-rate": RATE, "value-model": value_model}
    tables = {"loss": settings} | {f"plugin.{name}": given for name, given in TARGET.items()}
    given = {"num_ppo_epochs": UPDATES} | run | {f"{table}.{key}": value for table, keys in tables.items() for key, value in flat(keys)}
    plugins = [part for name in TARGET for part in ("--plugin", f"{name}.wasm")]
    metrics = run_rlhost([binary, "train", "--algorithm", "ppo", *plugins], model, dataset, out, flags, given)
    of = lambda g, i: metrics[UPDATES * (g - 1) + 1 + i]
    merged = {}
    for g in range(1, STEPS + 1):
        merged[g] = {name: of(g, 0).get(name) for name in OF_GENERATION}
        merged[g] |= {name: sum(of(g, i)[name] for i in range(UPDATES)) / UPDATES for name in [*OF_UPDATE, "loss"]}
    return merged, read_lines(out / "completions.jsonl")


def train_trl(model, value_model, out, settings, run, fed, callback):
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(fed.pad)
    args = PPOConfig(
        output_dir=str(out), per_device_train_batch_size=BATCH, gradient_accumulation_steps=1,
        total_episodes=BATCH * STEPS, response_length=LENGTH, local_rollout_forward_batch_size=BATCH,
        adam_epsilon=EPSILON, learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0, stop_token="eos",
        num_sample_generations=0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        bf16=False, gradient_checkpointing=False, seed=1, optim="adamw_torch", **({"temperature": 1.0, "num_ppo_epochs": UPDATES} | settings | run))
    ppo_trainer.batch_generation = fed.generation
    asked = ORIGINAL_REWARD
    ppo_trainer.get_reward = lambda *args: fed.reward(asked, *args)
    trainer = PPOTrainer(
        args=args, processing_class=tokenizer, model=load_model(model), ref_model=load_model(model), reward_model=Scores(),
        value_model=load_value_model(value_model), train_dataset=[{"input_ids": [0]}] * BATCH * STEPS, callbacks=[callback],
        eval_dataset=[{"input_ids": [0]}])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.dataloader = fed.batches()
    trainer.train()
    for logs in callback.logs.values():
        logs["loss"] = logs["loss/policy_avg"] + args.vf_coef * logs["loss/value_avg"]
    return callback.logs


def run_case(args, work, name, settings, run):
    """One line of the table; whether all of its runs are within tolerance."""
    rows, case = rows_of(make_rows(), None), Case(name, work)
    dataset = work / "rows.jsonl"
    write_lines(dataset, rows)
    for kind in MODELS:
        model, value_model = work / kind, work / f"{kind}-value"
        if not model.exists():
            make_policy(model, kind, make_rows(), None)
            make_value_model(value_model, model)
        for accumulation in (1, 2):
            out, step = case.begin(kind, accumulation)
            callback = Watched(step.report, out)
            got, completions = train_rlhost(args.rlhost, model, value_model, dataset, out, accumulation, settings, run)
            want = train_trl(model, value_model, work / "trl", settings, run, Fed(completions, accumulation), callback)
            for generation in range(1, STEPS + 1):
                for figure in [*OF_GENERATION, *OF_UPDATE, "loss"]:
                    ours, theirs = got[generation][figure], want[generation][figure]
                    callback.report.add(generation, figure, ours, theirs, max(abs(theirs), LEAST.get(figure, 1e-6)))
            case.end(got, want)
    return case.print(args.all)


if __name__ == "__main__":
    ORIGINAL_REWARD = ppo_trainer.get_reward
    PPOTrainer.train = changed_loop()
    numpy.random.permutation = numpy.arange
    sys.exit(main(__doc__, CASES, run_case))
