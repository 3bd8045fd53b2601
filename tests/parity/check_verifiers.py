#!/usr/bin/env python3
"""Train small models on environments of verifiers 0.4 with examples/agents/verifiers_agent.py, and compare what the run records with
what the environments say.

    python -m venv venv && venv/bin/pip install verifiers==0.4.0 uv transformers
    cargo build
    PATH=$PWD/venv/bin:$PATH venv/bin/python tests/parity/check_verifiers.py target/debug/rlhost MODEL --torch PYTHON --mistral TEMPLATE

MODEL is stories260K in transformers' layout, a trained model of 260K parameters that writes stories. It is trained with GRPO on two
environments (fixtures/verifiers/): a single turn that must name an animal, and several turns with a tool, which verifiers serves as a
process; for the latter, SFT first teaches the model how calls are written, of any page. Rewards must rise by the margins below, and the score of
each episode must be that which its conversation has. A harness within the agent's process asks in these runs, since that of verifiers
takes seconds for each episode; a step with `null`, which ships with the package, one with the environment `best-of-n`, one with the training client, and one of Hangman in TextArena, which ship with
it too, show that they run as they are. The last needs `pip install textarena==0.7.4 nltk`, and gets
a few words in place of NLTK's list.

At last, for the chat templates of Qwen3, Llama 3.1 and Mistral: a tiny model of the family is taught both environments, plays a generation of
each, and check_agents.py compares the ids and log-probabilities that reach the loss, the loss, and its gradient's norm with what transformers
computes of the recorded ids. PYTHON and TEMPLATE are those of check_agents.py; without PYTHON this part is left out.

Exits 1 if something differs. The last output is check_verifiers.txt beside this file.
"""

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
AGENT = HERE.parent / "examples/agents/verifiers_agent.py"
FIXTURES = HERE / "fixtures/verifiers"
sys.path.insert(0, str(FIXTURES))
from page_animals import ANIMAL, PROMPTS
from page_tools import PAGES
from story_animals import ANIMALS

# By how much the mean reward of the last four steps must be above that of the first four.
MARGINS = {"story_animals": 0.3, "page_animals": 0.2}
STORY = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
CALLING = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{% if m.role == 'assistant' %}A:{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}{{ eos_token }}"
    "{% else %}{{ m.role[0] | upper }}: {{ m.content }}\n{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {"name": "read", "parameters": {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}},
}
WORDS = "apple bread chair dance earth fruit green house island jelly kettle lemon music night ocean paper quiet river stone table".split()


class Check:
    def __init__(self):
        self.failed = False

    def __call__(self, what, good, figures=""):
        self.failed |= not good
        print(f"{'ok  ' if good else 'FAIL'}  {what}{figures and ': '}{figures}", flush=True)


class Runs:
    """Runs of rlhost in a folder."""

    def __init__(self, binary, place):
        self.binary, self.place = binary.resolve(), place

    def rlhost(self, *arguments):
        done = subprocess.run([self.binary, *map(str, arguments)], cwd=self.place, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"rlhost {' '.join(map(str, arguments))}: {done.stderr[-3000:]}")

    def lines(self, path):
        return [json.loads(line) for line in (self.place / path).read_text().splitlines()]

    def grpo(self, run, taskset, model, *arguments, steps, agent=(), limit=None, **settings):
        """A run of GRPO on an environment; returns its completions and metrics."""
        agent = [sys.executable, str(AGENT), taskset, *agent]
        rows = f"{run}.jsonl"
        limited = ["--limit", str(limit)] if limit else []
        exported = subprocess.run([*agent, "--export", rows, *limited], cwd=self.place, capture_output=True, text=True)
        if exported.returncode != 0:
            sys.exit(f"{taskset}: {exported.stderr[-3000:]}")
        passed = ["HOME", "PYTHONPATH", "SSL_CERT_FILE", "NLTK_DATA"]
        entry = f"[[agent]]\ncommand = {json.dumps(agent)}\npersistent = true\nmax_concurrent = 4\npass_env = {json.dumps(passed)}\n"
        (self.place / f"{run}.toml").write_text(entry)
        flags = {"num-generations": 8, "per-device-train-batch-size": 32, "learning-rate": 3e-4, "max-steps": steps, "logging-steps": 1}
        flags |= {"log-completions": "all", "seed": 1} | {name.replace("_", "-"): value for name, value in settings.items()}
        flags = [word for name, value in flags.items() for word in (f"--{name}", value)]
        self.rlhost("grpo", "--config", f"{run}.toml", "--model", model, "--dataset", rows, "--output-dir", run, *flags, *arguments)
        return self.lines(f"{run}/completions.jsonl"), self.lines(f"{run}/metrics.jsonl")


def said(row):
    """The model's last turn."""
    return [message["content"] for message in row["messages"] if message["role"] == "assistant"][-1].strip()


def score_of_story(row):
    return float(ANIMALS[row["row"]] in said(row))


def score_of_pages(row):
    calls = [json.loads(arguments) for turn in row["turns"] for name, arguments in turn["calls"] if name == "read"]
    pages = [call["page"] for call in calls if isinstance(call, dict) and "page" in call]
    found = PAGES.index(ANIMAL) in pages
    return 0.2 * (len(pages) > 0) + 0.5 * found + 0.3 * (found and ANIMAL in said(row))


def check_run(check, name, completions, metrics, score):
    """The rewards rise, and are what the conversations are worth."""
    rewards = [line["reward"] for line in metrics]
    first, last = statistics.mean(rewards[:4]), statistics.mean(rewards[-4:])
    figures = f"{first:.3f} in the first four steps, {last:.3f} in the last four, of {len(rewards)}; margin {MARGINS[name]}"
    check(f"{name}: the reward rises", last - first >= MARGINS[name], figures)
    differ = [row for row in completions if abs(row["rewards"]["agent"] - score(row)) > 1e-6]
    check(f"{name}: each episode's score is its conversation's", not differ and len(completions) > 0, f"{len(completions)} episodes")
    check(f"{name}: no episode failed, and none has branches", all(m["episodes/failed"] == m["agent/branches"] == 0 for m in metrics))


def teach_calls(runs, model):
    """Trains the model on calls of the tool, and on what follows their results."""
    rng, rows = random.Random(1), []
    for _ in range(400):
        asked = {"role": "user", "content": rng.choice(PROMPTS)}
        call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": {"page": rng.randrange(len(PAGES))}}}
        call, animal = {"role": "assistant", "content": "", "tool_calls": [call]}, rng.choice(PAGES)
        result = {"role": "tool", "tool_call_id": "c", "content": f"a {animal}"}
        rows.append({"prompt": [asked], "completion": [call], "tools": [TOOL]})
        answer = {"role": "assistant", "content": f" It is a {animal}."}
        rows.append({"prompt": [asked, call, result], "completion": [answer], "tools": [TOOL]})
    (runs.place / "calls.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs.rlhost(
        "sft", "--model", model, "--chat-template-path", "calling.jinja", "--dataset", "calls.jsonl", "--output-dir", "taught",
        "--per-device-train-batch-size", 32, "--learning-rate", 2e-3, "--max-steps", 80, "--save-steps", 80, "--seed", 1)
    return runs.place / "taught/checkpoint-80"


def check_shipped(check, runs, model, taught):
    """A step with what ships with the package."""
    short = {"steps": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_completion_length": 40}
    completions, metrics = runs.grpo("null", "page_animals", taught, agent=["--harness", "null"], **short)
    good = metrics[0]["episodes/failed"] == 0 and all(abs(row["rewards"]["agent"] - score_of_pages(row)) < 1e-6 for row in completions)
    check("page_animals with the harness null", good, f"{metrics[0]['agent/calls']:.2f} calls an episode")
    several = ["--harness", "inside_harness", "--env", "best-of-n", "--settings", '{"n": 3}']
    arguments = ["--chat-template-path", "story.jinja"]
    completions, metrics = runs.grpo("best", "story_animals", model, *arguments, agent=several, **short | {"max_completion_length": 32})
    good = metrics[0]["agent/calls"] == 3 and metrics[0]["episodes/failed"] == 0 and metrics[0]["agent/branches"] > 0
    check("story_animals with best-of-n, three attempts an episode", good, f"{metrics[0]['agent/branches']:.2f} branches an episode")
    client = ["--harness", "inside_harness", "--client", json.dumps({"type": "train", "renderer_model_name": str(taught)})]
    completions, metrics = runs.grpo("tokens", "story_animals", taught, agent=client, **short)
    good = metrics[0]["episodes/failed"] == 0 and all(row["rewards"]["agent"] == score_of_story(row) for row in completions)
    check("story_animals with the training client, which asks for tokens", good, f"{metrics[0]['agent/calls']:.2f} calls an episode")
    if importlib.util.find_spec("textarena") is None:
        print("skipped: there is no textarena")
        return
    words = runs.place / "nltk/corpora/words"
    words.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (words / name).write_text("\n".join(WORDS))
    (words / "README").write_text("Words.")
    os.environ["NLTK_DATA"] = str(runs.place / "nltk")
    game = ["--harness", "inside_harness", "--settings", '{"taskset": {"game": "Hangman-v0"}}']
    arguments = ["--chat-template-path", "story.jinja", "--max-turns", 30]
    runs.rlhost("new-model", "wide", "--config", wide(runs.place), "--corpus", "calls.jsonl", "--vocab-size", 300)
    completions, metrics = runs.grpo("hangman", "textarena", "wide", *arguments, agent=game, limit=8, **short)
    good = metrics[0]["episodes/failed"] == 0 and all("[GAME]" in row["prompt"] for row in completions)
    check("textarena: Hangman", good, f"{metrics[0]['agent/calls']:.2f} calls an episode")


def write_lessons(path):
    """What the environments ask, as check_agents.py reads it: which page is read and which animal is named is not always right."""
    rng, lessons = random.Random(2), []
    user = lambda text: {"role": "user", "content": text}
    for _ in range(6):
        for prompt in PROMPTS:
            page = rng.randrange(len(PAGES))
            call = {"id": "call00001", "type": "function", "function": {"name": "read", "arguments": {"page": page}}}
            lessons.append({"messages": [user(prompt)], "tools": [TOOL], "call": ["read", {"page": page}]})
            result = {"role": "tool", "tool_call_id": "call00001", "name": "read", "content": f"a {PAGES[page]}"}
            told = [user(prompt), {"role": "assistant", "content": "", "tool_calls": [call]}, result]
            lessons.append({"messages": told, "tools": [TOOL], "answer": f"It is a {PAGES[page]}."})
        for animal in ANIMALS:
            named = animal if rng.random() < 0.5 else rng.choice(ANIMALS)
            lessons.append({"messages": [user(f"A story about a {animal}.")], "tools": None, "answer": f"There was a {named}."})
    path.write_text("".join(json.dumps(lesson) + "\n" for lesson in lessons))


def check_tokens(check, runs, python, mistral):
    """What reaches the loss of both environments, by three chat templates, against transformers."""
    write_lessons(runs.place / "lessons.jsonl")
    other = [python, HERE / "parity/check_agents.py", runs.binary, *(["--mistral", mistral.resolve()] if mistral else [])]
    steps = {"steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "num_iterations": 2, "save_steps": 1, "old_logp": "recompute"}
    steps |= {"max_completion_length": 48, "temperature": 1.25, "learning_rate": 1e-4, "max_turns": 16}
    for family in ("qwen3", "llama3", *(["mistral"] if mistral else [])):
        subprocess.run([*map(str, other), "--teach", family, "lessons.jsonl", "."], cwd=runs.place, check=True, env=os.environ | {"PYTHONPATH": ""})
        model = runs.place / f"{family}-taught/checkpoint-400"
        for taskset in ("story_animals", "page_animals"):
            name = f"{family}-{taskset}"
            runs.grpo(name, taskset, model, agent=["--harness", "inside_harness"], **steps)
            done = subprocess.run([*map(str, other), "--recorded", name, name, model], cwd=runs.place, env=os.environ | {"PYTHONPATH": ""})
            check(f"{name}: what reaches the loss", done.returncode == 0)


def wide(place):
    """The configuration of a small model that can read a game's rules."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 8192, "tie_word_embeddings": True}
    (place / "wide.json").write_text(json.dumps(config | shape | {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}))
    return "wide.json"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--torch", type=Path, help="a Python with torch, transformers and trl")
    parser.add_argument("--mistral", type=Path, help="Mistral's chat template")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = str(FIXTURES)
    check, model, inside = Check(), args.model.resolve(), ["--harness", "inside_harness"]
    with tempfile.TemporaryDirectory() as place:
        runs = Runs(args.rlhost, Path(place))
        (runs.place / "story.jinja").write_text(STORY)
        (runs.place / "calling.jinja").write_text(CALLING)
        story = ["--chat-template-path", "story.jinja"]
        done = runs.grpo("stories", "story_animals", model, *story, steps=12, agent=inside, max_completion_length=32)
        check_run(check, "story_animals", *done, score_of_story)
        taught = teach_calls(runs, model)
        done = runs.grpo("pages", "page_animals", taught, steps=20, agent=inside, max_completion_length=40)
        check_run(check, "page_animals", *done, score_of_pages)
        check_shipped(check, runs, model, taught)
        if args.torch:
            check_tokens(check, runs, args.torch.absolute(), args.mistral)
        else:
            print("skipped: no Python with torch (--torch)")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
