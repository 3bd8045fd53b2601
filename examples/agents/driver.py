"""A driver: it plays a run's episodes from elsewhere. The game is that of agent.py.

    python3 driver.py http://127.0.0.1:8300 "$(cat runs/NAME/agent_key)"

Standard library only. It begins before the run or after, plays several episodes at a time, and ends when the run does.
"""

import http.client
import json
import re
import sys
import threading
import time
import urllib.error
import urllib.request

TURNS = 3
WORKERS = 4
PATIENCE = 60  # Seconds without a run.


def post(url, key, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def play(task):
    """Play an episode with its own address and key, and return what to report."""
    messages = [{"role": "user", "content": task["row"]["prompt"]}]
    found = 0
    for _ in range(TURNS):
        body = {"model": "policy", "messages": messages, "max_tokens": 16}
        said = post(task["base_url"] + "/chat/completions", task["api_key"], body)["choices"][0]["message"]
        page = re.search(r"[0-9]+", said["content"])
        found += page is not None
        result = f"page {page[0]} is about cats" if page else "no page has that name"
        messages += [said, {"role": "user", "content": result}]
    return {"reward": found / TURNS, "metrics": {"pages": found}}


def work(address, key):
    last = time.monotonic()
    while time.monotonic() - last < PATIENCE:
        try:
            task = post(address + "/rl/next_task", key, {"timeout_s": 30})
            last = time.monotonic()
            if "row" not in task:
                continue
            try:
                report = play(task)
            except (OSError, http.client.HTTPException) as error:
                report = {"error": str(error)}
            post(address + "/rl/end_session", task["api_key"], report)
        except urllib.error.HTTPError as error:
            if error.code == 410 and json.load(error)["error"]["message"] == "the run has ended":
                return
            print(error, file=sys.stderr)
            time.sleep(1)
        except (OSError, http.client.HTTPException):
            # The run has not begun, or it will resume.
            time.sleep(0.2)


if __name__ == "__main__":
    workers = [threading.Thread(target=work, args=sys.argv[1:3]) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
