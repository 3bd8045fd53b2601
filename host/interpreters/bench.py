"""Measures an interpreter's component: compiling it, starting an instance, and calls, beside the same functions run natively.

python3 bench.py python.wasm
python3 bench.py javascript.wasm     (native: node)
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import check_roles
import component

ROWS, TOKENS = 64, 200

# Each takes its own time, the least of several calls, since passing a batch from here costs more than from rlhost.
PYTHON = """
import re, time
PATTERN = re.compile(r"^<think>.*?</think>\\s*<answer>(.*?)</answer>$", re.DOTALL)
NUMBER = re.compile(r"-?\\d[\\d,]*(?:\\.\\d+)?")
def length(completions):
    return [-abs(len(c.split()) - 120) for c in completions]
def characters(completions):
    return [float(len(c)) for c in completions]
def regex(completions):
    return [(1.0 if PATTERN.match(c) else 0.0) + 0.1 * len(NUMBER.findall(c)) for c in completions]
def timed(function, completions):
    times = []
    for _ in range(20):
        started = time.perf_counter()
        function(completions)
        times.append(time.perf_counter() - started)
    return min(times) * 1e6 / len(completions)
def reward(completions, **kwargs):
    found = [timed(f, completions) for f in (characters, length, regex)]
    return found + [0.0] * (len(completions) - 3)
"""
JAVASCRIPT = r"""
const PATTERN = /^<think>.*?<\/think>\s*<answer>(.*?)<\/answer>$/s;
const NUMBER = /-?\d[\d,]*(?:\.\d+)?/g;
const characters = (completions) => completions.map((c) => c.length);
const length = (completions) => completions.map((c) => -Math.abs(c.split(/\s+/).length - 120));
const regex = (completions) => completions.map((c) => (PATTERN.test(c) ? 1 : 0) + 0.1 * (c.match(NUMBER) ?? []).length);
const now = globalThis.performance ? () => performance.now() : () => Date.now();
function timed(f, completions) {
  let least = Infinity;
  for (let i = 0; i < 30; i++) {
    const started = now();
    for (let j = 0; j < 5; j++) f(completions);
    least = Math.min(least, now() - started);
  }
  return (least * 200) / completions.length;
}
export function reward({ completions }) {
  const found = [characters, length, regex].map((f) => timed(f, completions));
  return [...found, ...Array(completions.length - 3).fill(0)];
}
"""


def texts() -> list[str]:
    """Returns completions of about 200 tokens: words and numbers, in tags."""
    drawn = random.Random(3)
    words = "the answer is then so we add multiply because of total number apples each price and first second result".split()

    def body(count: int) -> str:
        return " ".join(drawn.choice(words) if drawn.random() < 0.85 else str(drawn.randint(1, 5000)) for _ in range(count))

    return [f"<think>{body(150)}</think>\n<answer>{body(3)}</answer>" for _ in range(ROWS)]


def native(path: Path, completions: list[str]) -> list[float]:
    """Runs the script without a component."""
    if path.suffix == ".py":
        names: dict = {}
        exec(path.read_text(), names)
        return names["reward"](completions)[:3]
    code = f"import {{ reward }} from {json.dumps(str(path))};\nconsole.log(JSON.stringify(reward({{ completions: {json.dumps(completions)} }})))"
    run = subprocess.run(["node", "--input-type=module", "-e", code], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)[:3]


def least(work, times: int = 5) -> float:
    """Returns the least of several times, in milliseconds of the processor."""
    found = []
    for _ in range(times):
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return min(found) * 1e3


def empty_call(instance: component.Instance, batch) -> None:
    """Prints what a call costs besides the function and passing the batch."""
    script = {"name": "r.py", "source": "def r(completions):\n    return [0.0] * len(completions)\n"}
    instance.call("plugin", "configure", json.dumps({"script": script, "settings": {}}))
    one = component.batch(1, ["p"], {}, [{"prompt": 0, "text": "a", "ids": []}])
    print(
        f"a call         {least(lambda: [instance.score(one) for _ in range(20)]) / 20:.2f} ms of a completion, {least(lambda: instance.score(batch)):.2f} ms of {ROWS}"
    )


def roles(made) -> None:
    """Prints the times of an environment's turns, of advantages and of a loss."""
    shop = check_roles.opened(made, "shop.py", "Shop")
    wanted = {"wanted": ["apple"]}
    shop.call("environment", "begin", [check_roles.start(at, wanted) for at in range(ROWS)])
    turns = [check_roles.turn(at, ("count", {"factor": 1, "more": {}, "pair": [1, "a"], "x": 1})) for at in range(ROWS)]
    print(
        f"turns          {least(lambda: shop.call('environment', 'step', turns)) / ROWS * 1e3:.0f} us each, with a call of a tool"
    )
    tokens, groups, mask = [at * TOKENS for at in range(ROWS + 1)], list(range(0, ROWS + 1, 8)), [1] * ROWS * TOKENS
    values = check_roles.numbers(1, ROWS * TOKENS)
    names = ("logp", "old_logp", "ref_logp", "advantage")
    batch = check_roles.batch_of({name: ("token", values) for name in names}, tokens, groups, mask)
    clipped = check_roles.opened(made, "clipped.py", "loss")
    spent = least(lambda: clipped.call("algorithm", "loss", batch))
    print(f"a loss         {spent:.0f} ms of {ROWS} completions of {TOKENS} tokens")


def main(file: str) -> None:
    engine = component.engine()
    made, seconds = component.compiled(engine, Path(file))
    print(f"compiling      {seconds:.2f} s{' (0: kept)' if not seconds else ''}")
    instances = []
    for _ in range(5):
        started = time.perf_counter()
        instances.append(component.Instance(engine, made))
        instances[-1].call("plugin", "describe")
        instances[-1].took = (time.perf_counter() - started) * 1e3
    print(
        f"an instance    {instances[0].took:.1f} ms the first, {statistics.median(i.took for i in instances[1:]):.1f} ms others, with describe()"
    )
    completions = texts()
    rows = [{"prompt": 0, "text": text, "ids": []} for text in completions]
    batch = component.batch(1, ["prompt"], {}, rows)
    is_python = "python" in Path(file).name
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reward.py" if is_python else "reward.mjs")
        path.write_text(PYTHON if is_python else JAVASCRIPT)
        started = time.perf_counter()
        instances[0].configure(path, "reward")
        print(f"configure      {(time.perf_counter() - started) * 1e3:.1f} ms")
        inside, outside = instances[0].score(batch)[:3], native(path, completions)
    for name, here, there in zip(("len", "words", "regex"), inside, outside):
        print(f"{name:<14} {here:.2f} us a completion, natively {there:.2f} us: {here / there:.1f} times")
    if is_python:
        empty_call(instances[1], batch)
        roles((engine, made))


if __name__ == "__main__":
    main(sys.argv[1])
