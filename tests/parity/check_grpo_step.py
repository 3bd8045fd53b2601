#!/usr/bin/env python3
"""Replay the first optimizer steps of a GRPO or RLOO run in torch and compare every figure.

usage: check_grpo_step.py RUN_FOLDER INITIAL_MODEL_FOLDER [--steps K] [--dtype float64]

From the completions and rewards that the run logged, everything after generation is done
again, the naive way and from the formulas alone: transformers' model on padded rows, the
prompt repeated for each completion, autograd, torch's clipping and AdamW. Compared are the
figures of metrics.jsonl, each advantage, and the weights of each checkpoint. The run must have
been made with

    --log-completions all --logging-steps 1 --save-steps 1

and train on each generation once, in one optimizer step, at a linear learning rate without
warmup. Figures are defined as in TRL 1.16; only `bnpo` divides by the tokens of the whole
step, as host/docs/differences.md says. In a run of episodes, replies are masked, and with
`turn_advantages` each turn has its own advantage, as host/docs/episodes.md says.

Exits 1 if a figure differs by more than 1e-4 of its size. The loss, whose terms cancel, is
measured by the sum of their sizes, and `kl` by 1e-2 at least, since e^d - d - 1 has no more
digits in f32. Weights may differ by 2e-2 of the run's greatest update so far, where the root of
AdamW's second moment was always zero or above 100 times its epsilon; elsewhere a gradient is
mere rounding and its first updates of any size, so that only the norm of all differences is
held to the same share of an update's norm. `--dtype float64` replays without rounding.
"""

import argparse
import copy
import json
import math
import re
import sys
import tomllib
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

TOLERANCE = 1e-4
WEIGHT_TOLERANCE = 2e-2
CLIP_RATIOS = ("low_mean", "low_min", "high_mean", "high_max", "region_mean")
# The parameters that transformers' Trainer spares weight decay.
UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(^|\.)norm($|\.)|_norm($|\.)")


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewarding(config):
    """The entries of the rewards and environments, by name."""
    entries = config.get("plugin", []) + environments(config)
    return {Path(entry["path"]).name.removesuffix(".wasm"): entry for entry in entries}


def environments(config):
    given = config.get("environment", [])
    return given if isinstance(given, list) else [given]


def turns_of(row):
    """Begin and end of each turn among the completion's tokens."""
    cuts = [0, *(at for reply in row.get("replies", []) for at in reply), len(row["completion_ids"])]
    return list(zip(cuts[::2], cuts[1::2]))


def nan_std(x, dim=-1):
    """Standard deviation (n - 1) over what is not NaN; NaN for fewer than two."""
    n = (~x.isnan()).sum(dim, keepdim=True)
    squares = (x - x.nanmean(dim, keepdim=True)).square().nansum(dim, keepdim=True)
    return torch.where(n > 1, squares / (n - 1), math.nan).sqrt().squeeze(dim)


class Batch:
    """Completions as padded rows: prompt and completion, then padding."""

    def __init__(self, rows, spare_truncated):
        ids = [torch.tensor(r["prompt_ids"] + r["completion_ids"]) for r in rows]
        # Position t predicts token t + 1.
        masks = [torch.zeros(len(i) - 1, dtype=torch.long) for i in ids]
        for row, mask in zip(rows, masks):
            if row["finished"] or not spare_truncated:
                for begin, end in turns_of(row):
                    first = len(row["prompt_ids"]) - 1
                    mask[first + begin : first + end] = 1
        self.ids = pad_sequence(ids, batch_first=True)
        self.attention = pad_sequence([torch.ones_like(i) for i in ids], batch_first=True)
        self.mask = pad_sequence(masks, batch_first=True)

    def run(self, model, temperature):
        """Log-probability of each next token, and the entropy of its distribution."""
        logits = model(input_ids=self.ids, attention_mask=self.attention, use_cache=False).logits
        logp = (logits[:, :-1] / temperature).log_softmax(-1)
        entropy = -(logp.exp() * logp).sum(-1).detach()
        return logp.gather(-1, self.ids[:, 1:, None]).squeeze(-1), entropy


def judge(config, rows, kls=None):
    """Each completion's advantage, or each turn's, and the figures about rewards. RLOO takes `beta`
    times a completion's KL divergence off its reward."""
    entries = rewarding(config)
    names = list(entries)
    given = [[math.nan if r["rewards"][n] is None else r["rewards"][n] for n in names] for r in rows]
    rewards = torch.tensor(given, dtype=torch.float64)
    weights = torch.tensor([entry["weight"] for entry in entries.values()], dtype=torch.float64)
    total = (rewards * weights).nansum(1)
    total[rewards.isnan().all(1)] = math.nan
    if config["algorithm"] == "rloo":
        advantages, std = leave_one_out(config, total, kls)
    else:
        advantages, std = group_relative(config, total)
    figures = {
        "reward": total.nanmean(),
        "reward_std": nan_std(total),
        "frac_reward_zero_std": (std.abs() <= 1e-8).double().mean(),
    }
    for name, column in zip(names, rewards.T):
        figures |= {f"rewards/{name}/mean": column.nanmean(), f"rewards/{name}/std": nan_std(column)}
    if config["loss"].get("turn_advantages", "none") != "none":
        played = [Path(entry["path"]).name.removesuffix(".wasm") for entry in environments(config)]
        others = (rewards * weights)[:, [name not in played for name in names]].nansum(1)
        by_turn, figures["frac_reward_zero_std"] = of_turns(config, rows, entries[played[0]]["weight"], others, total)
        return by_turn, figures
    return [[a] * len(turns_of(row)) for a, row in zip(advantages.flatten().nan_to_num(0.0).tolist(), rows)], figures


def of_turns(config, rows, weight, others, total):
    """The advantage of each turn of each row, from the returns from there on; and the share of turns that are like all that they
    are compared with."""
    loss, returns, compared = config["loss"], [], {}
    for i, row in enumerate(rows):
        scores = [weight * (reward or 0.0) for reward in row["turn_rewards"]]
        scores[-1] += others[i].item()
        discount = loss["turn_discount"]
        to_come = [sum(discount ** (k - turn) * scores[k] for k in range(turn, len(scores))) for turn in range(len(scores))]
        returns.append([] if math.isnan(total[i]) else to_come)

    def key(i, turn):
        return i // config["num_generations"], turn if loss["turn_advantages"] == "turn" else 0

    for i, row in enumerate(returns):
        for turn, value in enumerate(row):
            compared.setdefault(key(i, turn), []).append(value)
    everything = [value for row in returns for value in row]

    def std(values):
        mean = sum(values) / len(values)
        return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0

    def advantage(i, turn, value):
        group = compared[key(i, turn)]
        centred = value - sum(group) / len(group)
        scale = {"none": None, "group": group, "batch": everything}[loss["scale_rewards"]]
        return centred if scale is None else centred / (std(scale) + 1e-4)

    advantages = [[advantage(i, turn, value) for turn, value in enumerate(row)] for i, row in enumerate(returns)]
    scaled_by = lambda i, turn: everything if loss["scale_rewards"] == "batch" else compared[key(i, turn)]
    alike = [len(g) > 1 and std(g) <= 1e-8 for i, row in enumerate(returns) for turn in range(len(row)) for g in [scaled_by(i, turn)]]
    filled = [row or [0.0] * len(turns_of(rows[i])) for i, row in enumerate(advantages)]
    return filled, sum(alike) / len(alike)


def by_token(rows, advantages, like):
    """The advantage of each predicted token, as padded rows."""
    out = torch.zeros(like.shape, dtype=like.dtype)
    for i, (row, of_turns) in enumerate(zip(rows, advantages)):
        for (begin, end), advantage in zip(turns_of(row), of_turns):
            first = len(row["prompt_ids"]) - 1
            out[i, first + begin : first + end] = advantage
    return out


def leave_one_out(config, total, kls):
    """RLOO's advantages, and the deviation of each group's rewards."""
    loss = config["loss"]
    if loss.get("reward_clip_range"):
        total = total.clamp(*loss["reward_clip_range"])
    if loss["beta"] > 0:
        total = total - loss["beta"] * kls
    groups = total.view(-1, config["num_generations"])
    siblings = (~groups.isnan()).sum(1, keepdim=True) - 1
    advantages = groups - (groups.nansum(1, keepdim=True) - groups) / siblings
    if loss["normalize_advantages"]:
        advantages = (advantages - advantages.nanmean()) / (nan_std(advantages.flatten()) + 1e-4)
    return advantages, nan_std(groups)


def group_relative(config, total):
    """GRPO's advantages, and the deviation of each group's rewards, or of all where those scale."""
    groups = total.view(-1, config["num_generations"])
    scale = config["loss"]["scale_rewards"]
    std = (nan_std(total) if scale == "batch" else nan_std(groups)[:, None]).expand_as(groups)
    advantages = groups - groups.nanmean(1, keepdim=True)
    if scale != "none":
        advantages = advantages / (std + 1e-4)
    return advantages, std


def token_losses(loss, logp, ref_logp, advantages):
    """Loss and KL term of each token, under the weights that generated it."""
    ratio = (logp - logp.detach()).exp()
    low, high = loss["epsilon"], loss.get("epsilon_high", loss["epsilon"])
    bounded = ratio.clamp(max=loss["delta"]) if "delta" in loss else ratio
    losses = -torch.minimum(bounded * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if ref_logp is None:
        return losses, torch.zeros_like(losses)
    d = ref_logp - logp
    kl = d.exp() - d - 1
    if loss["use_bias_correction_kl"]:
        kl = kl * ratio
    return losses + loss["beta"] * kl, kl


def backward(config, model, reference, rows, advantages):
    """Leaves the gradient of a step's loss in the model; gives the step's figures, and the sum
    of the loss's terms regardless of sign."""
    if config["algorithm"] == "rloo":
        return backward_rloo(config, model, rows, advantages)
    loss, size, temperature = config["loss"], config["per_device_train_batch_size"], config["temperature"]
    batches = batches_of(config, rows)
    tokens = sum(int(batch.mask.sum()) for batch in batches)
    sums = dict.fromkeys(("loss", "terms", "kl", "entropy"), 0.0)
    for i, batch in enumerate(batches):
        logp, entropy = batch.run(model, temperature)
        factors = by_token(rows[i * size :][:size], advantages[i * size :][:size], logp)
        with torch.no_grad():
            ref_logp = batch.run(reference, temperature)[0] if reference else None
        losses, kl = token_losses(loss, logp, ref_logp, factors)
        match loss["loss_type"]:
            case "grpo":
                divisor = len(rows) * batch.mask.sum(1, keepdim=True).clamp(min=1)
            case "dr_grpo":
                divisor = len(rows) * config["max_completion_length"]
            case "bnpo" | "dapo":
                divisor = max(tokens, 1)
        terms = losses * batch.mask / divisor
        terms.sum().backward()
        parts = {"loss": terms, "terms": terms.abs(), "kl": kl * batch.mask, "entropy": entropy * batch.mask}
        for name, part in parts.items():
            sums[name] += part.sum().item()
    figures = {"loss": sums["loss"]}
    if tokens:
        figures |= {f"clip_ratio/{name}": 0.0 for name in CLIP_RATIOS}
        figures |= {name: sums[name] / tokens for name in ["entropy"] + ["kl"] * bool(reference)}
    return figures, sums["terms"]


def batches_of(config, rows):
    size, spare = config["per_device_train_batch_size"], config["loss"]["mask_truncated_completions"]
    return [Batch(rows[i : i + size], spare) for i in range(0, len(rows), size)]


@torch.no_grad()
def divergences(config, model, reference, rows):
    """The KL divergence of each completion from the reference model, by the plain log-ratio."""
    if reference is None:
        return torch.zeros(len(rows), dtype=torch.float64)
    parts = []
    for batch in batches_of(config, rows):
        logp, ref_logp = (batch.run(m, config["temperature"])[0] for m in (model, reference))
        parts.append(((logp - ref_logp) * batch.mask).sum(1).double())
    return torch.cat(parts)


def backward_rloo(config, model, rows, advantages):
    """The same for RLOO, whose ratio is that of a completion as a whole."""
    size, temperature = config["per_device_train_batch_size"], config["temperature"]
    low, high = config["loss"]["epsilon"], config["loss"].get("epsilon_high", config["loss"]["epsilon"])
    sums = dict.fromkeys(("loss", "terms", "entropy", "tokens"), 0.0)
    of_rows = torch.tensor([row[0] for row in advantages], dtype=torch.float64)
    for batch, factors in zip(batches_of(config, rows), of_rows.split(size)):
        logp, entropy = batch.run(model, temperature)
        ratio = ((logp - logp.detach()) * batch.mask).sum(1).exp()
        terms = -torch.minimum(ratio * factors, ratio.clamp(1 - low, 1 + high) * factors) / len(rows)
        terms.sum().backward()
        parts = {"loss": terms, "terms": terms.abs(), "entropy": entropy * batch.mask, "tokens": batch.mask}
        for name, part in parts.items():
            sums[name] += part.sum().item()
    figures = {"loss": sums["loss"], "entropy": sums["entropy"] / max(sums["tokens"], 1)}
    return figures | {f"clip_ratio/{name}": 0.0 for name in CLIP_RATIOS}, sums["terms"]


def length_figures(rows):
    # An episode is cut off if one of its turns is.
    ended = [r for r in rows if all(turn["finished"] for turn in r.get("turns", [r]))]
    figures = {"completions/clipped_ratio": 1 - len(ended) / len(rows)}
    for suffix, kept in [("length", rows), ("terminated_length", ended)]:
        lengths = [sum(end - begin for begin, end in turns_of(r)) for r in kept]
        if lengths:
            values = {"mean": sum(lengths) / len(lengths), "min": min(lengths), "max": max(lengths)}
            figures |= {f"completions/{name}_{suffix}": value for name, value in values.items()}
    if "replies" in rows[0]:
        turns = [len(r["turn_rewards"]) for r in rows]
        replies = sum(end - begin for r in rows for begin, end in r["replies"])
        figures |= {"episodes/mean_turns": sum(turns) / len(rows), "episodes/max_turns": max(turns)}
        figures["episodes/tokens_of_replies"] = replies / len(rows)
    return figures


class Report:
    """The table, and whether all of it is within tolerance."""

    def __init__(self):
        self.worst, self.passed = {}, True
        print(f"{'step':>4}  {'name':<52} {'rlhost':>14} {'torch':>14} {'difference':>10}")

    def add(self, step, name, got, want, size=None, tolerance=TOLERANCE):
        """One line; `size` is what the difference is a share of, if not the figure itself."""
        got, want = math.nan if got is None else float(got), float(want)
        size = max(abs(got), abs(want)) if size is None else float(size)
        off = abs(got - want)
        share = off / size if size and math.isfinite(off) else 0.0 if off == 0 else math.inf
        self.passed &= share <= tolerance
        kind = "weights" if name.startswith("weights") else name
        self.worst[kind] = max(self.worst.get(kind, 0.0), share)
        print(f"{step:>4}  {name:<52} {got:>14.8g} {want:>14.8g} {share:>10.1e}{'' if share <= tolerance else '  <--'}")


class Weights:
    """Compares the trained weights with a run's checkpoints, step by step."""

    def __init__(self, model, optimizer):
        self.parameters, self.optimizer = dict(model.named_parameters()), optimizer
        self.settled = {name: torch.ones_like(p, dtype=torch.bool) for name, p in self.parameters.items()}
        # The run's greatest update of one weight, and of all together.
        self.greatest, self.longest = 0.0, 0.0
        self.keep()

    def keep(self):
        self.before = {name: p.detach().clone() for name, p in self.parameters.items()}

    def check(self, report, step, checkpoint):
        saved = load_file(checkpoint / "model.safetensors")
        if saved.keys() != self.parameters.keys():
            sys.exit(f"{checkpoint}: names differ: {sorted(saved.keys() ^ self.parameters.keys())}")
        worst, squares = (-1.0, "", 0.0, 0.0), [0.0, 0.0]
        for name, p in self.parameters.items():
            state, group = self.optimizer.state[p], self.optimizer.param_groups[0]
            root = (state["exp_avg_sq"] / (1 - group["betas"][1] ** step)).sqrt()
            self.settled[name] &= (root == 0) | (root > 100 * group["eps"])
            update = p.detach() - self.before[name]
            off = saved[name].to(p.dtype) - p.detach()
            self.greatest = max(self.greatest, update.abs().max().item())
            squares = [squares[0] + off.square().sum().item(), squares[1] + update.square().sum().item()]
            at = (off.abs() * self.settled[name]).argmax()
            if self.settled[name].flatten()[at]:
                pair = [t.detach().flatten()[at].item() for t in (saved[name], p)]
                worst = max(worst, (abs(off.flatten()[at].item()), name, *pair))
        self.longest = max(self.longest, math.sqrt(squares[1]))
        report.add(step, f"weights {worst[1]}", *worst[2:], self.greatest, WEIGHT_TOLERANCE)
        report.add(step, "weights' differences, their norm", math.sqrt(squares[0]), 0.0, self.longest, WEIGHT_TOLERANCE)
        self.keep()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("model", type=Path, metavar="INITIAL_MODEL_FOLDER")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps to replay (default 3)")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="torch's numbers")
    args = parser.parse_args()

    config = tomllib.loads((args.run / "config.toml").read_text())
    accumulation = config["gradient_accumulation_steps"]
    if config["num_iterations"] != 1 or config.get("steps_per_generation", accumulation) != accumulation:
        sys.exit("only a run with one optimizer step a generation can be replayed")
    if config["lr_scheduler_type"] != "linear" or config["warmup_steps"] or config["warmup_ratio"]:
        sys.exit("only a run with a linear learning rate without warmup can be replayed")
    if config["save_steps"] != 1 or config["logging_steps"] != 1 or config["log_completions"] != "all":
        sys.exit("the run must have been made with --log-completions all --logging-steps 1 --save-steps 1")
    if config["algorithm"] not in ("grpo", "rloo"):
        sys.exit(f"only a run of grpo or rloo can be replayed, not of {config['algorithm']}")
    max_steps = json.loads((args.run / "checkpoint-1" / "trainer" / "trainer_state.json").read_text())["max_steps"]
    metrics = {line["step"]: line for line in read_lines(args.run / "metrics.jsonl")}
    completions = read_lines(args.run / "completions.jsonl")

    disable_progress_bar()
    dtype = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="eager").eval()
    reference = copy.deepcopy(model) if config["loss"]["beta"] > 0 else None
    groups = [{"params": [], "weight_decay": config["weight_decay"]}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        groups[bool(UNDECAYED.search(name))]["params"].append(parameter)
    betas = (config["adam_beta1"], config["adam_beta2"])
    optimizer = torch.optim.AdamW(groups, betas=betas, eps=config["adam_epsilon"])
    weights, report, seen = Weights(model, optimizer), Report(), 0

    for step in range(min(args.steps, len(metrics))):
        rows = [c for c in completions if c["step"] == step]
        kls = divergences(config, model, reference, rows) if config["algorithm"] == "rloo" else None
        advantages, want = judge(config, rows, kls)
        if kls is not None and reference is not None:
            want["kl"] = kls.sum() / max(sum(int(batch.mask.sum()) for batch in batches_of(config, rows)), 1)
        seen += sum(len(r["prompt_ids"]) + len(r["completion_ids"]) for r in rows)
        optimizer.zero_grad()
        figures, terms = backward(config, model, reference, rows, advantages)
        want |= figures | length_figures(rows) | {"num_tokens": seen}
        want["learning_rate"] = config["learning_rate"] * (1 - step / max_steps)
        want["grad_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), config["max_grad_norm"] or math.inf)
        for group in optimizer.param_groups:
            group["lr"] = want["learning_rate"]
        optimizer.step()

        for name, value in want.items():
            size = {"loss": terms, "kl": max(abs(float(value)), 1e-2)}.get(name)
            report.add(step + 1, name, metrics[step + 1].get(name), value, size)
        greatest = max(abs(advantage) for of_row in advantages for advantage in of_row)
        for i, (row, of_row) in enumerate(zip(rows, advantages)):
            given = row.get("turn_advantages", [row["advantage"]])
            for turn, (got, advantage) in enumerate(zip(given, of_row, strict=True)):
                report.add(step + 1, f"advantage {i}" + f", turn {turn}" * (len(given) > 1), got, advantage, greatest)
        weights.check(report, step + 1, args.run / f"checkpoint-{step + 1}")

    shares = {name: share for name, share in report.worst.items() if name != "weights"}
    worst = max(shares, key=shares.get)
    print(f"greatest difference: {shares[worst]:.1e} of {worst}, {report.worst['weights']:.1e} of the weights' update")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
