#!/usr/bin/env python3
"""Serve a model that has learned a few turns by heart to the clients of agents, unmodified: openai, anthropic, openai-agents, litellm.

    python -m venv venv && venv/bin/pip install openai anthropic openai-agents litellm
    cargo build
    venv/bin/python tests/parity/check_serving_clients.py target/debug/rlhost [--vllm vllm]

The built-in model is trained on the turns that each client should get: texts, calls of tools, and what follows their results. A prompt
is what the server renders of the conversation as the client sends it, so a turn comes only if the client's form is read as meant.
Each case is asked whole and streamed where the client can. With `--vllm`, the command of vLLM, its `vllm bench serve` loads the server with
completions and chats. The last output is check_serving_clients.txt beside this file.

Exits 1 if an answer differs.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path

os.environ |= {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}

import agents
import anthropic
import litellm
import openai

litellm.suppress_debug_info = True

TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "{% if not loop.last or m.role != 'assistant' or not add_generation_prompt %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WEATHER, CLOCK, HANDOFF = "get_weather", "get_time", "transfer_to_forecaster"


def call(name, **arguments):
    return f'<tool_call>{json.dumps({"name": name, "arguments": arguments})}</tool_call>'


def function(name, *parameters):
    schema = {"type": "object", "properties": {p: {"type": "string"} for p in parameters}, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def calling(text, *calls):
    """A turn of the assistant in OpenAI's form."""
    made = [{"id": f"c{i}", "type": "function", "function": {"name": n, "arguments": json.dumps(a)}} for i, (n, a) in enumerate(calls)]
    return {"role": "assistant", "content": text, "tool_calls": made}


def told(text, name, at="c0"):
    return {"role": "tool", "tool_call_id": at, "content": text, "name": name}


USER = {"role": "user", "content": "Weather in Oslo?"}
SYSTEM = {"role": "system", "content": "You forecast."}
TOOLS = [function(WEATHER, "city"), function(CLOCK)]
BOTH = "It rains in Oslo at noon."
CALLS = call(WEATHER, city="Oslo") + call(CLOCK)
LOOKING = "Let me look."
MADE = calling(LOOKING, (WEATHER, {"city": "Oslo"}), (CLOCK, {}))
RESULTS = [told("rain", WEATHER), told("noon", CLOCK, "c1")]

# Messages, tools, and what the model says.
LESSONS = [
    ([{"role": "user", "content": "Hello"}], None, "Hello to you, too."),
    ([{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}], None, " three."),
    ([SYSTEM, USER], TOOLS, LOOKING + CALLS),
    ([SYSTEM, USER, MADE, *RESULTS], TOOLS, BOTH),
    ([{"role": "system", "content": "You route."}, USER], [function(HANDOFF)], call(HANDOFF)),
    (
        [SYSTEM, USER, calling(None, (HANDOFF, {})), told('{"assistant": "forecaster"}', HANDOFF)],
        TOOLS,
        LOOKING + CALLS,
    ),
    (
        [SYSTEM, USER, calling(None, (HANDOFF, {})), told('{"assistant": "forecaster"}', HANDOFF), MADE, *RESULTS],
        TOOLS,
        BOTH,
    ),
]


class Server:
    """A server of a model, which is stopped at the end."""

    def __init__(self, binary, place, *arguments):
        command = [binary, "serve", "--port", "0", "--chat-template", "template.jinja", "--served-model-name", "m", *arguments]
        self.process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def __enter__(self):
        line = self.process.stdout.readline()
        if "http://" not in line:
            sys.exit(f"the server did not start: {line}")
        return line[line.index("http://") :].split("/v1")[0]

    def __exit__(self, *_):
        self.process.terminate()
        if self.process.wait() != 0:
            sys.exit(f"the server ended with {self.process.returncode}")


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def teach(binary, place):
    """Trains the built-in model on the lessons."""
    rows = []
    with Server(binary, place) as url:
        for messages, tools, answer in LESSONS:
            continues = messages[-1]["role"] == "assistant"
            body = {"messages": messages, "tools": tools, "continue_final_message": continues}
            ids = post(f"{url}/tokenize", body)["tokens"]
            rows.append({"prompt": post(f"{url}/detokenize", {"tokens": ids})["prompt"], "completion": answer})
    (place / "lessons.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["sft", "--dataset", "lessons.jsonl", "--output-dir", "taught", "--per-device-train-batch-size", len(rows), "--learning-rate"]
    command += ["2e-3", "--max-steps", 50, "--save-steps", 50, "--logging-steps", 10, "--max-length", "none", "--seed", 1]
    done = subprocess.run([binary, *map(str, command)], cwd=place, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"rlhost sft: {done.stderr}")


class Check:
    def __init__(self):
        self.failed = False

    def __call__(self, what, got, want):
        self.failed |= got != want
        print(f"ok    {what}" if got == want else f"FAIL  {what}: {got!r} is not {want!r}", flush=True)


GREEDY = {"temperature": 0, "max_tokens": 200}
FOUND = [(WEATHER, {"city": "Oslo"}), (CLOCK, {})]


def check_openai(url, check):
    """Chat with calls, whole and streamed, and responses."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    found = lambda message: [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]
    message = client.chat.completions.create(model="m", messages=[SYSTEM, USER], tools=TOOLS, **GREEDY).choices[0].message
    check("openai: a text and two calls", (message.content, found(message)), (LOOKING, FOUND))
    with client.chat.completions.stream(model="m", messages=[SYSTEM, USER], tools=TOOLS, **GREEDY) as stream:
        message = stream.get_final_completion().choices[0].message
    check("openai: the same, streamed", (message.content, found(message)), (LOOKING, FOUND))
    turns = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    answer = client.chat.completions.create(model="m", messages=turns, extra_body=more, **GREEDY).choices[0].message
    check("openai: the last message is continued", answer.content, " three.")

    given = {"model": "m", "temperature": 0, "max_output_tokens": 200}
    check("openai: a response", client.responses.create(input="Hello", **given).output_text, "Hello to you, too.")
    tools = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
    given |= {"instructions": SYSTEM["content"], "tools": tools}
    response = client.responses.create(input=USER["content"], **given)
    with client.responses.stream(input=USER["content"], **given) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        streamed = stream.get_final_response()
    for how, answer in (("", response), (", streamed", streamed)):
        items = [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
        check(f"openai: a response with calls{how}", (answer.output_text, items, answer.status), (LOOKING, FOUND, "completed"))
    check("openai: the deltas of its text", deltas, LOOKING)
    calls = [item for item in response.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": c.call_id, "output": o} for c, o in zip(calls, ("rain", "noon"))]
    history = [{"role": "user", "content": USER["content"]}, *(item.model_dump() for item in response.output), *results]
    check("openai: the response after their results", client.responses.create(input=history, **given).output_text, BOTH)
    try:
        client.responses.create(input="Hello", model="m", previous_response_id=response.id)
        check("openai: previous_response_id is refused", "answered", "refused")
    except openai.BadRequestError as error:
        check("openai: previous_response_id is refused", error.param, "previous_response_id")


def check_anthropic(url, check):
    """Messages, whole and streamed, with tools, a beginning, errors, and the client's own loop over tools."""
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    given = {"model": "m", "max_tokens": 200, "extra_body": {"temperature": 0}}
    tools = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in TOOLS]
    message = client.messages.create(messages=[{"role": "user", "content": "Hello"}], **given)
    usage = message.usage.input_tokens + message.usage.cache_read_input_tokens
    counted = client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "Hello"}]).input_tokens
    check("anthropic: a message", (message.content[0].text, message.stop_reason, usage), ("Hello to you, too.", "end_turn", counted))
    stopped = client.messages.create(messages=[{"role": "user", "content": "Hello"}], stop_sequences=["you"], **given)
    check("anthropic: a stop sequence", (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence), ("Hello to ", "stop_sequence", "you"))
    begun = [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}]
    check("anthropic: a begun answer", client.messages.create(messages=begun, **given).content[0].text, " three.")

    given |= {"system": SYSTEM["content"], "tools": tools}
    message = client.messages.create(messages=[USER], **given)
    with client.messages.stream(messages=[USER], **given) as stream:
        deltas = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    for how, answer in (("", message), (", streamed", streamed)):
        blocks = [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
        got = (answer.content[0].text, blocks, answer.stop_reason)
        check(f"anthropic: a message with calls{how}", got, (LOOKING, FOUND, "tool_use"))
    check("anthropic: the deltas of its text", deltas, LOOKING)

    def get_weather(city: str) -> str:
        """Says the weather."""
        return "rain" if city == "Oslo" else "unknown"

    def get_time() -> str:
        """Says the time."""
        return "noon"

    own = [anthropic.beta_tool(get_weather), anthropic.beta_tool(get_time)]
    runner = client.beta.messages.tool_runner(messages=[USER], **{**given, "tools": own})
    check("anthropic: its loop over tools", runner.until_done().content[0].text, BOTH)
    for what, change, kind in (
        ("a model that is not there", {"model": "other"}, anthropic.NotFoundError),
        ("a forced call", {"tool_choice": {"type": "any"}}, anthropic.BadRequestError),
    ):
        try:
            client.messages.create(messages=[USER], **{**given, **change})
            check(f"anthropic: {what} is refused", "answered", kind.__name__)
        except anthropic.APIStatusError as error:
            check(f"anthropic: {what} is refused", type(error).__name__, kind.__name__)


@agents.function_tool
def get_weather(city: str) -> str:
    return "rain" if city == "Oslo" else "unknown"


@agents.function_tool
def get_time() -> str:
    return "noon"


async def check_agents(url, check):
    """Two tools and a hand-off, through responses and chat, whole and streamed."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    settings = agents.ModelSettings(temperature=0, max_tokens=200)
    for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
        model = kind(model="m", openai_client=client)
        forecaster = agents.Agent(
            name="forecaster", instructions=SYSTEM["content"], tools=[get_weather, get_time], model=model, model_settings=settings
        )
        router = agents.Agent(name="router", instructions="You route.", handoffs=[forecaster], model=model, model_settings=settings)
        name = "responses" if kind is agents.OpenAIResponsesModel else "chat"
        result = await agents.Runner.run(router, USER["content"])
        check(f"openai-agents: a hand-off and two tools, {name}", (result.final_output, result.last_agent.name), (BOTH, "forecaster"))
        streamed = agents.Runner.run_streamed(router, USER["content"])
        async for _ in streamed.stream_events():
            pass
        check(f"openai-agents: the same, streamed, {name}", streamed.final_output, BOTH)


def check_litellm(url, check):
    """The same turn through litellm's providers."""
    for provider, base in (("openai", f"{url}/v1"), ("anthropic", url)):
        given = {"model": f"{provider}/m", "api_base": base, "api_key": "none", "messages": [SYSTEM, USER], "tools": TOOLS, **GREEDY}
        message = litellm.completion(**given).choices[0].message
        found = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]
        check(f"litellm: a turn with calls, {provider}", (message.content, found), (LOOKING, FOUND))
        chunks = list(litellm.completion(**given, stream=True))
        message = litellm.stream_chunk_builder(chunks).choices[0].message
        found = [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]
        check(f"litellm: the same, streamed, {provider}", (message.content, found), (LOOKING, FOUND))
    answer = litellm.responses(model="openai/m", input="Hello", api_base=f"{url}/v1", api_key="none", temperature=0)
    check("litellm: a response", answer.output[0].content[0].text, "Hello to you, too.")


def check_load(vllm, url, place, check):
    """Sends more requests at once than are answered together."""
    for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        command = [vllm, "bench", "serve", "--backend", backend, "--base-url", url, "--endpoint", path, "--model", "m", "--tokenizer", "taught/checkpoint-50",
                   "--dataset-name", "random", "--random-input-len", "100", "--random-output-len", "16", "--num-prompts", "96",
                   "--ignore-eos", "--disable-tqdm", "--save-result", "--result-filename", f"{backend}.json"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True)
        found = json.loads((place / f"{backend}.json").read_text()) if done.returncode == 0 else {"completed": done.stderr[-500:]}
        check(f"vllm bench serve: {path}", [found.get(name) for name in ("completed", "failed", "total_output_tokens")], [96, 0, 96 * 16])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--vllm", help="command of vLLM")
    options = parser.parse_args()
    binary, check = options.binary.absolute(), Check()
    versions = [f"{name} {version(name)}" for name in ("openai", "anthropic", "openai-agents", "litellm")]
    print(", ".join(versions), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "template.jinja").write_text(TEMPLATE)
        teach(binary, place)
        with Server(binary, place, "--model", "taught") as url:
            check_openai(url, check)
            check_anthropic(url, check)
            asyncio.run(check_agents(url, check))
            check_litellm(url, check)
            if options.vllm:
                check_load(options.vllm, url, place, check)
            else:
                print("left  vllm bench serve: --vllm is not given", flush=True)
    sys.exit(check.failed)


main()
