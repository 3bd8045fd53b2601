#!/usr/bin/env python3
"""Learn from one's own successes with TRL's SDPOTrainer and with `rlhost sdpo`, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets peft torch transformers
    cargo build
    venv/bin/python tests/parity/check_sdpo.py target/debug/rlhost [--only NAME] [--all]

For each setting: the two tiny random models of trl_steps.py, with an ending token that is likelier than others, on prompts of which two
thirds have feedback. Three optimizer steps with micro-batches of 4 completions, without accumulation and with an accumulation of 2. rlhost
runs first, rewards completions by whether they have an even number of letters, and logs them with their rewards; TRL's trainer then trains
on these. It tokenizes the prompts, finds the successes, and writes and tokenizes the teacher's prompts itself. Both in f32 on the CPU, AdamW
at a rate that falls from step to step, gradients clipped at 1. The last output is check_sdpo.txt beside this file.

Compared after each step are the loss, the norm of the gradient, the shares of groups and completions with a success, with feedback and with
a teacher's prompt, the mean reward, and the weights, or those of the adapter.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-5 of their norm. The losses of sampled tokens and
of a policy gradient, whose terms cancel, are measured by the mean size of these terms, as check_self_distillation.py says.

What is defined differently: TRL averages the losses of micro-batches, so that `dapo` and `bnpo` are compared without accumulation; here they
divide by the step's tokens. Other figures of TRL have other names or none.
"""

import random
import sys

from trl_steps import MODELS, WORDS, Case, load_model, main, make_model, make_rows, train, write_lines  # noqa: F401
import datasets
from check_distillation import AdapterStep, common, compare_figures, opened, rows_of, train_rlhost
from check_online_step import TWICE, WEIGHT_TOLERANCE, must_agree
from check_self_distillation import LENGTH, SAMPLED, models
import torch
from transformers import AutoTokenizer
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

REWARD = """
def even(completion):
    return 1.0 if sum(c.isalpha() for c in completion) % 2 == 0 else 0.25
"""
FULL, FEW = {"distillation_mode": "full_logits"}, {"distillation_mode": "topk_logits", "distillation_topk": 7}
FED = {"include_environment_feedback": True}
COLD, LIVE, BASE = {"temperature": 0.7}, {"teacher_model_kind": "live"}, {"teacher_model_kind": "base"}
FAST = {"teacher_update_rate": 0.5}
HALF, NONE = {"distillation_weight": 0.5}, {"distillation_weight": 0.0}
WORDED = {"reprompt_template": "{feedback}{{}} {prompt} ({prompt}) {solution}", "solution_template": " <{successful_previous_attempt}> ",
          "feedback_template": "[{feedback_raw}] "}
ALONE = {"in_one": True}
# Name, settings of the loss, settings of the run that both have under one name, and what else is special.
CASES = [
    ("default", {}, {}, {}),
    ("cold, fast", {}, COLD | FAST, {}),
    ("twice", {}, TWICE | FAST, {}),
    ("live", {}, LIVE, {}),
    ("base", FULL | {"distillation_alpha": 0.5}, BASE, {}),
    ("full, alpha 0", FULL | {"distillation_alpha": 0.0}, COLD, {}),
    ("top 7", FEW | {"distillation_alpha": 0.5}, FAST, {}),
    ("top 7 and rest, twice", FEW | {"distillation_add_tail": True}, TWICE, {}),
    ("clipped at 1, twice", FULL | {"distillation_is_clip": 1.0}, TWICE | LIVE, {}),
    ("by itself too", {"dont_reprompt_on_self_success": False}, {}, {}),
    ("feedback", FED, {}, {}),
    ("feedback without a success", FED | {"environment_feedback_only_without_solution": True}, {}, {}),
    ("feedback alone", FED | {"use_successful_as_teacher": False}, {}, {}),
    ("no success", {"success_reward_threshold": 1.5}, {}, {}),
    ("short", {"max_reprompt_len": 20}, {}, {}),
    ("templates", FED | WORDED, {}, {}),
    ("half, grpo", HALF | {"loss_type": "grpo"}, {}, {}),
    ("half, dapo", HALF, {}, ALONE),
    ("half, twice, full", HALF | FULL | {"loss_type": "grpo"}, TWICE, {}),
    ("policy, dr_grpo", NONE | {"loss_type": "dr_grpo"}, TWICE, {}),
    ("policy, bnpo", NONE | {"loss_type": "bnpo", "epsilon": 0.05, "epsilon_high": 0.1}, TWICE, ALONE),
    ("policy, sequence", NONE | {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.01}, TWICE, {}),
    ("policy, batch", NONE | {"loss_type": "grpo", "scale_rewards": "batch"}, {}, {}),
    ("policy, unscaled", NONE | {"loss_type": "grpo", "scale_rewards": "none"}, {}, {}),
    ("masked", HALF | {"mask_truncated_completions": True, "loss_type": "grpo"}, {}, {}),
    ("chat", FED, {}, {"template": "chat"}),
    ("adapter", {}, FAST, {"adapter": True}),
    ("adapter, half, live", HALF | FEW | {"loss_type": "grpo"}, LIVE, {"adapter": True}),
]


def rewarded_rows(template):
    """Prompts of varied lengths, two thirds of them with feedback."""
    rng, rows = random.Random(5), rows_of("own", template)
    words = lambda: " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))
    return [row | {"privileged_context": ("", words(), words())[i % 3]} for i, row in enumerate(rows)]


class SuccessDistillation(SDPOTrainer):
    """TRL's trainer, which gets another's completions and rewards in the place of its own."""

    def __init__(self, *args, generations, **kw):
        self.generations, self.sizes = iter(generations), []
        super().__init__(*args, reward_funcs=[lambda completions, **_: [0.0] * len(completions)], **kw)

    def _generate(self, prompt_ids):
        self.rows = next(self.generations)
        must_agree("prompts", [row["prompt_ids"] for row in self.rows], prompt_ids)
        return prompt_ids, [row["completion_ids"] for row in self.rows]

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        return torch.tensor([[row["rewards"]["even"]] for row in self.rows])

    def _compute_self_distillation_loss(self, model, inputs, both):
        loss = super()._compute_self_distillation_loss(model, inputs, both)
        if both.loss_mask.sum() > 0 and self.args.distillation_mode == "sampled_token":
            ours, teachers = (logits.log_softmax(-1).gather(-1, both.completion_ids[..., None]).squeeze(-1).detach()
                              for logits in (both.student_logits, both.teacher_logits))
            self.sizes.append(((ours - teachers) * ours * both.loss_mask).abs().sum().item() / both.loss_mask.sum().item())
        return loss

    def _compute_policy_loss(self, inputs, student_logits):
        # Losses of tokens are their advantages, times ratios, and cancel within a group.
        self.sizes.append(inputs["advantages"].abs().mean().item())
        return super()._compute_policy_loss(inputs, student_logits)

    def log(self, logs, start_time=None):
        if "loss" in logs:
            logs["size of loss"] = max(1e-3, sum(self.sizes) / max(1, len(self.sizes)))
            self.sizes.clear()
        super().log(logs, start_time)


def train_trl(base, student, tokenizer, rows, out, accumulation, settings, run, generations, callback):
    args = SDPOConfig(
        max_completion_length=LENGTH, max_prompt_length=None, shuffle_dataset=False,
        **common(out, accumulation, {"num_generations": 4} | run), **settings)
    train(SuccessDistillation(
        model=opened(base, student), args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer,
        callbacks=[callback], generations=generations))
    return callback.logs


def run_case(args, work, name, settings, run, special):
    """One line of the table; whether all of its runs are within tolerance."""
    template, case = special.get("template"), Case(name, work)
    rows, dataset, reward = rewarded_rows(template), work / "rows.jsonl", work / "even.py"
    write_lines(dataset, rows)
    reward.write_text(REWARD)
    for kind in MODELS:
        base, student = models(work, kind, special)
        tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
        for accumulation in (1,) if special.get("in_one") else (1, 2):
            out, callback = case.begin(kind, accumulation, WEIGHT_TOLERANCE)
            if special.get("adapter"):
                callback = AdapterStep(callback.report, out, WEIGHT_TOLERANCE)
            got, generations = train_rlhost([args.rlhost, "sdpo", "--plugin", reward], student, None, dataset, out, accumulation, settings,
                                            {"num_generations": 4} | run)
            want = train_trl(base, student, tokenizer, rows, work / "trl", accumulation, settings, run, generations, callback)
            is_taught = settings.get("distillation_weight", 1.0) > 0
            compare_figures(callback.report, got, {step: compared(figures, is_taught) for step, figures in want.items()})
            case.end(got, want)
    return case.print(args.all)


def compared(figures, is_taught):
    """What rlhost has, too, of TRL's figures. Without a teacher, there is nothing to count."""
    kept = {key: value for key, value in figures.items() if key in ("loss", "grad_norm", "size of loss") or is_taught
            and key.endswith("_fraction") and not key.endswith("flat_group_fraction")}
    if "self_distillation/reward_mean" in figures:
        kept["reward"] = figures["self_distillation/reward_mean"]
    return kept


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, run_case))
