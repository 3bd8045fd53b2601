#!/usr/bin/env python3
"""What it costs a generation that the policy is asked over HTTP: 64 episodes of ten turns, by an agent and by a built-in environment.

    cargo build
    python3 host/benches/agent_overhead.py target/debug/rlhost [--rounds 3] [--steps 4] [--hidden-size 512] [--layers 10]

Both play with the same random model, prompts and chat template, and each turn is 16 sampled tokens and a reply of a few. The environment is
`guess_number`; the agent is this file, persistent, one process for each episode at a time, on a connection that it keeps, and it begins and
answers at once as the game does to a text without a number. Printed is the time of generating (`time/rollout`) for each token that is read
or sampled, the median over the steps after the first of all rounds, which alternate. Processes of agents share the cores with the run.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EPISODES, SAMPLES, TURNS, TOKENS = 64, 8, 10, 16
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role != 'assistant' %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
HIGHEST = 1000
GREETING = f"Guess my number between 1 and {HIGHEST}."
REPLY = "Say a number."


def play():
    """The agent: an episode a line."""
    for line in sys.stdin:
        episode = json.loads(line)
        address = episode["base_url"].split("//")[1]
        host, path = address.split("/", 1)
        connection = http.client.HTTPConnection(host)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {episode['api_key']}"}
        messages = [{"role": "user", "content": GREETING}]
        for _ in range(TURNS):
            body = json.dumps({"model": "policy", "messages": messages, "max_tokens": TOKENS})
            connection.request("POST", f"/{path}/chat/completions", body, headers)
            answer = json.loads(connection.getresponse().read())["choices"][0]["message"]
            messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": REPLY}]
        print(json.dumps({"reward": 0.0}), flush=True)


def train(rlhost, place, name, options, steps):
    """Runs some steps; returns for each after the first the seconds of its generation, its sampled tokens and all of its tokens."""
    shared = ["--model", place / "model", "--dataset", place / "prompts.jsonl", "--chat-template-path", place / "chat.jinja"]
    shared += ["--per-device-train-batch-size", EPISODES, "--num-generations", SAMPLES, "--max-completion-length", TOKENS, "--max-turns", TURNS]
    shared += ["--max-episode-tokens", 1024, "--max-steps", steps, "--learning-rate", 0, "--logging-steps", 1, "--output-dir", place / name]
    command = [rlhost, "-q", "grpo", *shared, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr[-3000:]}")
    rows = [json.loads(line) for line in (place / name / "metrics.jsonl").read_text().splitlines()]
    return [(row["time/rollout"], row["completions/mean_length"] * EPISODES, row["num_tokens"] - before["num_tokens"]) for before, row in zip(rows, rows[1:])]


def make(rlhost, place, size, layers):
    config = {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": size, "num_hidden_layers": layers,
        "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": size * 43 // 16, "vocab_size": 257,
        "max_position_embeddings": 2048, "rope_theta": 1e6, "tie_word_embeddings": True,
    }
    (place / "config.json").write_text(json.dumps(config))
    words = "a guess is a number and the number is a word that nobody has said before the game begins again".split()
    prompts = [{"prompt": f"Game {row}: " + " ".join(words[row % 9 :][:8])} for row in range(EPISODES)]
    (place / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (place / "chat.jinja").write_text(TEMPLATE)
    (place / "corpus.jsonl").write_text("".join(json.dumps({"text": row["prompt"]}) + "\n" for row in prompts))
    # A vocabulary of bytes: what the model samples is random in any case.
    command = [rlhost, "-q", "new-model", place / "model", "--config", place / "config.json", "--corpus", place / "corpus.jsonl", "--vocab-size", 257]
    subprocess.run([*map(str, command)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rlhost", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--layers", type=int, default=10)
    args = parser.parse_args()
    agent = f"{sys.executable} {Path(__file__).resolve()} --play"
    kinds = {
        "environment": ["--environment", "guess_number.wasm", "--set", f"environment.config.high={HIGHEST}", "--set", f"environment.config.max_guesses={TURNS}"],
        "agent": ["--agent", agent, "--set", "agent.persistent=true", "--set", f"agent.max_concurrent={EPISODES}"],
    }
    times = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        make(args.rlhost, place, args.hidden_size, args.layers)
        for number in range(args.rounds):
            for kind, options in kinds.items():
                for seconds, tokens, total in train(args.rlhost, place, f"{kind}{number}", options, args.steps):
                    times[kind].append(1e6 * seconds / total)
                    print(f"{kind:12} {seconds:7.2f} s  {tokens:7.0f} of {total:7.0f} tokens sampled  {times[kind][-1]:7.1f} us a token", flush=True)
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    for kind, value in medians.items():
        print(f"{kind:12} {value:7.1f} us a token")
    print(f"the agent takes {medians['agent'] / medians['environment']:.3f} times as long")


if __name__ == "__main__":
    play() if sys.argv[1:] == ["--play"] else main()
