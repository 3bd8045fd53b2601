#!/usr/bin/env python3
"""Let an inference server (vLLM, `rlhost serve`) say what it finds likely in a dataset's completions, for `teacher_model_kind = "dataset"`.

    python3 teacher_rows.py http://127.0.0.1:8001 rows.jsonl taught.jsonl --count 8 --end '<|endoftext|>'

Rows have "prompt" and "completion", or "text", or "messages"; all become lists of token ids, as the server reads them, with its likeliest
tokens in place of each. `--end` is the text of the model's end token; without it, a student does not learn to end plain texts. Needs Python
3.9 and nothing else.
"""

import argparse
import json
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor


class Server:
    def __init__(self, url):
        self.url = url.rstrip("/")
        self.model = self.send("/v1/models")["data"][0]["id"]

    def send(self, path, body=None):
        data = None if body is None else json.dumps({"model": self.model, **body}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            sys.exit(f"{self.url}{path}: {error}: {error.read().decode(errors='replace')[:500]}")

    def tokens(self, text, asks=False):
        """Return the token ids of a text, or of a conversation, which may ask for an answer."""
        body = {"prompt": text} if isinstance(text, str) else {"messages": text, "add_generation_prompt": asks}
        return self.send("/tokenize", body)["tokens"]

    def likely(self, ids, count):
        """Return the likeliest tokens in place of each of these, and their log-probabilities; nothing predicts the first one."""
        body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": count}
        lists = []
        for entry in self.send("/v1/completions", body)["choices"][0]["prompt_logprobs"]:
            # The token itself is there, too, also if it is not among the likeliest.
            said = sorted(((token["logprob"], int(id)) for id, token in (entry or {}).items()), reverse=True)[:count]
            lists.append(([id for _, id in said], [logprob for logprob, _ in said]))
        return zip(*lists)


def taught(server, row, count, end):
    """Return the row as tokens, with what the server finds likely."""
    prompt, whole = row.get("prompt"), row.get("messages") or row.get("text")
    if prompt is not None and "completion" in row:
        whole = prompt + row["completion"]
    if not whole:
        sys.exit(f'a row has neither "prompt" and "completion" nor "text" nor "messages": {json.dumps(row)[:200]}')
    if isinstance(whole, str):
        whole += end
    ids = server.tokens(whole)
    token_ids, logprobs = server.likely(ids, count)
    made = {"input_ids": ids, "teacher_token_ids": token_ids, "teacher_logprobs": logprobs}
    if prompt is not None:
        # The completion begins at the first token that differs from the prompt alone.
        asked = server.tokens(prompt, asks=True)
        begin = next((at for at, pair in enumerate(zip(asked, ids)) if pair[0] != pair[1]), min(len(asked), len(ids)))
        made["completion_mask"] = [int(at >= begin) for at in range(len(ids))]
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("server")
    parser.add_argument("rows")
    parser.add_argument("taught")
    parser.add_argument("--count", type=int, default=8, help="likeliest tokens to keep; vLLM says at most --max-logprobs, which is 20")
    parser.add_argument("--end", default="", help="text of the end token, which plain texts end with")
    options = parser.parse_args()
    server = Server(options.server)
    with open(options.rows) as rows, open(options.taught, "w") as out, ThreadPoolExecutor(16) as pool:
        lines = [line for line in rows if line.strip()]
        for row in pool.map(lambda line: taught(server, json.loads(line), options.count, options.end), lines):
            out.write(json.dumps(row) + "\n")


main()
