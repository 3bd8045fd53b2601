#!/usr/bin/env python3
"""Let agents with tools play an optimizer step of GRPO, and compare everything that reaches the loss with transformers.

    python -m venv venv && venv/bin/pip install torch transformers trl==1.16.0 openai openai-agents
    cargo build
    venv/bin/python tests/parity/check_agents.py target/debug/rlhost --mistral TEMPLATE [--clients PYTHON]

For the chat templates of Qwen3 (which removes thoughts from the history) and Llama 3.1, as TRL ships them, and of Mistral (which moves
the tools to the last question; TEMPLATE is vLLM's examples/tool_chat_template_mistral_official.jinja, and without it this part is left
out): a tiny model of the family learns
a few turns with calls, and an agent (fixtures/agents/tools_agent.py) plays eight episodes, writing down what it is told of each call.
Then, of the checkpoint after the first of two passes over the generation, whose rollouts are what the loss gets:

- A prompt continues the ids of the call that the conversation continues, and what follows is what the template writes there; any other
  prompt is the template's text as transformers encodes it.
- The texts that end in a token with mask 1 are those that the calls wrote, each once: followed through the branches, prompt and all.
- The log-probabilities that were sampled with, those that the agent was told, and those of the pass before the update are those that
  transformers computes of each call's ids alone.
- The loss and the gradient's norm are those of the formulas, with each call as a row of its own.

Then other clients are agents, unmodified: `openai-agents` with two tools and a hand-off, by chat and by responses, and
`openai` as ART reads it (log-probabilities and ids, whose lengths must match). Of these the texts are the recorded rows' own.

Exits 1 if log-probabilities differ by more than 1e-4, the loss or the norm by more than 1e-4 of its size, or an id at all. The last
output is check_agents.txt beside this file.
"""

import argparse
import ast
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import torch
import trl
from safetensors.torch import load_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedTokenizerFast, Qwen3Config
from transformers.utils.logging import disable_progress_bar

HERE = Path(__file__).resolve().parent.parent
AGENTS = HERE / "fixtures/agents"
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
TOLERANCE = 1e-4
# Above 1, so that models say what they have not learned, in ids that encoding would not give.
TEMPERATURE = 1.25
GROUP, EPISODES, TAUGHT, PLACES = 4, 8, 400, ("Oslo", "Rome", "Lima", "Cairo")
SHAPE = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             max_position_embeddings=4096, bos_token_id=None, pad_token_id=None, tie_word_embeddings=True)


# Of the model of the other clients, whose tools have descriptions of their own: only the names are written.
PLAIN = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HANDOFF = "transfer_to_clock"
TOLD = "log-probabilities that the agent was told"


class Family:
    """A family of models: its configuration, template and special tokens, how it writes a call, and what it is taught."""

    def __init__(self, config, template, special, thought, call, lessons):
        self.config, self.template, self.special, self.end = config, template, special, special[1]
        self.thought, self.call, self.lessons = thought, call, lessons


def json_call(name, arguments):
    return json.dumps({"name": name, "arguments": arguments})


def families(mistral):
    """Those of the agent that writes its calls down, and of the other clients."""
    written = lambda name, arguments: json.dumps({"name": name, "arguments": arguments})
    hermes = lambda name, arguments: f"<tool_call>\n{written(name, arguments)}\n</tool_call>"
    llama = lambda name, arguments: json.dumps({"name": name, "parameters": arguments})
    of_mistral = lambda name, arguments: f"[TOOL_CALLS] [{written(name, arguments)}]"
    of_llama = ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    brackets = ["INST", "/INST", "TOOL_CALLS", "AVAILABLE_TOOLS", "/AVAILABLE_TOOLS", "TOOL_RESULTS", "/TOOL_RESULTS"]
    of_qwen, brackets = ["<|im_start|>", "<|im_end|>"], ["<s>", "</s>", *(f"[{name}]" for name in brackets)]
    shipped = lambda name: (TEMPLATES / name).read_text()
    known = {
        "qwen3": Family(Qwen3Config, shipped("qwen3.jinja"), of_qwen, "<think>\nA look.\n</think>\n\n", hermes, weather),
        "llama3": Family(LlamaConfig, shipped("llama3_1.jinja"), of_llama, "", llama, weather),
        "plain": Family(Qwen3Config, PLAIN, of_qwen, "", hermes, routed),
    }
    if mistral:
        known["mistral"] = Family(MistralConfig, mistral.read_text(), brackets, "", of_mistral, weather)
    else:
        print("skipped: no template of Mistral (--mistral)")
    return known


def tools_of_agent():
    """The tools that the agent offers."""
    source = (AGENTS / "tools_agent.py").read_text()
    return ast.literal_eval(source[source.index("TOOLS = ") + len("TOOLS = ") : source.index("calls = []")])


def user(text):
    return {"role": "user", "content": text}


def called(name, arguments, result):
    """A call and its result."""
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
    told = {"role": "tool", "tool_call_id": "call00001", "name": name, "content": result}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, told]


def weather(family):
    """What the agent with tools asks, and what the model should say."""
    tools = tools_of_agent()
    for place in PLACES:
        asked, answer = [user(f"Weather in {place}?")], f"It rains in {place}."
        yield asked, tools, family.thought + family.call("get_weather", {"city": place})
        asked += called("get_weather", {"city": place}, "rain")
        yield asked, tools, family.thought + answer
        asked += [{"role": "assistant", "content": answer}, user("And the time?")]
        yield asked, tools, family.thought + family.call("get_time", {})
        yield asked + called("get_time", {}, "noon"), tools, f"{family.thought}It is noon."
        yield [user(f"In short: {answer}")], None, "Rain."


def routed(family):
    """What the other clients ask: one with instructions and a hand-off, and one with neither."""
    tool = lambda name: {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    tools = [tool("get_weather"), tool("get_time")]
    first, second = ({"role": "system", "content": text} for text in ("Forecast.", "Tell the time."))
    for place in PLACES:
        asked = [user(f"Weather in {place}?")]
        looked = asked + called("get_weather", {"city": place}, "rain")
        yield [first, *asked], [*tools, tool(HANDOFF)], family.call("get_weather", {"city": place})
        yield [first, *looked], [*tools, tool(HANDOFF)], family.call(HANDOFF, {})
        handed = [second, *looked, *called(HANDOFF, {}, '{"assistant": "clock"}')]
        yield handed, tools, family.call("get_time", {})
        yield handed + called("get_time", {}, "noon"), tools, "It is noon."
        yield asked, tools, family.call("get_weather", {"city": place})
        yield looked, tools, f"It rains in {place}."


def lessons(family, tokenizer):
    """The lessons as texts."""
    for messages, tools, answer in family.lessons(family):
        prompt = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        yield {"prompt": prompt, "completion": answer}


def make(family, folder):
    """A model with random weights, and a tokenizer that was trained on the lessons; returns the tokenizer."""
    bpe = Tokenizer(models.BPE())
    # Spaces are apart, so that a prompt's end is encoded as it is before an answer.
    parts = pre_tokenizers.Split(Regex(r"\w+|\s|[^\w\s]"), "isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(family.special)
    bare = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=family.end, bos_token=family.special[0])
    bare.chat_template = family.template
    texts = [lesson["prompt"] + lesson["completion"] for lesson in lessons(family, bare)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=family.special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=family.end, bos_token=family.special[0])
    tokenizer.chat_template = family.template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    ids = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    AutoModelForCausalLM.from_config(family.config(**SHAPE, **ids), dtype=torch.float32).save_pretrained(folder)
    return tokenizer


class Runs:
    """Runs of rlhost in a folder."""

    def __init__(self, binary, place):
        self.binary, self.place = binary.resolve(), place

    def rlhost(self, *arguments):
        done = subprocess.run([self.binary, *map(str, arguments)], cwd=self.place, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"rlhost {' '.join(map(str, arguments))}: {done.stderr[-3000:]}")
        return done.stderr

    def write(self, name, rows):
        (self.place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def teach(self, name, family, tokenizer):
        """Trains a model on the lessons, not quite by heart, so that what it samples differs."""
        self.write(f"{name}-lessons.jsonl", lessons(family, tokenizer))
        self.rlhost(
            "sft", "--model", name, "--dataset", f"{name}-lessons.jsonl", "--output-dir", f"{name}-taught", "--learning-rate", 3e-3,
            "--per-device-train-batch-size", 10, "--max-steps", TAUGHT, "--save-steps", TAUGHT, "--max-length", "none", "--seed", 1)
        return self.place / f"{name}-taught/checkpoint-{TAUGHT}"

    def play(self, name, model, command, **settings):
        """A generation of an agent's episodes, and the first update of two; returns its folder."""
        folder = self.place / f"{name}-calls"
        folder.mkdir()
        self.write(f"{name}.jsonl", [{"prompt": f"Weather in {place}?", "folder": str(folder)} for place in PLACES])
        entry = f"[[agent]]\ncommand = {json.dumps(command)}\nmax_concurrent = 2\n"
        (self.place / f"{name}.toml").write_text(entry)
        flags = {"num-generations": GROUP, "per-device-train-batch-size": EPISODES, "max-completion-length": 64, "max-turns": 16,
                 "num-iterations": 2, "old-logp": "recompute", "max-steps": 2, "save-steps": 1, "logging-steps": 1, "log-completions": "all",
                 "learning-rate": 1e-4, "temperature": TEMPERATURE, "seed": 1} | settings
        flags = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
        said = self.rlhost("grpo", "--model", model, "--config", f"{name}.toml", "--dataset", f"{name}.jsonl", "--output-dir", name, *flags)
        return self.place / name, said


class Rollouts:
    """The rollouts that wait in a checkpoint for the second pass over them, and the columns that the loss gets."""

    def __init__(self, run):
        trainer = run / "checkpoint-1/trainer"
        (manifest,) = json.loads((trainer / "snapshot.json").read_text())["experiences"]
        tensors = {}
        for path in trainer.glob("*.safetensors"):
            if not path.name.startswith("optimizer"):
                tensors |= load_file(path)
        self.rows = manifest["rollouts"]
        lengths = tensors["0/lengths"].tolist()
        split = lambda values: [part.tolist() for part in values.split(lengths)]
        self.tokens, self.mask = split(tensors["0/tokens"]), split(tensors["0/mask"])
        self.columns = {name: split(tensors[f"0/column/{name}"]) for name in ("sampling_logp", "old_logp")}
        completions = [json.loads(line) for line in (run / "completions.jsonl").read_text().splitlines()]
        self.completions = [row for row in completions if row["step"] == 0]

    def texts(self, index):
        """The text up to each token with mask 1, through the branches, and the values of the columns there."""
        row, opening = self.rows[index], self.completions[index]["prompt_ids"]
        tokens = opening + self.tokens[index]
        before = {len(opening) + branch["start"]: branch["after"] for branch in row["branches"]}
        texts = []
        for place in range(len(tokens)):
            # The token before this one is at `after - 1`; none if it begins a text.
            after = before.get(place, place)
            texts.append((texts[after - 1] if after else ()) + (tokens[place],))
        trained = [i for i, of_loss in enumerate(self.mask[index]) if of_loss]
        values = {name: column[index] for name, column in self.columns.items()}
        return [(texts[len(opening) + i], {name: column[i] for name, column in values.items()}) for i in trained]


class Check:
    def __init__(self):
        self.failed = False

    def __call__(self, what, good, figures=""):
        self.failed |= not good
        print(f"{'ok  ' if good else 'FAIL'}  {what}{figures and ': '}{figures}", flush=True)


def logps(model, text, begin):
    """Log-probabilities of a text's tokens from `begin` on."""
    ids = torch.tensor(text)[None]
    scored = model(input_ids=ids, use_cache=False).logits[0, begin - 1 : -1].div(TEMPERATURE).log_softmax(-1)
    return scored.gather(-1, ids[0, begin:, None]).squeeze(-1)


def continued(calls, call):
    """The call whose conversation this one continues: the longest, of the same tools, whose answer it contains."""
    def extends(other):
        length = len(other["messages"])
        same = call["messages"][:length] == other["messages"] and call["tools"] == other["tools"]
        return same and len(call["messages"]) > length + 1 and call["messages"][length] == other["message"]
    found = [other for other in calls if other is not call and extends(other)]
    return max(found, key=lambda other: len(other["messages"]), default=None)


def objects(messages):
    """Messages with the arguments of calls as objects, as transformers passes them to a template."""
    copied = json.loads(json.dumps(messages))
    for message in copied:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        if "tool_calls" in message and not message["tool_calls"]:
            del message["tool_calls"]
        if message.get("content") is None:
            message["content"] = ""
    return copied


def wrong_prompt(tokenizer, family, calls, call):
    """What is wrong with the ids of a call's prompt; None if nothing is."""
    render = lambda messages: tokenizer.apply_chat_template(objects(messages), tools=call["tools"], add_generation_prompt=True, tokenize=False)
    whole, before = render(call["messages"]), continued(calls, call)
    if before is None:
        want = tokenizer(whole, add_special_tokens=False)["input_ids"]
        return None if call["prompt"] == want else f"{tokenizer.decode(call['prompt'])!r} instead of {whole!r}"
    known = before["prompt"] + before["tokens"]
    if call["prompt"][: len(known)] != known:
        return "does not continue the ids before"
    following = tokenizer.decode(call["prompt"][len(known) :])
    if before["tokens"][-1] != tokenizer.eos_token_id:
        if not following.startswith(family.end):
            return f"{following!r} does not end the turn"
        following = following.removeprefix(family.end)
    return None if whole.endswith(family.end + following) else f"{following!r} is not how {whole!r} ends"


def check_step(check, name, run, model, texts):
    """What reached the loss, against transformers; `texts` are each episode's calls as prompt, answer, and the log-probabilities that its
    client was told."""
    rollouts, policy = Rollouts(run), AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    strays, losses, differences = 0, [], dict.fromkeys([*rollouts.columns, TOLD], 0.0)
    for index, calls in enumerate(texts):
        trained = rollouts.texts(index)
        wanted, written = {}, []
        for prompt, tokens, told in calls:
            scored = logps(policy, prompt + tokens, len(prompt))
            losses.append((index, scored))
            off = max((abs(a - b) for a, b in zip(told, scored.tolist(), strict=True)), default=0.0) if told else 0.0
            differences[TOLD] = max(differences[TOLD], off)
            own = [tuple(prompt + tokens[: i + 1]) for i in range(len(tokens))]
            wanted |= dict(zip(own, scored.tolist()))
            written += own
        strays += sorted(text for text, _ in trained) != sorted(written)
        for text, values in trained:
            for column, value in values.items():
                differences[column] = max(differences[column], abs(value - wanted.get(text, math.inf)))
    branches = sum(len(row["branches"]) for row in rollouts.rows)
    tokens = sum(map(sum, rollouts.mask))
    check(f"{name}: the trained tokens and what they follow", strays == 0, f"{tokens} of {sum(map(len, rollouts.mask))} tokens, {branches} branches")
    if not any(told for calls in texts for _, _, told in calls):
        del differences[TOLD]
    for column, difference in differences.items():
        check(f"{name}: {column}", difference <= TOLERANCE, f"{difference:.1e}")
    check_loss(check, name, run, policy, rollouts, losses, tokens)


def check_loss(check, name, run, policy, rollouts, losses, tokens):
    """The loss and the norm of its gradient, from the rewards on."""
    rewards = torch.tensor([row["rewards"]["agent"] for row in rollouts.completions], dtype=torch.float64).view(-1, GROUP)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    advantages = advantages.flatten().tolist()
    # Ratios are 1 at the first pass, and their gradient that of the log-probabilities.
    terms = [-advantages[index] * (scored - scored.detach()).exp() / tokens for index, scored in losses]
    torch.cat(terms).sum().backward()
    loss, size = torch.cat(terms).sum().item(), torch.cat(terms).abs().sum().item()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in policy.parameters() if p.grad is not None))
    logged = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    for figure, want, against in (("loss", loss, size), ("grad_norm", norm, norm)):
        check(f"{name}: {figure}", norm > 0 and abs(logged[figure] - want) <= TOLERANCE * against, f"{logged[figure]:.6f}, {want:.6f}")


def check_family(check, runs, name, family):
    """The agent with tools, which writes its calls down."""
    tokenizer = make(family, runs.place / name)
    model = runs.teach(name, family, tokenizer)
    run, said = runs.play(f"{name}-run", model, ["python3", str(AGENTS / "tools_agent.py")])
    rollouts, episodes = Rollouts(run), {}
    failed = [row["failed"] for row in rollouts.completions if "failed" in row]
    check(f"{name}: no episode failed", not failed, "".join(f"\n      {reason}" for reason in failed[:2]))
    for path in (runs.place / f"{name}-run-calls").glob("train-*.json"):
        _, _, row, sample = path.stem.split("-")
        episodes[int(row), int(sample)] = json.loads(path.read_text())
    rows = [completion["row"] for completion in rollouts.completions]
    played = [episodes.get((row, rollout["sample"]), []) for row, rollout in zip(rows, rollouts.rows)]
    wrong = [wrong_prompt(tokenizer, family, calls, call) for calls in played for call in calls]
    wrong = [reason for reason in wrong if reason is not None]
    calls = [call for of_episode in played for call in of_episode]
    on = sum(continued(of_episode, call) is not None for of_episode in played for call in of_episode)
    made = sum(len(call["message"].get("tool_calls") or []) for call in calls)
    figures = f"{len(calls)} calls, of which {on} continue others, and {made} calls of tools" + "".join(f"\n      {reason}" for reason in wrong[:2])
    check(f"{name}: prompts", not wrong and made > 0 and on > 0 and all(played), figures)
    again = [tokenizer(tokenizer.decode(call["tokens"]), add_special_tokens=False)["input_ids"] for call in calls]
    changed = sum(call["tokens"] != ids for call, ids in zip(calls, again))
    check(f"{name}: encoding answers again would change some", changed > 0, f"{changed}")
    check(f"{name}: as many log-probabilities as ids", all(len(call["logp"]) == len(call["tokens"]) for call in calls))
    check(f"{name}: no turn came back changed", "changes the model's turns" not in said)
    if family.thought:
        dropped = sum("<think>" in tokenizer.decode(call["prompt"]) for call in calls)
        check(f"{name}: thoughts are kept in the history", dropped > 0, f"in {dropped} prompts")
    check_step(check, name, run, model, [[(call["prompt"], call["tokens"], call["logp"]) for call in of_episode] for of_episode in played])


def texts_of_rows(run):
    """The calls of each episode as its row has them: prompt and answer. For agents that are not told ids."""
    rollouts = Rollouts(run)
    episodes = []
    for index, row in enumerate(rollouts.rows):
        opening, trained = rollouts.completions[index]["prompt_ids"], rollouts.texts(index)
        begins, calls, at = [end for _, end in row["replies"]], [], 0
        # Turns are what is between the replies, in the order of the calls.
        edges = [0, *begins, len(rollouts.tokens[index])]
        ends = [begin for begin, _ in row["replies"]] + [len(rollouts.tokens[index])]
        for begin, end in zip(edges, ends):
            text = list(trained[at + end - begin - 1][0])
            answer = len(text) - (end - begin)
            calls.append((text[:answer], text[answer:], []))
            at += end - begin
        assert at == len(trained) and calls[0][0] == opening
        episodes.append(calls)
    return episodes


def check_clients(check, runs, family, python):
    """Clients as they are: what they sampled is trained on, and no episode fails."""
    model = runs.teach("plain", family, make(family, runs.place / "plain"))
    for name, command in (("openai-agents, chat", ["handoff.py", "chat"]), ("openai-agents, responses", ["handoff.py", "responses"]),
                          ("openai as ART reads it", ["art.py"])):
        folder = name.replace(", ", "-").replace(" ", "-")
        run, said = runs.play(folder, model, [str(python), str(AGENTS / command[0]), *command[1:]])
        logged = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
        failed = [row["failed"] for row in Rollouts(run).completions if "failed" in row]
        figures = f"{logged['agent/calls']:.1f} calls, {logged['agent/branches']:.1f} branches, {logged['agent/tools']:.1f} calls of tools"
        check(f"{name}: no episode failed", not failed and logged["agent/tools"] > 0, figures + "".join(f"\n      {reason}" for reason in failed[:2]))
        check(f"{name}: no turn came back changed", "changes the model's turns" not in said)
        check_step(check, name, run, model, texts_of_rows(run))


def written(path):
    """Lessons from a file: an object a line, with `messages`, `tools` and either a `call`, as its name and arguments, or an `answer`."""
    def lessons(family):
        for lesson in map(json.loads, path.read_text().splitlines()):
            said = family.call(*lesson["call"]) if "call" in lesson else lesson["answer"]
            yield lesson["messages"], lesson["tools"], family.thought + said
    return lessons


def teach(runs, name, family, lessons):
    """Makes a model of a family and teaches it lessons from a file."""
    family.lessons = written(lessons)
    runs.teach(name, family, make(family, runs.place / name))


def check_recorded(check, name, run, model):
    """What a run of any agent recorded in the first of two passes, against transformers."""
    failed = [row["failed"] for row in Rollouts(run).completions if "failed" in row]
    check(f"{name}: no episode failed", not failed, "".join(f"\n      {reason}" for reason in failed[:2]))
    check_step(check, name, run, model, texts_of_rows(run))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path)
    parser.add_argument("--teach", nargs=3, metavar=("FAMILY", "LESSONS", "FOLDER"), help="make a model and teach it, and do nothing else")
    parser.add_argument("--recorded", nargs=3, metavar=("NAME", "RUN", "MODEL"), help="check what a run recorded, and nothing else")
    parser.add_argument("--mistral", type=Path, help="Mistral's chat template")
    parser.add_argument("--clients", type=Path, default=sys.executable, help="a Python with openai and openai-agents")
    args = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    check = Check()
    if args.recorded:
        name, run, model = args.recorded
        check_recorded(check, name, Path(run), Path(model))
        return 1 if check.failed else 0
    if args.teach:
        name, lessons, folder = args.teach
        teach(Runs(args.rlhost, Path(folder)), name, families(args.mistral)[name], Path(lessons))
        return 0
    with tempfile.TemporaryDirectory() as place:
        runs = Runs(args.rlhost, Path(place))
        known = families(args.mistral)
        plain = known.pop("plain")
        for name, family in known.items():
            check_family(check, runs, name, family)
        check_clients(check, runs, plain, args.clients.absolute())
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
