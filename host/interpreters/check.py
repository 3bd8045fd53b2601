"""Checks that an interpreter's component scores the scripts of tests/fixtures/scripts as CPython does, and says what is wrong with others.

python3 check.py python.wasm .py
python3 check.py javascript.wasm .js .ts
"""

import json
import math
import sys
import threading
import time
from pathlib import Path

import component
import wasmtime

SCRIPTS = Path(__file__).parent / "../../tests/fixtures/scripts"


def same(left: float | None, right: float | None) -> bool:
    # Scores are passed as f32.
    return left is right if left is None or right is None else math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-6)


def scores(engine, made, extensions) -> list[tuple[str, str]]:
    """Returns what was checked, and how it differs, if it does."""
    expected = json.loads((SCRIPTS / "expected.json").read_text())
    prompts, columns, rows = expected["prompts"], expected["columns"], expected["completions"]
    asked = [[{"role": "user", "content": text}] for text in prompts]
    checked = []
    for call in expected["calls"]:
        scripts = [(SCRIPTS / call["script"]).with_suffix(extension) for extension in extensions]
        script = next((script for script in scripts if script.exists()), None)
        if script is None:
            continue
        shown = columns | ({"prompt": asked} if call["messages"] else {})
        label = f"{script.name}:{call['function']} {call['settings']}{' on messages' if call['messages'] else ''}"
        instance = component.Instance(engine, made)
        try:
            instance.configure(script, call["function"], call["settings"])
            found = instance.score(component.batch(expected["step"], prompts, shown, rows))
        except (component.Failed, wasmtime.WasmtimeError) as error:
            checked.append((label, str(error)))
            continue
        wrong = [at for at, pair in enumerate(zip(found, call["scores"], strict=True)) if not same(*pair)]
        differs = [f"completion {at} ({rows[at]['text']!r}) scored {found[at]}, not {call['scores'][at]}" for at in wrong]
        checked.append((label, "\n".join(differs[:1])))
    return checked


# Names that only frames of what runs the script have.
OF_GLUE = ("rlhost_interpreter", "interpreter.js", "call.js", "realm.js", "helpers.js", "interpreter.py")


def errors(engine, made, extensions) -> list[tuple[str, str]]:
    """Returns the same for scripts with mistakes."""
    wrong = json.loads((SCRIPTS / "wrong.json").read_text())
    rows = [{"prompt": 0, "text": text, "ids": []} for text in ("one", "two words", "three")]
    batch = component.batch(1, ["prompt"], {"answer": [1]}, rows)
    checked = []
    for extension in extensions:
        for case in wrong.get(extension, []):
            instance, said = component.Instance(engine, made), "nothing"
            script = {"name": "my_reward" + extension, "source": case["source"]}
            try:
                instance.call("plugin", "configure", json.dumps({"script": script, "settings": {}}))
                instance.score(batch)
            except (component.Failed, wasmtime.WasmtimeError) as error:
                said = str(error)
            is_right = case["says"] in said and not any(own in said for own in OF_GLUE)
            checked.append((f"{extension} that is wrong: {case['name']}", "" if is_right else said))
    return checked


MEMORY, TICKS = 300 << 20, 4


def answer(instance, batch) -> list[float | None] | str:
    try:
        return list(instance.score(batch))
    except (component.Failed, wasmtime.WasmtimeError) as error:
        return str(error)


def fits(found, expected) -> bool:
    """Whether an answer is what was expected: scores, or an error that says this."""
    return expected in found if isinstance(found, str) and isinstance(expected, str) else found == expected


def hostile(engine, made, extensions) -> list[tuple[str, str]]:
    """Returns the same for scripts that mean harm, each called with several batches. An empty text is any error."""
    cases = json.loads((SCRIPTS / "hostile.json").read_text())
    rows = [{"prompt": 0, "text": text, "ids": [1, 2]} for text in ("one", "two words", "three")]
    batch = component.batch(1, ["prompt"], {"answer": [1]}, rows)
    threading.Thread(target=lambda: [(time.sleep(0.5), engine.increment_epoch()) for _ in range(1 << 30)], daemon=True).start()
    checked = []
    for extension in extensions:
        for case in cases.get(extension, []):
            limits = {"memory": MEMORY, "ticks": TICKS} if case.get("limits") else {}
            instance, found = component.Instance(engine, made, **limits), []
            script = {"name": "my_reward" + extension, "source": case["source"]}
            try:
                instance.call("plugin", "configure", json.dumps({"script": script, "settings": {}}))
                found = [answer(instance, batch) for _ in case["expect"]]
            except (component.Failed, wasmtime.WasmtimeError) as error:
                found = [str(error)] * len(case["expect"])
            is_right = all(fits(*pair) for pair in zip(found, case["expect"], strict=True))
            clean = not any(own in said for said in found if isinstance(said, str) and "wasm trap" not in said for own in OF_GLUE)
            quiet = len(instance.logged) <= 1100 * len(found)
            checked.append((f"{extension} that is hostile: {case['name']}", "" if is_right and clean and quiet else f"{found}"[:1500]))
    return checked


COUNTING = {
    ".py": "STATE = 'seen'\nseen = {'é': 0}\ndef r(completions):\n    seen['é'] += 1\n    return [seen['é']] * len(completions)\n",
    ".js": "export const STATE = { é: 0 };\nexport const r = ({ completions }) => (STATE.é += 1, completions.map(() => STATE.é));\n",
}


def states(engine, made, extensions) -> list[tuple[str, str]]:
    """Returns the same for state that goes from an instance to another."""
    batch = component.batch(1, ["prompt"], {}, [{"prompt": 0, "text": "one", "ids": []}])
    checked = []
    for extension in COUNTING.keys() & set(extensions):
        script = {"name": "my_reward" + extension, "source": COUNTING[extension]}
        found, snapshot = [], None
        for _ in range(2):
            instance = component.Instance(engine, made)
            try:
                instance.call("plugin", "configure", json.dumps({"script": script, "settings": {}}))
                if snapshot is not None:
                    instance.call("state", "restore", snapshot, "r 1.0.0")
                found += instance.score(batch)
                snapshot = instance.call("state", "snapshot")
            except (component.Failed, wasmtime.WasmtimeError) as error:
                found.append(str(error))
        checked.append((f"state of {extension}", "" if found == [1.0, 2.0] else f"counted {found}"))
    return checked


def main(path: str, *extensions: str) -> int:
    engine = component.engine()
    made, _ = component.compiled(engine, Path(path))
    checked = [one for check in (scores, errors, states, hostile) for one in check(engine, made, extensions)]
    failed = [(label, wrong) for label, wrong in checked if wrong]
    for label, wrong in failed:
        print(f"FAILED {label}: {wrong}")
    print(f"{len(checked) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not checked else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
