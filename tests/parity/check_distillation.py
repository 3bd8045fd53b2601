#!/usr/bin/env python3
"""Distil with TRL's own DistillationTrainer and GKDTrainer and with rlhost, and compare every figure.

    python -m venv venv && venv/bin/pip install trl==1.16.0 accelerate datasets peft torch transformers
    cargo build
    venv/bin/python tests/parity/check_distillation.py target/debug/rlhost [--only NAME] [--all]

For each setting: the two tiny random models of trl_steps.py as students, with an ending token that is likelier than others, and for
each a teacher of the other's family with the student's tokenizer, which is wider and deeper; or students and teachers of families
that scale or cap their logits. The same prompts in the same order, three optimizer steps with micro-batches of 4 completions, without
accumulation and with an accumulation of 2. rlhost runs first and logs its completions. TRL's trainer then trains on these: it reads
and tokenizes the prompts itself, and gets the completions where it would generate. Both in f32 on the CPU, AdamW at a rate that
falls from step to step, gradients clipped at 1. AdamW's epsilon is that of check_online_step.py, for the same reason. The last output
is check_distillation.txt beside this file.

Compared after each step are all figures that TRL logs but `step_time`, and the weights, or those of the adapter. The prompts' tokens
must be the same.

- "given": `--learn-from dataset` beside TRL's GKDTrainer with `lmbda` 0, which has one form of data, conversations. Rows of prompts and
  completions are tokenized for it by TRL's SFTTrainer, and its collator takes these tokens and which of them are learned from. In "given
  chat" GKDTrainer gets the conversation as it is, and its collator applies the chat template. GKDTrainer does not log the entropy, which
  is computed here from its logits.
- "policy gradient": `--loss-type policy_gradient`, which TRL does not have. DistillationTrainer does everything but the loss, which is
  written down here for autograd: the mean over tokens of -ratio (ln teacher - ln sampled).
- "likeliest": `--loss-top-k`, which TRL has in its ServerDistillationTrainer for `beta` 0. DistillationTrainer does everything but the
  loss, which is that trainer's: its divergence and its rest, where the teacher in the process says what its server would.
- "grpo": `--teacher-kl-coef` of `rlhost grpo`, beside TRL's GRPOTrainer as in check_online_step.py. Each token's advantage gets its own
  term here, from the logits of both models.
- "same": the teacher is the student. There is nothing to learn, so that loss and update must be zero, which stands in TRL's column.
  AdamW's epsilon is 1 there: with a small one, what rounding leaves of a mixture's gradient grows from step to step, in TRL alike.

Exits 1 if a figure differs by more than 1e-4 of its size, or the weights by more than 1e-5 of their norm. The loss of a policy
gradient, whose terms cancel, is measured by the mean size of the advantages, and `grad_norm` by 1e-3 at least. Weights are held to
their updates too, as check_grpo_step.py says.

What is defined differently is put right on TRL's side:
- TRL shuffles a generation's completions before it cuts it into micro-batches, rlhost whole prompts. TRL takes rlhost's order.
- `entropy` weighs micro-batches by their tokens in rlhost, alike in TRL.
- Lengths of ended completions are 0 in TRL and absent in rlhost where none has ended.
- TRL's GRPO weighs `clip_ratio/...` of whole completions' ratios, and `vespo/phi_seq_mean`, by tokens where each token has an advantage,
  and by completions where it has not; rlhost always by completions. They are left out where this matters, and the figures that count
  TRL's generations where one is trained on twice, which TRL's DistillationTrainer can't.
"""

import math
import shutil
import sys
from collections import defaultdict

from trl_steps import (
    BATCH, EOS, MODELS, SHAPE, STEPS, TRL, ByTokens, Case, Step, load_model, main, make_model, make_rows, read_lines, run_rlhost, train,
    write_lines)
import datasets
import torch
from check_online_step import EPSILON, GENERATIONS, LEAST, TARGET, TWICE, WEIGHT_TOLERANCE, Grpo, flat, in_order, must_agree
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import (
    AutoConfig, AutoModelForCausalLM, AutoTokenizer, Cohere2Config, Gemma2Config, GraniteConfig, LlamaConfig, MixtralConfig,
    Qwen2Config)
from trl import DistillationConfig, DistillationTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.server_distillation import server_distillation_trainer
from trl.trainer import distillation_trainer, grpo_trainer

LENGTH = 24
# By how much the ending token's row of the output matrix is longer than others.
ENDING = 2.5
WIDER = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3)
FAMILIES = {
    "qwen2": (Qwen2Config, dict(tie_word_embeddings=True)),
    "llama": (LlamaConfig, dict(tie_word_embeddings=False)),
    "gemma2": (Gemma2Config, dict(
        final_logit_softcapping=3.0, attn_logit_softcapping=1.5, query_pre_attn_scalar=11, tie_word_embeddings=True, head_dim=16,
        sliding_window=8)),
    "granite": (GraniteConfig, dict(
        logits_scaling=0.6, embedding_multiplier=6.0, attention_multiplier=0.5, residual_multiplier=0.7, tie_word_embeddings=True)),
    "mixtral": (MixtralConfig, dict(num_local_experts=4, num_experts_per_tok=2, router_aux_loss_coef=0.02, tie_word_embeddings=False)),
    "cohere2": (Cohere2Config, dict(logit_scale=1.4, tie_word_embeddings=True, sliding_window=8)),
}
# Whose teacher a model of trl_steps.py has, unless a case names another.
TAUGHT_BY = {"qwen2": "llama", "llama": "qwen2"}
ADAPTERS = {
    "qwen2": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"},
    "llama": {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
}
COLD, DECAYED = {"temperature": 0.7}, {"weight_decay": 0.1}
JSD, POLICY_GRADIENT = {"beta": 0.5}, {"loss_type": "policy_gradient"}
HALF = {"loss_type": "grpo", "teacher_kl_coef": 0.5}
# Name, what is run, settings of the loss, settings of the run that both have under one name, and what else is special: models of other
# families, an adapter, a chat template.
CASES = [
    ("beta 0", "own", {"beta": 0.0}, {}, {}),
    ("beta 0.3", "own", {"beta": 0.3}, {}, {}),
    ("beta 0.5", "own", JSD, {}, {}),
    ("beta 1", "own", {}, {}, {}),
    ("beta 0, cold", "own", {"beta": 0.0}, COLD, {}),
    ("beta 0.3, cold", "own", {"beta": 0.3}, COLD, {}),
    ("beta 0.5, cold", "own", JSD, COLD, {}),
    ("beta 1, cold", "own", {}, COLD, {}),
    ("beta 0.5, hot", "own", JSD, {"temperature": 1.5}, {}),
    ("weight decay", "own", JSD, DECAYED, {}),
    ("chat", "own", JSD, COLD, {"template": "chat"}),
    ("own family teaches", "own", JSD, {}, {"teacher": "own"}),
    ("narrower teaches", "own", JSD, {}, {"teacher": "narrower"}),
    ("bf16 teaches", "own", JSD, {}, {"teacher": "bf16"}),
    ("two completions each", "own", JSD, {"num_generations": 2}, {}),
    ("top_k 20", "own", JSD, {"top_k": 20}, {}),
    *((f"{family} teaches{how}", "own", settings, run, {"teacher": family})
      for family in ("gemma2", "granite", "cohere2") for how, settings, run in ((" beta 0", {"beta": 0.0}, {}), ("", {"beta": 0.3}, COLD))),
    ("mixtral teaches", "own", JSD, {}, {"teacher": "mixtral"}),
    *((f"{family} learns{how}", "own", settings, run, {"student": family, "teacher": "granite" if family == "gemma2" else "gemma2"})
      for family in ("gemma2", "granite", "cohere2")
      for how, settings, run in ((" beta 0", {"beta": 0.0}, {}), ("", {"beta": 0.3}, COLD), (" beta 1", {}, COLD))),
    ("adapter beta 0", "own", {"beta": 0.0}, {}, {"adapter": True}),
    ("adapter beta 0.5", "own", JSD, COLD, {"adapter": True}),
    ("adapter beta 1", "own", {}, DECAYED, {"adapter": True}),
    ("adapter, base teaches", "own", JSD, {}, {"adapter": True, "teacher": "base"}),
    ("given beta 0", "given", {"beta": 0.0}, {}, {}),
    ("given beta 0.3", "given", {"beta": 0.3}, {}, {}),
    ("given beta 0.5", "given", JSD, {}, {}),
    ("given beta 1", "given", {}, {}, {}),
    ("given weight decay", "given", JSD, DECAYED, {}),
    ("given adapter", "given", JSD, {}, {"adapter": True}),
    ("given chat", "given", JSD, {}, {"template": "ended"}),
    ("policy gradient", "own", POLICY_GRADIENT, {}, {}),
    ("policy gradient, cold", "own", POLICY_GRADIENT, COLD, {}),
    ("policy gradient twice", "own", POLICY_GRADIENT, TWICE, {}),
    ("policy gradient adapter", "own", POLICY_GRADIENT, COLD | TWICE, {"adapter": True}),
    ("policy gradient gemma2", "own", POLICY_GRADIENT, COLD | TWICE, {"teacher": "gemma2"}),
    ("policy gradient top_k", "own", POLICY_GRADIENT, TWICE | {"top_k": 20, "score_sampling_support": False}, {}),
    ("likeliest 1", "own", {"beta": 0.0, "loss_top_k": 1}, {}, {}),
    ("likeliest 8, cold", "own", {"beta": 0.0, "loss_top_k": 8}, COLD, {}),
    ("likeliest 8, no tail", "own", {"beta": 0.0, "loss_top_k": 8, "loss_add_tail": False}, {}, {}),
    ("likeliest 20, beta 0.5", "own", {"beta": 0.5, "loss_top_k": 20}, {}, {}),
    ("likeliest 5, beta 1", "own", {"beta": 1.0, "loss_top_k": 5}, COLD, {}),
    ("likeliest 5, adapter", "own", {"beta": 0.0, "loss_top_k": 5}, {}, {"adapter": True, "teacher": "gemma2"}),
    ("grpo 0.5", "grpo", HALF, {}, {}),
    ("grpo 0.5 twice", "grpo", HALF, TWICE, {}),
    ("grpo 0.5 twice, cold", "grpo", HALF, TWICE | COLD, {}),
    ("grpo dapo beta", "grpo", {"teacher_kl_coef": 0.2, "beta": 0.04}, TWICE, {}),
    ("grpo cispo", "grpo", {"loss_type": "cispo", "epsilon_high": 0.1, "teacher_kl_coef": 0.5}, TWICE, {}),
    ("grpo sapo", "grpo", {"loss_type": "sapo", "teacher_kl_coef": 0.5}, TWICE, {}),
    ("grpo vespo", "grpo", {"loss_type": "vespo", "teacher_kl_coef": 0.5}, TWICE, {}),
    ("grpo off-policy mask", "grpo", HALF | {"off_policy_mask_threshold": 0.05}, TWICE, {}),
    ("grpo sequence", "grpo", HALF | {"importance_sampling_level": "sequence", "epsilon": 0.01}, TWICE, {}),
    ("grpo masked", "grpo", HALF | {"mask_truncated_completions": True}, TWICE, {}),
    ("grpo gemma2 teaches", "grpo", HALF, TWICE | COLD, {"teacher": "gemma2"}),
    ("same beta 0", "same", {"beta": 0.0}, {}, {}),
    ("same beta 0.5", "same", JSD, COLD, {}),
    ("same beta 1", "same", {}, {}, {}),
    ("same given", "same", JSD, {}, {"given": True}),
    ("same policy gradient", "same", POLICY_GRADIENT, COLD, {}),
]


def ends_often(folder):
    """Makes a model end about half of its completions in time."""
    model = load_model(folder)
    with torch.no_grad():
        model.get_output_embeddings().weight[model.config.eos_token_id] *= ENDING
    model.save_pretrained(folder)


def make_family(folder, family, like, seed, shape, dtype):
    """A random model of a family, with another model's tokenizer and vocabulary."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(like / name, folder)
    known = AutoConfig.from_pretrained(like)
    config, more = FAMILIES[family]
    ids = dict(vocab_size=known.vocab_size, bos_token_id=None, eos_token_id=known.eos_token_id, pad_token_id=None)
    model = AutoModelForCausalLM.from_config(config(**SHAPE | shape | more | ids), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator) + name.endswith("norm.weight"))
    model.to(dtype).save_pretrained(folder)


def models(work, kind, special):
    """The folders of a case's student, of the base of its adapter, and of its teacher, which are made when they are needed first; and
    the student's tokenizer."""
    template, family = special.get("template"), special.get("student")
    base = work / f"{kind}-{template}"
    if not base.exists():
        make_model(base, kind, make_rows(), template)
        ends_often(base)
    # Of a folder of another family, transformers makes another tokenizer than its tokenizer.json says.
    like, tokenizer = base, AutoTokenizer.from_pretrained(base, padding_side="left")
    if family:
        base = work / f"{kind}-{family}"
        if not base.exists():
            make_family(base, family, like, 11, {}, torch.float32)
            ends_often(base)
    named, student = special.get("teacher", TAUGHT_BY[kind]), base
    if named == "base":
        teacher = base
    else:
        teacher = work / f"{base.name}-taught-by-{named}"
        if not teacher.exists():
            shape = dict(hidden_size=16, num_hidden_layers=1) if named == "narrower" else WIDER
            dtype = torch.bfloat16 if named == "bf16" else torch.float32
            make_family(teacher, named if named in FAMILIES else kind, like, 23, shape, dtype)
    if special.get("adapter"):
        student = work / f"{base.name}-adapter"
        if not student.exists():
            torch.manual_seed(0)
            made = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, lora_dropout=0.0, **ADAPTERS[kind])
            get_peft_model(load_model(base), made).save_pretrained(student)
    return base, student, teacher, tokenizer


def opened(base, student):
    return load_model(base) if student == base else PeftModel.from_pretrained(load_model(base), student, is_trainable=True)


def rows_of(how, template):
    rows = make_rows()
    said = lambda role, text: [{"role": role, "content": text.removesuffix(EOS).strip()}]
    prompts = [said("user", row["prompt"]) if template else row["prompt"] for row in rows]
    if how != "given":
        return [{"prompt": prompt} for prompt in prompts]
    completions = [said("assistant", row["chosen"]) if template else row["chosen"].removesuffix(EOS) for row in rows]
    return [{"prompt": prompt, "completion": completion} for prompt, completion in zip(prompts, completions)]


def train_rlhost(command, student, teacher, dataset, out, accumulation, settings, run, tables=None, epsilon=EPSILON):
    """The figures of each step, and the completions of each generation."""
    given = command[-1] == "dataset"
    flags = {"per-device-train-batch-size": BATCH, "gradient-accumulation-steps": accumulation, "adam-epsilon": epsilon}
    flags |= {"teacher-model": teacher} if teacher else {}
    flags |= {} if given else {"log-completions": "all", "max-completion-length": LENGTH}
    tables = {"loss": settings} | (tables or {})
    given = run | {f"{table}.{key}": value for table, keys in tables.items() for key, value in flat(keys)}
    metrics = run_rlhost(command, student, dataset, out, flags, given)
    generations, logged = defaultdict(list), out / "completions.jsonl"
    for row in read_lines(logged) if logged.exists() else []:
        generations[row["step"]].append(row)
    return metrics, list(generations.values())


def norm(parts):
    return math.sqrt(sum(part.square().sum().item() for part in parts))


class AdapterStep(Step):
    """Compares the weights of an adapter."""

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        self.trained = {name.replace(".default", ""): p for name, p in model.named_parameters() if p.requires_grad}
        self.keep()

    def keep(self):
        self.before = {name: p.detach().clone() for name, p in self.trained.items()}

    def on_step_end(self, args, state, control, **_):
        saved, step = load_file(self.run / f"checkpoint-{state.global_step}" / "adapter_model.safetensors"), state.global_step
        must_agree("names of the adapter", sorted(saved), sorted(self.trained))
        off = norm(saved[name] - p.detach() for name, p in self.trained.items())
        self.report.add(step, "weights, all", off, 0.0, norm(p.detach() for p in self.trained.values()), self.tolerance)
        update = norm(p.detach() - self.before[name] for name, p in self.trained.items())
        self.report.add(step, "weights' differences, their norm", off, 0.0, update, 2e-2)
        self.keep()


def of_completions(model, batch, temperature):
    """The log-probability of each token of completions, and the entropy of its distribution."""
    ids, attention = (torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], 1) for name in ("ids", "mask"))
    kept = batch["completion_ids"].shape[1]
    logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, -kept - 1 : -1]
    logp = (logits / temperature).log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1).detach()
    return logp.gather(-1, batch["completion_ids"][..., None]).squeeze(-1), entropy


class Distillation(ByTokens, DistillationTrainer):
    """TRL's trainer, which gets another's completions in the place of its own."""

    def __init__(self, *args, generations, **kw):
        self.generations = iter(generations)
        super().__init__(*args, **kw)

    def _generate_single_turn(self, prompt_ids, *_, **__):
        rows = next(self.generations)
        must_agree("prompts", [row["prompt_ids"] for row in rows], prompt_ids)
        return [row["completion_ids"] for row in rows]

    def compute_loss(self, model, inputs, *args, **kw):
        loss = super().compute_loss(model, inputs, *args, **kw)
        self.weigh("entropy", self._metrics["train"]["entropy"][-1], inputs["completion_mask"].sum())
        return loss


class PolicyGradient(Distillation):
    """With the loss that TRL does not have."""

    def __init__(self, *args, iterations, **kw):
        self.iterations, self.generated, self.sampled, self.sizes = iterations, 0, {}, []
        super().__init__(*args, **kw)

    def _generate_single_turn(self, *args, **kw):
        if self.generated % self.iterations == 0:
            self.sampled.clear()
        self.generated += 1
        return super()._generate_single_turn(*args, **kw)

    def _compute_loss(self, student, inputs, tokens):
        logp, entropy = of_completions(student, inputs, self.temperature)
        with torch.no_grad():
            teacher, _ = of_completions(self.teacher_model, inputs, self.temperature)
        mask, old = inputs["completion_mask"], logp.detach().clone()
        for i, (prompt, completion, counted) in enumerate(zip(inputs["prompt_ids"], inputs["completion_ids"], mask)):
            length = int(counted.sum())
            row = (*prompt[inputs["prompt_mask"][i] == 1].tolist(), -1, *completion[:length].tolist())
            old[i, :length] = self.sampled.setdefault(row, old[i, :length].clone())
        advantages = (teacher - old) * mask
        self.weigh("teacher_kl", -advantages.sum() / mask.sum(), mask.sum())
        self.sizes.append(advantages.abs().sum().item() / mask.sum().item())
        loss = -((logp - old).exp() * advantages).sum() / tokens
        return loss, (entropy * mask).sum(), mask.sum()

    def log(self, logs, start_time=None):
        if "loss" in logs:
            logs["size of loss"] = sum(self.sizes) / len(self.sizes)
            self.sizes.clear()
        super().log(logs, start_time)


class Likeliest(Distillation):
    """With the loss of the trainer whose teacher is on a server."""

    def __init__(self, *args, top_k, add_tail, **kw):
        self.likeliest, self.add_tail = top_k, add_tail
        super().__init__(*args, **kw)

    def _compute_loss(self, student, inputs, tokens):
        (logp, entropy), mask = self.distributions(student, inputs), inputs["completion_mask"]
        with torch.no_grad():
            teacher, ids = self.distributions(self.teacher_model, inputs)[0].topk(self.likeliest, -1)
        own, valid = logp.gather(-1, ids), torch.ones_like(teacher, dtype=torch.bool)
        if self.add_tail:
            own, with_tail = server_distillation_trainer._add_tail_bucket(own, valid)
            teacher, valid = server_distillation_trainer._add_tail_bucket(teacher, valid)[0], with_tail
        else:
            own, teacher = own.log_softmax(-1), teacher.log_softmax(-1)
        divergence = server_distillation_trainer._jsd_divergence(own, teacher, self.beta, valid).sum(-1)
        return (divergence * mask).sum() / tokens, (entropy * mask).sum(), mask.sum()

    def distributions(self, model, batch):
        ids, attention = (torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], 1) for name in ("ids", "mask"))
        kept = batch["completion_ids"].shape[1]
        logits = model(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, -kept - 1 : -1]
        logp = (logits / self.temperature).log_softmax(-1)
        return logp, -(logp.exp() * logp).sum(-1).detach()


class Gkd(ByTokens, GKDTrainer):
    """TRL's trainer, with the entropy."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        logp = outputs.logits.detach()[:, :-1][inputs["labels"][:, 1:] != -100].log_softmax(-1)
        self.weigh("entropy", -(logp.exp() * logp).sum(-1).mean(), len(logp))
        return (loss, outputs) if return_outputs else loss


class Taught(GRPOTrainer):
    """TRL's GRPO with a teacher's term in each token's advantage. Where a completion has one, it is its first token's, as in rlhost."""

    def __init__(self, *args, teacher, coefficient, **kw):
        self.teacher, self.coefficient = teacher, coefficient
        super().__init__(*args, **kw)

    @torch.no_grad()
    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        old, teacher = (of_completions(model, batch, self.temperature)[0] for model in (self.model, self.teacher))
        mask = batch["completion_mask"]
        terms = (teacher - old) * mask
        self._metrics["train"]["teacher_kl"].append((-terms.sum() / mask.sum().clamp(min=1)).item())
        advantages = batch["advantages"][:, None] + self.coefficient * terms
        return batch | {"advantages": advantages[:, 0], "of_tokens": advantages}

    def _compute_loss(self, model, inputs):
        return super()._compute_loss(model, inputs | {"advantages": inputs["of_tokens"]})


class TaughtGrpo(Grpo, Taught):
    """The same on another's completions."""


def common(out, accumulation, run):
    return dict(output_dir=str(out), per_device_train_batch_size=BATCH, gradient_accumulation_steps=accumulation, adam_epsilon=EPSILON,
                **TRL, **run)


def train_own(base, student, teacher, tokenizer, rows, out, accumulation, settings, run, generations, callback):
    run = dict(run)
    iterations, generations_each, beta = run.pop("num_iterations", 1), run.pop("num_generations", 1), settings.get("beta", 1.0)
    run.pop("score_sampling_support", None)
    args = DistillationConfig(beta=beta, max_completion_length=LENGTH, shuffle_dataset=False, **common(out, accumulation, run))
    # TRL generates once for each prompt and each step. What rlhost trains on several times is there as often.
    size = BATCH * accumulation
    several = [row for row in rows for _ in range(generations_each)]
    chunks = [several[first : first + size] for first in range(0, len(several), size)]
    prompts = [row for chunk in chunks for _ in range(iterations) for row in chunk]
    given = dict(generations=[rows for rows in generations for _ in range(iterations)])
    trainer = Distillation
    if "loss_type" in settings:
        trainer, given = PolicyGradient, given | {"iterations": iterations}
    if "loss_top_k" in settings:
        trainer, given = Likeliest, given | {"top_k": settings["loss_top_k"], "add_tail": settings.get("loss_add_tail", True)}
    train(trainer(
        model=opened(base, student), teacher_model=load_model(teacher), args=args, train_dataset=datasets.Dataset.from_list(prompts),
        processing_class=tokenizer, callbacks=[callback], **given))
    return callback.logs


def train_given(base, student, teacher, tokenizer, rows, out, accumulation, settings, run, template, callback):
    if template:
        rows = [{"messages": row["prompt"] + row["completion"]} for row in rows]
    else:
        args = SFTConfig(max_length=None, **common(out, accumulation, run))
        prepared = SFTTrainer(
            model=load_model(base), args=args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer).train_dataset
        rows = [{"prompt": row["prompt"], "input_ids": made["input_ids"], "completion_mask": [int(t != -100) for t in made["labels"]]}
                for row, made in zip(rows, prepared)]
    args = GKDConfig(
        lmbda=0.0, beta=settings.get("beta", 1.0), max_length=None, train_sampling_strategy="sequential", **common(out, accumulation, run))
    train(Gkd(
        model=opened(base, student), teacher_model=load_model(teacher), args=args, train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer, callbacks=[callback]))
    return callback.logs


def train_grpo(base, student, teacher, tokenizer, rows, out, accumulation, settings, run, generations, callback):
    settings = dict(settings)
    coefficient = settings.pop("teacher_kl_coef")
    args = GRPOConfig(
        num_generations=GENERATIONS, max_completion_length=LENGTH, shuffle_dataset=False,
        **common(out, accumulation, run), **settings)
    by_rows = settings.get("importance_sampling_level") == "sequence"
    train(TaughtGrpo(
        model=opened(base, student), args=args, train_dataset=datasets.Dataset.from_list(rows), callbacks=[callback],
        processing_class=tokenizer, generations=generations, rewards=TARGET,
        report=callback.report, by_rows=by_rows, teacher=load_model(teacher), coefficient=coefficient))
    return callback.logs


def leaves_out(figure, how, settings, run):
    """Whether a figure has another meaning in TRL."""
    if how == "grpo":
        return "importance_sampling_level" in settings and figure.startswith("clip_ratio/") or figure == "vespo/phi_seq_mean"
    # Where TRL generates more often than rlhost.
    again = figure in ("epoch", "num_tokens") or figure.startswith("completions/")
    return "num_iterations" in run and again or "num_generations" in run and figure == "epoch"


def compare_figures(report, got, want, left_out=()):
    for step in range(1, STEPS + 1):
        ours, theirs = got[step], dict(want[step])
        terms = theirs.pop("size of loss", LEAST)
        least = {"loss": terms, "kl": 1e-2, "grad_norm": 1e-3}
        for name, figure in theirs.items():
            nothing = figure is None or "terminated" in name and figure == 0
            if name in ("step_time", *left_out) or nothing and name not in ours:
                continue
            report.add(step, name, ours.get(name), figure, max(abs(figure), least.get(name, LEAST)))


def nothing_to_learn(report, got, out, student):
    """Holds a run whose teacher is its student to zero."""
    before = load_file(student / "model.safetensors")
    for step in range(1, STEPS + 1):
        # In nats, and against the clipped norm.
        report.add(step, "loss", got[step]["loss"], 0.0, 1.0, 1e-6)
        report.add(step, "grad_norm", got[step]["grad_norm"], 0.0, 1.0, 1e-6)
        after = load_file(out / f"checkpoint-{step}" / "model.safetensors")
        off = norm(after[name] - before[name] for name in before)
        report.add(step, "weights, all", off, 0.0, norm(before.values()), 1e-6)
        most = max((after[name] - before[name]).abs().max().item() for name in before)
        report.add(step, "weights, greatest change", most, 0.0, TRL["learning_rate"], 1e-6)


def run_case(args, work, name, how, settings, run, special):
    """One line of the table; whether all of its runs are within tolerance."""
    template, case = special.get("template"), Case(name, work)
    given = how == "given" or special.get("given", False)
    rows = rows_of("given" if given else "own", template)
    dataset = work / "rows.jsonl"
    write_lines(dataset, rows)
    for kind in MODELS:
        base, student, teacher, tokenizer = models(work, kind, special)
        for accumulation in (1, 2):
            out, callback = case.begin(kind, accumulation, WEIGHT_TOLERANCE)
            if special.get("adapter"):
                callback = AdapterStep(callback.report, out, WEIGHT_TOLERANCE)
            taught_by = student if how == "same" else teacher
            command, tables = [args.rlhost, "distillation"], None
            if given:
                command += ["--learn-from", "dataset"]
            elif how == "grpo":
                command = [args.rlhost, "grpo", "--num-generations", GENERATIONS, "--plugin", "tldr_length_reward.wasm"]
                tables = {f"plugin.{name}": table for name, table in TARGET.items()}
            epsilon = 1.0 if how == "same" else EPSILON
            got, generations = train_rlhost(command, student, taught_by, dataset, out, accumulation, settings, run, tables, epsilon)
            parts = (base, student, teacher, tokenizer, rows, work / "trl", accumulation, settings, run)
            if how == "same":
                want = {step: {"loss": 0.0} for step in range(1, STEPS + 1)}
                nothing_to_learn(callback.report, got, out, student)
            elif how == "given":
                want = train_given(*parts, template, callback)
                compare_figures(callback.report, got, want)
            else:
                want = (train_grpo if how == "grpo" else train_own)(*parts, generations, callback)
                left_out = [figure for figure in want[1] if leaves_out(figure, how, settings, run)]
                compare_figures(callback.report, got, want, left_out)
            case.end(got, want)
    return case.print(args.all)


if __name__ == "__main__":
    grpo_trainer.shuffle_sequence_dict = in_order
    distillation_trainer.shuffle_sequence_dict = lambda batch: batch
    sys.exit(main(__doc__, CASES, run_case))
