"""Runs the agent as rlhost does, against a server that says what a model might."""

import json
import os
import subprocess
import sys
import threading
import unittest
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

ROW = {"prompt": "Look up a and b, and say their sum.", "numbers": {"a": 3, "b": 4}}


def calling(*names):
    """A turn that looks numbers up."""
    function = lambda name: {"name": "look_up", "arguments": json.dumps({"name": name})}
    calls = [{"id": f"call0000{i}", "type": "function", "function": function(name)} for i, name in enumerate(names)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def saying(text):
    return {"role": "assistant", "content": text}


def run(turns, row=ROW):
    """Runs the agent with these turns of the model; returns its report and the conversation of each call."""
    asked, left = [], list(turns)

    class Policy(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            allowed = self.path == "/v1/chat/completions" and self.headers["Authorization"] == "Bearer key"
            asked.append(body["messages"])
            answer = json.dumps({"choices": [{"message": left.pop(0)}]}).encode() if allowed and left else b"{}"
            self.send_response(200 if len(answer) > 2 else 400)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Policy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "key", "RLHOST_SEED": "1"}
        command = [sys.executable, str(Path(__file__).with_name("agent.py"))]
        environment = {"PATH": os.environ["PATH"], "RLHOST_EPISODE": "train-0-0-0"} | given
        done = subprocess.run(command, input=json.dumps(row) + "\n", env=environment, capture_output=True, text=True, timeout=60)
        server.shutdown()
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), asked


class Agent(unittest.TestCase):
    def test_the_right_sum_is_rewarded(self):
        report, asked = run([calling("a", "b"), saying("It is 7.")])
        self.assertEqual(report, {"reward": 1.0, "metrics": {"looked_up": 2}})
        self.assertEqual([message["content"] for message in asked[1] if message["role"] == "tool"], ["3", "4"])

    def test_turns_of_the_model_come_back_as_they_are(self):
        _, asked = run([calling("a"), calling("b"), saying("7")])
        self.assertEqual([asked[2][1], asked[2][3]], [calling("a"), calling("b")])

    def test_what_is_wrong_is_not_rewarded_and_no_error(self):
        self.assertEqual(run([calling("c"), saying("8")])[0], {"reward": 0.0, "metrics": {"looked_up": 1}})

    def test_a_model_that_only_looks_up_is_stopped(self):
        self.assertEqual(run([calling("a")] * 9)[0], {"reward": 0.0, "metrics": {"looked_up": 4}})


if __name__ == "__main__":
    unittest.main()
