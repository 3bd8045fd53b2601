"""Checks what an interpreter's component does besides rewards: environments, advantages and losses.

python3 check_roles.py python.wasm
"""

import json
import math
import random
import sys
from pathlib import Path

import component
import wasmtime
from component import record

SCRIPTS = Path(__file__).parent / "../../tests/fixtures/scripts"


class Checks:
    """What was checked, and what failed."""

    def __init__(self):
        self.passed, self.failed = 0, []

    def same(self, what: str, found, expected) -> None:
        self.holds(what, found == expected, f"{found!r}, not {expected!r}")

    def close(self, what: str, found: list[float], expected: list[float], tolerance: float = 1e-5) -> None:
        alike = len(found) == len(expected) and all(
            math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in zip(found, expected)
        )
        self.holds(what, alike, f"{found}, not {expected}")

    def holds(self, what: str, does: bool, said: str) -> None:
        if does:
            self.passed += 1
        else:
            self.failed.append(f"{what}: {said}")

    def fails(self, what: str, work, says: str) -> None:
        try:
            work()
        except (component.Failed, wasmtime.WasmtimeError) as error:
            self.holds(what, says in str(error), str(error))
        else:
            self.failed.append(f"{what}: no error")


def opened(made, script: str, function: str | None, settings: dict | None = None) -> component.Instance:
    instance = component.Instance(*made)
    instance.configure(SCRIPTS / script, function, settings)
    return instance


def start(episode: int, columns: dict, text: str = "Buy apples and bread.", seed: int = 3):
    message = record(role="user", content=text, name=None, tool_call_id=None)
    given = [(name, json.dumps(value)) for name, value in columns.items()]
    return record(episode=episode, seed=seed, prompt=[message], columns=given)


def turn(episode: int, *calls: tuple[str, object]):
    made = [
        record(id=f"{at}", name=name, arguments=arguments if isinstance(arguments, str) else json.dumps(arguments))
        for at, (name, arguments) in enumerate(calls)
    ]
    return record(episode=episode, text="", calls=made, finished=True)


def said(reply) -> list[tuple[str, str]]:
    return [(message.name, message.content) for message in reply.messages]


def environments(made, checks: Checks) -> None:
    expected = json.loads((SCRIPTS / "tools.json").read_text())
    shop = opened(made, "shop.py", "Shop", {"money": 20})
    wanted = {"wanted": ["apple", "bread"], "environment": "shop"}
    opening, other = shop.call("environment", "begin", [start(1, wanted), start(2, wanted)])
    checks.same(
        "what reset returns is added to the prompt",
        [m.content for m in opening.prompt],
        ["Buy apples and bread. You have 20 coins."],
    )
    tools = {
        tool.name: {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
        for tool in other.tools
    }
    checks.same("its tools", list(tools), ["ask", "buy", "count"])
    for name, tool in tools.items():
        checks.same(f"{name} is described as by transformers", tool, expected[f"Shop.{name}"])

    one, two = shop.call(
        "environment",
        "step",
        [turn(1, ("buy", {"item": "apple"})), turn(2, ("ask", {"question": "prices"}), ("buy", {"item": "cheese", "count": 9}))],
    )
    checks.same("a tool's answer", (said(one), one.done, one.reward), ([("buy", "17 coins left")], False, 0.5))
    checks.same("its call's number", getattr(one.messages[0], "tool-call-id"), "0")
    answers = [
        ("buy", "{'error': '81 coins are more than the 20 that you have'}"),
        ("ask", "{'apple': 3, 'bread': 4, 'cheese': 9}"),
    ]
    checks.same("errors are answers, asynchronous tools answer last", said(two), answers)
    wrong = [("sell", {}), ("buy", {"thing": 1}), ("buy", "{item"), ("buy", [1])]
    (reply,) = shop.call("environment", "step", [turn(1, *wrong)])
    errors = [
        "Tool sell not found.",
        "unexpected keyword argument 'thing'",
        "Expecting property name",
        "must be a mapping, not list",
    ]
    for (_, answer), error in zip(said(reply), errors):
        checks.holds(f"a wrong call: {error}", error in answer and answer.startswith("{'error'"), answer)
    many = turn(1, ("count", {"factor": 1, "more": {}, "pair": [1, "a"], "x": 1}))
    checks.same("an answer of parts", said(shop.call("environment", "step", [many])[0]), [("count", "one two")])
    last, ended = shop.call("environment", "step", [turn(1, ("buy", {"item": "bread"})), turn(2)])
    checks.same("the reward of a turn", (last.reward, last.done), (0.5, False))
    checks.same("a turn without calls is the last", (ended.reward, ended.done, ended.messages), (0.0, True, []))
    metrics = {metric.name: (metric.value, metric.weight) for metric in shop.call("environment", "finish", [1, 2])}
    checks.same("metrics", metrics, {"tools/call_frequency": (4.5, 2.0), "tools/failure_frequency": (5 / 9, 9.0)})

    checks.fails(
        "a missing column",
        lambda: shop.call("environment", "begin", [start(3, {})]),
        "input: reset of Shop takes wanted, which is no column",
    )
    checks.fails(
        "not a reward",
        lambda: shop.score(component.batch(1, ["p"], {}, [{"prompt": 0, "text": "a", "ids": []}])),
        "Shop in shop.py is environment, and not called as reward",
    )
    tools = opened(made, "calculator.py", None)
    (opening,) = tools.call("environment", "begin", [start(1, {})])
    found = [{"name": t.name, "description": t.description, "parameters": json.loads(t.parameters)} for t in opening.tools]
    checks.same("functions as tools", found, [expected["multiply"], expected["divide"]])
    (reply,) = tools.call("environment", "step", [turn(1, ("divide", {"a": 1, "b": 0}), ("multiply", {"a": 6, "b": 7}))])
    checks.same("their answers", said(reply), [("multiply", "42"), ("divide", "{'error': 'division by zero'}")])
    checks.same("no reward", (opening.prompt, reply.reward), (None, None))


def batch_of(
    columns: dict[str, tuple[str, list[float]]], tokens: list[int], groups: list[int], mask: list[int], missing: dict | None = None
):
    made = [
        record(name=name, unit=unit, values=values, missing=(missing or {}).get(name, []))
        for name, (unit, values) in columns.items()
    ]
    items = len(groups) - 1 if len(tokens) == 2 * (len(groups) - 1) + 1 and "prompts" in (missing or {}) else len(tokens) - 1
    scale = record(items=items, tokens=sum(mask), prompt_tokens=0, max_completion_length=16)
    return record(
        step=4, seed=1, groups=groups, tokens=tokens, prompt_tokens=[], turns=[], mask=bytes(mask), columns=made, scale=scale
    )


def advantages(made, checks: Checks) -> None:
    instance = opened(made, "baseline.py", None, {"unfinished": 0.25})
    columns = {
        "reward/a": ("sequence", [1.0, 0.0, 0.5, 2.0]),
        "reward/b": ("sequence", [0.0, 1.0, 0.0, 0.0]),
        "finished": ("sequence", [1.0, 1.0, 0.0, 1.0]),
    }
    tokens, groups, mask = [0, 2, 3, 5, 6], [0, 3, 4], [1, 1, 1, 1, 0, 1]
    batch = batch_of(columns, tokens, groups, mask, {"reward/b": [2]})
    rewards = [record(name="a", weight=1.0), record(name="b", weight=0.5)]
    answer = instance.call("estimator", "estimate", batch, rewards)
    (column,) = answer.columns
    checks.same("its name and unit", (column.name, column.unit), ("advantage", "token"))
    # Sums are 1, 0.5 and 0.5 in the first group, whose third did not end.
    checks.close("advantages", column.values, [0.5, 0.5, -0.25, -0.0625, 0.0, 0.0])
    checks.same("its metric", [(m.name, m.value) for m in answer.metrics], [("advantages/largest", 0.5)])
    info = instance.call("plugin", "describe")
    checks.same("what it needs", list(info.needs), ["finished"])


def numbers(seed: int, count: int, low: float = -2.0, high: float = 0.0) -> list[float]:
    drawn = random.Random(seed)
    return [drawn.uniform(low, high) for _ in range(count)]


def losses(made, checks: Checks) -> None:
    tokens, groups, mask = [0, 2, 3, 5, 6], [0, 2, 4], [1, 1, 1, 1, 0, 1]
    old, reference = numbers(1, 6), numbers(2, 6)
    logp = [a + b for a, b in zip(old, numbers(3, 6, -0.5, 0.5))]
    advantage = numbers(4, 6, -1.0, 1.0)

    def clipped(logp: list[float]) -> float:
        total = 0.0
        for x, o, r, a, m in zip(logp, old, reference, advantage, mask):
            ratio = math.exp(x - o)
            kl = math.exp(r - x) - (r - x) - 1
            total += m * (0.04 * kl - min(ratio * a, max(min(ratio, 1.2), 0.8) * a))
        return total / sum(mask)

    def preferred(logp: list[float]) -> float:
        sums = [sum(m * (x - r) for x, r, m in zip(logp[s:e], reference[s:e], mask[s:e])) for s, e in zip(tokens, tokens[1:])]
        margins = [0.1 * (sums[0] - sums[1]), 0.1 * (sums[2] - sums[3])]
        return sum(math.log1p(math.exp(-margin)) for margin in margins) / 2

    for script, formula, is_pairs in (("clipped.py", clipped, False), ("preferred.py", preferred, True)):
        instance = opened(made, script, None)
        columns = {
            "logp": ("token", logp),
            "old_logp": ("token", old),
            "ref_logp": ("token", reference),
            "advantage": ("token", advantage),
        }
        batch = batch_of(columns, tokens, groups, mask, {"prompts": []} if is_pairs else None)
        answer = instance.call("algorithm", "loss", batch)
        checks.close(f"{script}: the loss", [answer.loss], [formula(logp)])
        (derived,) = answer.derivatives
        step, slopes = 1e-5, []
        for at in range(6):
            up, down = list(logp), list(logp)
            up[at] += step
            down[at] -= step
            slopes.append((formula(up) - formula(down)) / (2 * step))
        checks.close(f"{script}: its derivatives", derived.values, slopes, 1e-4)
        data = instance.call("algorithm", "describe-data")
        expected = ("dataset", "pairs", []) if is_pairs else ("policy", "completions", ["advantage"])
        checks.same(f"{script}: where it learns from", (data.source, data.shape, list(data.estimates)), expected)
        needs = ["logp", "ref_logp"] if is_pairs else ["logp", "old_logp", "ref_logp", "advantage"]
        checks.same(f"{script}: what it needs", list(instance.call("plugin", "describe").needs), needs)


def taught(made, checks: Checks) -> None:
    """A loss by a teacher's divergence has its contract's name."""
    instance = opened(made, "distilled.py", None, {"bonus": 0.5})
    checks.same("what it needs", sorted(instance.call("plugin", "describe").needs), ["entropy", "teacher_divergence/1"])
    data = instance.call("algorithm", "describe-data")
    checks.same("where it learns from", (data.source, data.shape, list(data.estimates)), ("either", "completions", []))
    columns = {"teacher_divergence/1": ("token", [0.5, 1.0, 3.0]), "entropy": ("token", [1.0, 2.0, 9.0])}
    answer = instance.call("algorithm", "loss", batch_of(columns, [0, 3], [0, 1], [1, 1, 0]))
    checks.close("its loss", [answer.loss], [0.0])
    found = {column.name: column.values for column in answer.derivatives}
    checks.close("by the divergence", found["teacher_divergence/1"], [0.5, 0.5, 0.0])
    checks.close("by the entropy", found["entropy"], [-0.25, -0.25, 0.0])


def prompted(made, checks: Checks) -> None:
    """A loss may write what its teacher reads."""
    instance = opened(made, "hindsight.py", None, {"threshold": 0.5})
    checks.same("what it needs", sorted(instance.call("plugin", "describe").needs), ["has_teacher_prompt", "teacher_divergence/1"])
    data = instance.call("algorithm", "describe-data")
    checks.same("where it learns from", (data.source, data.shape, list(data.estimates)), ("policy", "completions", []))

    def generation(rewards: list, columns: dict):
        made = [record(name=name, values=[json.dumps(value) for value in values]) for name, values in columns.items()]
        given = {"prompt-of": [0, 0, 1], "completions": ["3", "2", "5"], "finished": [True] * 3, "rewards": rewards}
        return record(step=4, seed=1, questions=["1 + 1?", "2 + 2?"], columns=made, **given)

    answer = instance.call("teacher-prompts", "write", generation([0.0, 0.75, None], {"answer": [2, 4]}))
    expected = ["1 + 1?\n'3' is wrong: it is 2.", None, "2 + 2?\n'5' is wrong: it is 4."]
    checks.same("its questions", (list(answer.questions), getattr(answer, "max-length")), (expected, 0))
    checks.same("its metric", [(m.name, m.value) for m in answer.metrics], [("hindsight/failed", 2 / 3)])
    write = lambda: instance.call("teacher-prompts", "write", generation([0.0] * 3, {"hint": [2, 4]}))
    checks.fails("a missing column", write, "input: teacher_prompts takes answer, which is no column of the dataset; it has: hint")
    columns = {"teacher_divergence/1": ("token", [0.5, 1.0, 3.0]), "has_teacher_prompt": ("sequence", [1.0, 0.0])}
    loss = instance.call("algorithm", "loss", batch_of(columns, [0, 2, 3], [0, 2], [1, 1, 1]))
    checks.close("its loss", [loss.loss], [0.5])
    for returned, says in (("'a'", "returned str, not a list"), ("['a']", "returned 1 questions for 3"), ("[None, 7, None]", "returned int for completion 1")):
        source = f"def teacher_prompts(questions):\n    return {returned}\ndef loss(reverse_kl):\n    return reverse_kl\n"
        wrong = component.Instance(*made)
        wrong.call("plugin", "configure", json.dumps({"script": {"name": "a.py", "source": source}, "settings": {}}))
        checks.fails(says, lambda: wrong.call("teacher-prompts", "write", generation([0.0] * 3, {})), says)
    none = opened(made, "distilled.py", None)
    answer = none.call("teacher-prompts", "write", generation([0.0] * 3, {}))
    checks.same("without such a function", list(answer.questions), [None] * 3)


def alone(made, checks: Checks) -> None:
    """A loss without advantages of its own gets the usual ones."""
    source = "from rlhost import exp\ndef loss(logp, old_logp, advantage):\n    return -exp(logp - old_logp) * advantage\n"
    instance = component.Instance(*made)
    instance.call("plugin", "configure", json.dumps({"script": {"name": "a.py", "source": source}, "settings": {}}))
    checks.same("its estimates", list(instance.call("algorithm", "describe-data").estimates), ["advantage"])
    columns = {"reward/a": ("sequence", [1.0, 3.0, 5.0])}
    batch = batch_of(columns, [0, 1, 2, 4], [0, 2, 3], [1, 1, 1, 1])
    (column,) = instance.call("estimator", "estimate", batch, [record(name="a", weight=1.0)]).columns
    deviation = math.sqrt(2.0) + 1e-4
    checks.close("its advantages", column.values, [-1 / deviation, 1 / deviation, 0.0, 0.0])


def inspected(made, checks: Checks) -> None:
    found = {}
    for script in ("shop.py", "calculator.py", "baseline.py", "clipped.py", "preferred.py"):
        instance = component.Instance(*made)
        answer = instance.call("rlhost:script/script@1.0.0", "inspect", script, (SCRIPTS / script).read_text(), [])
        found[script] = [
            (f.name, f.kind, sorted(json.loads(getattr(f, "settings-schema"))["properties"]), list(f.columns)) for f in answer
        ]
    expected = {
        "shop.py": [("Shop", "environment", ["fee", "money"], ["wanted"])],
        "calculator.py": [("TOOLS", "environment", [], [])],
        "baseline.py": [("advantages", "advantages", ["unfinished"], ["advantage"])],
        "clipped.py": [("advantages", "advantages", [], ["advantage"]), ("loss", "loss", ["beta", "epsilon"], [])],
        "preferred.py": [("loss", "loss", ["beta"], [])],
    }
    for script, functions in expected.items():
        checks.same(f"what {script} has", found[script], functions)


def main(path: str) -> int:
    engine = component.engine()
    made = engine, component.compiled(engine, Path(path))[0]
    checks = Checks()
    for check in (inspected, environments, advantages, losses, taught, prompted, alone):
        check(made, checks)
    for failed in checks.failed:
        print(f"FAILED {failed}")
    print(f"{checks.passed} passed, {len(checks.failed)} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
