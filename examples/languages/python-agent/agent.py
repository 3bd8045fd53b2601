"""An agent: it lets the model look numbers up and asks for their sum. Any program that asks an OpenAI-compatible server can be one.

It reads a row of the dataset from standard input, asks the policy at the address in its environment, and prints its report at the end.
Standard library only; with the package openai, `OpenAI()` finds address and key by itself.
"""

import json
import os
import sys
import urllib.request

TURNS = 4
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a number up by its name.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}


def chat(messages):
    """Asks the policy for its next turn."""
    body = json.dumps({"model": "policy", "messages": messages, "tools": [TOOL]}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


def look_up(call, numbers):
    """Returns a tool's result; what the model asks for wrongly is no error."""
    arguments = json.loads(call["function"]["arguments"])
    name = arguments.get("name") if isinstance(arguments, dict) else None
    return str(numbers[name]) if name in numbers else f"there is no {name!r}; there are {', '.join(numbers)}"


def play(row):
    """Plays an episode and returns its report."""
    messages, looked = [{"role": "user", "content": row["prompt"]}], 0
    for _ in range(TURNS):
        said = chat(messages)
        # Send the model's turns back as they are: what it wrote is then never encoded again.
        messages.append(said)
        calls = said.get("tool_calls") or []
        for call in calls:
            looked += 1
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": look_up(call, row["numbers"])})
        if not calls:
            break
    right = str(sum(row["numbers"].values())) in (messages[-1].get("content") or "")
    return {"reward": float(right), "metrics": {"looked_up": looked}}


if __name__ == "__main__":
    print(json.dumps(play(json.loads(sys.stdin.readline()))))
