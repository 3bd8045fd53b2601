"""An agent of a few lines: the model looks pages up by their numbers, and is rewarded for each turn in which it does.

Standard library only. Any program that asks an OpenAI-compatible server can be one.
"""

import json
import os
import re
import sys
import urllib.request

TURNS = 3


def chat(messages):
    """Ask the policy; the address and the key of this episode are in the environment."""
    body = json.dumps({"model": "policy", "messages": messages, "max_tokens": 16}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]


row = json.loads(sys.stdin.readline())
messages = [{"role": "user", "content": row["prompt"]}]
found = 0
for _ in range(TURNS):
    said = chat(messages)
    page = re.search(r"[0-9]+", said["content"])
    found += page is not None
    result = f"page {page[0]} is about cats" if page else "no page has that name"
    messages += [said, {"role": "user", "content": result}]
print(json.dumps({"reward": found / TURNS, "metrics": {"pages": found}}))
