#!/usr/bin/env python3
"""Serve a tiny model of each family, ask with the openai client, and compare the answers with transformers; evaluate one with lm-eval.

    python -m venv venv && venv/bin/pip install torch transformers peft accelerate openai 'lm-eval[api]'
    cargo build
    venv/bin/python tests/parity/check_serving.py target/debug/rlhost [--only NAME]

The models are those of tests/fixtures/make_models.py with a tokenizer of bytes. For each, compared are 32 greedy tokens, their
log-probabilities and those of two alternatives; the log-probabilities of a prompt (`echo`); log-probabilities of tokens sampled at a
temperature among the 5 most likely, and with a repetition penalty; and a second turn, part of which is in the prefix cache. With a
chat template: the ids of a conversation, and the text of the answer, streamed and whole. lm-eval asks one model by `local-completions`
and `local-chat-completions`, and computes the same tasks with transformers (`hf`): the log-likelihoods of choices and of whole texts, and
generated texts. That model's adapters of peft's are served beside it and replaced in place, its weights reloaded, and a reward model made of
it scores texts. The last output is check_serving.txt beside this file.

Exits 1 if tokens or texts differ, or log-probabilities by more than 1e-4 (log-likelihoods of whole texts: 1e-3).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from checks import Check, be_quiet, make, opened, tokenizer_of

import lm_eval
import openai
import peft
import torch
import transformers
from make_models import MODELS

NEW, CONTEXT, TOLERANCE = 32, 512, 1e-4
PROMPT = "question 7: don't say 1234  twice"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EVALUATED = "qwen3"
# What differs from another only in its file.
LEFT_OUT = ("llama3_parameters", "qwen2_sharded", "mistral3_vision", "gemma3_vision", "gemma4_vision")


class Server:
    """A server of a model, which is stopped at the end."""

    def __init__(self, binary, place, *arguments):
        command = [binary, "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def __enter__(self):
        line = self.process.stdout.readline()
        if "http://" not in line:
            sys.exit(f"the server did not start: {line}")
        return openai.OpenAI(base_url=line[line.index("http://"):].split(";")[0].strip(), api_key="none", max_retries=0)

    def __exit__(self, *_):
        self.process.terminate()
        if self.process.wait() != 0:
            sys.exit(f"the server ended with {self.process.returncode}")


@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(model, ids, end):
    out = []
    while len(out) < NEW and out[-1:] != [end]:
        out.append(logits_of(model, ids + out)[-1].argmax().item())
    return out


def worst(got, want):
    return max((abs(a - b) for a, b in zip(got, want, strict=True)), default=0.0)


def penalised(logits, seen, penalty):
    seen = torch.tensor(sorted(set(seen)))
    taken = logits[seen]
    return logits.index_put((seen,), torch.where(taken > 0, taken / penalty, taken * penalty))


def compare_tokens(name, client, model, tokenizer, end, check):
    ids = tokenizer(PROMPT)["input_ids"]
    more = {"return_token_ids": True}
    answer = client.completions.create(model="m", prompt=PROMPT, temperature=0, max_tokens=NEW, logprobs=2, extra_body=more).choices[0]
    want = greedy(model, ids, end)
    check(f"{name}: {len(want)} greedy tokens", float(answer.token_ids != want or answer.prompt_token_ids != ids), 0)
    logp = logits_of(model, ids + want).log_softmax(-1)[len(ids) - 1 : -1]
    check(f"{name}: their log-probabilities", worst(answer.logprobs.token_logprobs, logp.gather(1, torch.tensor(want)[:, None])[:, 0].tolist()), TOLERANCE)
    tops = [sorted(top.values(), reverse=True)[:2] for top in answer.logprobs.top_logprobs]
    known = [(top, row) for top, row in zip(tops, logp.topk(2).values.tolist()) if len(top) == 2]
    check(f"{name}: those of alternatives", max(worst(top, row) for top, row in known), TOLERANCE)
    text = tokenizer.decode(ids + want, skip_special_tokens=True)
    check(f"{name}: the text", float(PROMPT + answer.text != text), 0)

    echoed = client.completions.create(model="m", prompt=ids, temperature=0, max_tokens=0, echo=True, logprobs=0).choices[0]
    logp = logits_of(model, ids).log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    check(f"{name}: log-probabilities of the prompt", worst(echoed.logprobs.token_logprobs[1:], logp), TOLERANCE)

    turn = ids + want + tokenizer(" and then")["input_ids"]
    second = client.completions.create(model="m", prompt=turn, temperature=0, max_tokens=8, logprobs=0, extra_body=more)
    cached, second = second.usage.prompt_tokens_details.cached_tokens, second.choices[0]
    check(f"{name}: {cached} tokens from the cache", float(cached != len(ids) + len(want) - 1), 0)
    logp = logits_of(model, turn + second.token_ids).log_softmax(-1)[len(turn) - 1 : -1]
    got = second.logprobs.token_logprobs
    check(f"{name}: log-probabilities after them", worst(got, logp.gather(1, torch.tensor(second.token_ids)[:, None])[:, 0].tolist()), TOLERANCE)


def compare_sampling(name, client, model, tokenizer, check):
    ids = tokenizer(PROMPT)["input_ids"]
    extra = {"return_token_ids": True, "top_k": 5, "repetition_penalty": 1.3, "ignore_eos": True}
    answer = client.completions.create(model="m", prompt=ids, temperature=0.7, seed=3, n=2, max_tokens=16, logprobs=0, extra_body=extra)
    for choice in answer.choices:
        logits, want = logits_of(model, ids + choice.token_ids), []
        for at, token in enumerate(choice.token_ids):
            row = penalised(logits[len(ids) - 1 + at], ids + choice.token_ids[:at], 1.3) / 0.7
            row = torch.where(row < row.topk(5).values[-1], float("-inf"), row)
            want.append(row.log_softmax(-1)[token].item())
        check(f"{name}: log-probabilities of sampled tokens", worst(choice.logprobs.token_logprobs, want), TOLERANCE)


def compare_chat(name, client, model, tokenizer, end, check):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]
    tokenizer.chat_template = CHATML
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    given = dict(model="m", messages=messages, temperature=0, max_tokens=NEW)
    answer = client.chat.completions.create(**given, logprobs=True, top_logprobs=1, extra_body={"return_token_ids": True})
    choice, want = answer.choices[0], greedy(model, ids, end)
    check(f"{name}: a conversation of {len(ids)} tokens", float(answer.prompt_token_ids != ids or choice.token_ids != want), 0)
    logp = logits_of(model, ids + want).log_softmax(-1)[len(ids) - 1 : -1]
    check(f"{name}: log-probabilities of the answer", worst([t.logprob for t in choice.logprobs.content], logp.max(-1).values.tolist()), TOLERANCE)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**given, stream=True))
    check(f"{name}: a streamed answer", float(streamed != choice.message.content), 0)


def compare(name, place, binary, check):
    def run(*arguments):
        done = subprocess.run([binary, *map(str, arguments)], cwd=place, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"rlhost {' '.join(map(str, arguments))}: {done.stderr.decode()}")
        return done.stdout.decode()

    base = place / "base"
    (place / "rows.jsonl").write_text(json.dumps({"text": "a text"}) + "\n")
    (place / "chatml.jinja").write_text(CHATML)
    model = make(name, base, run, CONTEXT).eval()
    end, tokenizer = json.loads((base / "config.json").read_text())["eos_token_id"], tokenizer_of(base)
    with Server(binary, place, "--model", base, "--served-model-name", "m", "--chat-template", "chatml.jinja") as client:
        compare_tokens(name, client, model, tokenizer, end, check)
        compare_sampling(name, client, model, tokenizer, check)
        compare_chat(name, client, model, tokenizer, end, check)


TASKS = {
    "choices": {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "metric_list": [{"metric": "acc"}]},
    "texts": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "metric_list": [{"metric": "word_perplexity"}]},
    "words": {
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["zz"], "do_sample": False, "max_gen_toks": 12},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def compare_evaluation(place, binary, check):
    """The same tasks through the server and in transformers."""
    base, questions = place / "base", place / "questions.jsonl"
    rows = [{"question": f"question {i}: {PROMPT}", "choices": [" yes", f" no, {i}", " perhaps"], "answer": i % 3} for i in range(6)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(questions)}}, "test_split": "test"}
    common |= {"doc_to_text": "{{question}}", "doc_to_target": "answer"}
    tasks = [{"task": name, **common, **task} for name, task in TASKS.items()]
    tasks[1]["doc_to_target"] = "{{question}}"

    def evaluated(model, arguments, tasks, **more):
        found = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=tasks, log_samples=True, bootstrap_iters=0, **more)
        return {name: [sample["resps"] for sample in samples] for name, samples in found["samples"].items()}

    with Server(binary, place, "--model", base, "--served-model-name", "m", "--chat-template", "chatml.jinja") as client:
        served = {"model": "m", "tokenizer": str(base), "max_length": CONTEXT, "num_concurrent": 4}
        got = evaluated("local-completions", {**served, "base_url": f"{client.base_url}completions"}, tasks)
        chat = {"model": "m", "base_url": f"{client.base_url}chat/completions"}
        chat = evaluated("local-chat-completions", chat, tasks[2:], apply_chat_template=True)
    loaded = {"pretrained": str(base), "device": "cpu", "dtype": "float32", "max_length": CONTEXT}
    want = evaluated("hf", loaded, tasks)
    # Each answer is a log-likelihood, alone or with whether the text is the greedy one.
    scores = lambda found: [float(a[0] if isinstance(a, (list, tuple)) else a) for resps in found for (a, *_) in resps]
    for name in ("choices", "texts"):
        check(f"lm-eval: log-likelihoods of {name}", worst(scores(got[name]), scores(want[name])), 1e-3)
    check("lm-eval: generated texts", float(got["words"] != want["words"]), 0)
    check("lm-eval: answers in a conversation", float([resps[0][0] for resps in chat["words"]] != answers(base, rows)), 0)


def answers(base, rows):
    """What transformers answers to each question."""
    model, tokenizer, found = opened(base), tokenizer_of(base), []
    end, tokenizer.chat_template = json.loads((base / "config.json").read_text())["eos_token_id"], CHATML
    for row in rows:
        messages = [{"role": "user", "content": row["question"]}]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        said = tokenizer.decode(greedy(model, ids, end)[:12], skip_special_tokens=True)
        found.append(said.split("zz")[0])
    return found


def compare_adapters(place, binary, check):
    """An adapter of peft's beside its model, another one in its place, and weights that are reloaded while it serves."""
    base, text = place / "base", PROMPT
    ids = tokenizer_of(base)(text)["input_ids"]
    end = json.loads((base / "config.json").read_text())["eos_token_id"]

    def wrapped(seed, folder):
        torch.manual_seed(seed)
        config = peft.LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
        model = peft.get_peft_model(opened(base), config)
        model.save_pretrained(place / folder)
        return model.eval()

    first, second = wrapped(1, "first"), wrapped(2, "second")
    arguments = ["--model", base, "--served-model-name", "m", "--adapter", f"poet={place / 'first'}", "--allow-weight-updates"]
    with Server(binary, place, *arguments) as client:
        root = str(client.base_url).removesuffix("/v1/")

        def compare_with(what, name, model, version):
            answer = client.completions.create(model=name, prompt=text, temperature=0, max_tokens=NEW, logprobs=0, extra_body={"return_token_ids": True})
            choice, want = answer.choices[0], greedy(model, ids, end)
            check(f"{what}: {len(want)} greedy tokens of version {version}", float(choice.token_ids != want or choice.weight_versions[0]["version"] != version), 0)
            logp = logits_of(model, ids + want).log_softmax(-1)[len(ids) - 1 : -1].max(-1).values.tolist()
            check(f"{what}: their log-probabilities", worst(choice.logprobs.token_logprobs, logp), TOLERANCE)

        plain = opened(base)
        compare_with("adapter", "poet", first, "1")
        compare_with("its model", "m", plain, "0")
        post(f"{root}/v1/load_lora_adapter", {"lora_name": "poet", "lora_path": str(place / "second"), "load_inplace": True})
        compare_with("adapter replaced in place", "poet", second, "2")
        post(f"{root}/v1/unload_lora_adapter", {"lora_name": "poet"})
        merged = second.merge_and_unload()
        merged.save_pretrained(place / "merged")
        baseline = json.loads(post(f"{root}/weight_checker", {"action": "checksum"}))["checksums"]
        post(f"{root}/pause?mode=keep", {})
        post(f"{root}/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(place / "merged")}})
        post(f"{root}/resume", {})
        compare_with("reloaded weights", "m", merged, "3")
        changed = json.loads(post(f"{root}/weight_checker", {"action": "compare", "baseline": baseline}))["mismatches"]
        adapted = sum(1 for name in baseline if any(part in name for part in ("q_proj", "v_proj", "down_proj")) and name.endswith("weight"))
        check(f"reloaded weights: {len(changed)} tensors have another checksum", float(len(changed) != adapted), 0)


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


@torch.no_grad()
def compare_scores(place, binary, check):
    """A reward model's values of texts, and of pairs of texts."""
    base, folder = place / "base", place / "judge"
    torch.manual_seed(3)
    tokenizer = tokenizer_of(base)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_bytes((base / "tokenizer_config.json").read_bytes())
    texts = [PROMPT, "short", f"{PROMPT} {PROMPT}"]
    want = [model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, 0] for text in texts]
    with Server(binary, place, "--model", folder) as client:
        root = str(client.base_url).removesuffix("/v1/")
        raw = json.loads(post(f"{root}/classify", {"input": texts, "use_activation": False}))["data"]
        check("classify: values of texts", worst([entry["probs"][0] for entry in raw], [value.item() for value in want]), TOLERANCE)
        classes = json.loads(post(f"{root}/classify", {"input": texts}))["data"]
        check("classify: their logistic function", worst([entry["probs"][0] for entry in classes], [v.sigmoid().item() for v in want]), TOLERANCE)
        pairs = json.loads(post(f"{root}/score", {"text_1": PROMPT, "text_2": ["short", PROMPT]}))["data"]
        joined = [tokenizer(PROMPT)["input_ids"] + tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("short", PROMPT)]
        want = [model(torch.tensor([ids])).logits[0, 0].sigmoid().item() for ids in joined]
        check("score: pairs of texts", worst([entry["score"] for entry in pairs], want), TOLERANCE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--only", help="a single model's name")
    options = parser.parse_args()
    be_quiet()
    check, names = Check(), [name for name in MODELS if name not in LEFT_OUT]
    print(f"openai {openai.__version__}, transformers {transformers.__version__}", flush=True)
    for name in [options.only] if options.only else names:
        with tempfile.TemporaryDirectory() as place:
            compare(name, Path(place), options.binary.absolute(), check)
            if name == EVALUATED:
                compare_evaluation(Path(place), options.binary.absolute(), check)
                compare_adapters(Path(place), options.binary.absolute(), check)
                compare_scores(Path(place), options.binary.absolute(), check)
    sys.exit(check.failed)


main()
