#!/usr/bin/env python3
"""What a page that follows a run costs the run.

    host/benches/ui_overhead.py target/debug/rlhost --pairs 4

Trains the built-in model with and without `rlhost ui` beside it, in turns. The page's client follows the run as a browser does: it hears of
what is new, and lists the newest completions as they come. Prints the seconds that the steps took, and the processor time of the run and of
`rlhost ui`. Timings count only alone on the machine; processor time depends less on what else it does.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from urllib.request import urlopen


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Follower(threading.Thread):
    """Follows a run as the page does, until the server ends."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self.url, self.rows, self.pages = url, 0, 0

    def ask(self, path):
        with urlopen(f"{self.url}api/{path}") as answer:
            return json.load(answer)

    def run(self):
        try:
            while not self.ask("runs")["runs"]:
                time.sleep(0.2)
            self.ask("run?run=run")
            self.ask("series?run=run&points=600")
            asked = 0
            with urlopen(f"{self.url}api/live?run=run") as stream:
                for line in stream:
                    if not line.startswith(b"data: "):
                        continue
                    news = json.loads(line[6:])
                    self.rows += len((news.get("rows") or {}).get("steps", []))
                    if news.get("completions") and time.monotonic() - asked > 1.5:
                        asked = time.monotonic()
                        self.pages += len(self.ask("completions?run=run&limit=3")["items"]) > 0
        except OSError:
            pass


def train(binary, steps, threads, with_page):
    """Returns the seconds of the steps, the processor time of the run and of the page's server, and what the page heard."""
    with tempfile.TemporaryDirectory() as place:
        place, page, follower = Path(place), None, None
        if with_page:
            page = subprocess.Popen([binary, "ui", str(place)], stdout=subprocess.PIPE, text=True)
            follower = Follower(page.stdout.readline().split()[0])
            follower.start()
        command = [binary, "-q", "--plugin", "tldr_length_reward.wasm", "--max-steps", str(steps), "--logging-steps", "1", "--num-threads", str(threads)]
        command += ["--log-completions", "all", "--save-strategy", "no", "--output-dir", str(place / "run")]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rows = [json.loads(line) for line in (place / "run/metrics.jsonl").read_text().splitlines()]
        # The first steps warm caches and threads.
        seconds = rows[-1]["time"] - rows[9]["time"]
        if not with_page:
            return seconds, own, 0.0, ""
        used = processor_seconds(page.pid)
        page.terminate()
        page.wait()
        return seconds, own, used, f"{follower.rows} rows, {follower.pages} lists of completions"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rlhost")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--num-threads", type=int, default=os.cpu_count(), help="of the run; one fewer leaves a processor to the page and its client")
    arguments = parser.parse_args()
    alone, beside, shares, own = [], [], [], {True: [], False: []}
    for pair in range(arguments.pairs):
        for with_page in (pair % 2 == 0, pair % 2 == 1):
            seconds, of_run, used, heard = train(arguments.rlhost, arguments.steps, arguments.num_threads, with_page)
            (beside if with_page else alone).append(seconds)
            own[with_page].append(of_run)
            if with_page:
                shares.append(100 * used / (seconds * os.cpu_count()))
            print(f"{'with the page' if with_page else 'alone':14} {seconds:7.2f} s  run: {of_run:.2f} s, page: {used:.2f} s of processor time  {heard}", flush=True)
    ratios = [b / a for a, b in zip(alone, beside)]
    print(f"steps take {statistics.median(ratios):.4f} times as long, median of {len(ratios)} pairs ({min(ratios):.4f} to {max(ratios):.4f})")
    print(f"the run takes {statistics.median(own[True]) / statistics.median(own[False]):.4f} times its processor time")
    print(f"the page takes {statistics.median(shares):.2f} % of the processors' time")


if __name__ == "__main__":
    main()
