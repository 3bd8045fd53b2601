#!/usr/bin/env python3
"""Drive the page of `rlhost ui` in Chromium, as a person would, on real runs of the built-in model.

    python -m venv venv && venv/bin/pip install playwright && venv/bin/playwright install chromium
    venv/bin/python tests/browser/check_ui.py target/debug/rlhost

A Chrome or Chromium that is there already is used instead of Playwright's; --chromium names another. --screenshots takes a folder. Three short
runs are compared; another is followed while it trains: a what-if, a swap, a roll-back, other settings, a refused version, a pause. A run with
hostile names and texts, 100,000 completions and 50,000 steps, an empty folder, a failed run, one that was stopped between two logged steps, a
resumed one among a dozen, a server that stops and a phone's width follow. The same page in a
file, of one run and of three, is opened without a server. Nothing may be logged on the browser's console, but for the requests that are
refused on purpose. --only runs one part alone.

The last output is check_ui.txt beside this file. Exits 1 if something is not as it should be.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from driven import PATIENCE, Check, Page, Ui
from playwright.sync_api import expect, sync_playwright
from recorded import recorded

REWARD = """def my_reward(completions, target: int = {target}, **columns):
    return [-abs(len(completion.split()) - target) for completion in completions]
"""
AVERAGE = "Average runs that differ in their seed only"
BROKEN = "def my_reward(completions, **columns):\n    return [1 / 0 for completion in completions]\n"
HOSTILE = "<img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script>\u202e'\"&"
# Three calls, the third of which goes back to the prompt: its tokens continue the second of the prompt's three.
WORDS = ["plan", " a", "tool:", " 4", "so", " 4", "again:", " check", " 4"]
TREE = {
    "prompt_ids": [1, 2, 3],
    "completion_ids": list(range(9)),
    "messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "plan a"}],
    "replies": [[2, 4], [6, 7]],
    "branches": [[6, 2]],
    "per_token": {"text": WORDS, "logp": [-0.1 * i for i in range(9)], "ratio": [0.8 + 0.05 * i for i in range(9)]},
}


def train(binary, folder, reward, steps, *arguments):
    common = ["--max-steps", str(steps), "--logging-steps", "1", "--output-dir", str(folder)]
    return [binary, "-q", "grpo", "--plugin", str(reward), *common, *arguments]


def compared(check, browser, ui, screenshots):
    """The table of runs, and three of them compared."""
    view = Page(browser, ui.url, screenshots=screenshots)
    page = view.go()
    expect(page.locator("table.runs tbody tr")).to_have_count(3)
    check("three runs are listed, finished", page.locator(".state.finished").count() == 3)
    expect(page.locator(".chart .u-over").first).to_be_visible()
    keys = page.locator(".chart").first.locator(".readout .key")
    expect(keys).to_have_count(2)
    colours = page.evaluate("Object.fromEntries([...document.querySelectorAll('tr.chosen')].map((row) => [row.dataset.run, row.querySelector('.swatch').style.getPropertyValue('--key')]))")
    check("runs that differ in their seed only are a line", page.get_by_label(AVERAGE).is_checked() and colours["one"] == colours["two"] != colours["three"], colours)
    zoom(page)
    page.get_by_role("button", name="Whole run").click()
    expect(keys).to_have_count(2)
    page.get_by_label(AVERAGE).uncheck()
    expect(keys).to_have_count(3)
    check("their rewards share a chart", True, page.locator(".chart h3").first.inner_text())
    settings = page.locator(".differences")
    expect(settings).to_contain_text("seed")
    check("the settings that differ are shown", "learning_rate" in settings.inner_text())
    page.get_by_label("Compare one").uncheck()
    expect(keys).to_have_count(2)
    page.get_by_label("Compare one").check()
    expect(keys).to_have_count(3)
    for axis in ("time", "tokens", "step"):
        page.get_by_label("Along").select_option(axis)
        page.wait_for_timeout(600)
        expect(keys).to_have_count(3)
    page.get_by_label("Smoothing").fill("0.8")
    page.wait_for_timeout(300)
    page.get_by_label("Smoothing").fill("0")
    check("axes and smoothing change", True)
    page.get_by_role("button", name="Reward", exact=True).click()
    check("a heading sorts", page.locator("th[aria-sort=descending]").count() == 1)
    page.get_by_label("Filter runs").fill("three")
    expect(page.locator("table.runs tbody tr")).to_have_count(1)
    page.get_by_label("Filter runs").fill("")
    view.picture("runs")
    plot = page.locator(".plot").first
    plot.focus()
    page.keyboard.press("ArrowLeft")
    check("arrow keys read a chart", "my_reward" not in (plot.get_attribute("aria-valuetext") or "") and plot.get_attribute("aria-valuetext") is not None)
    check("nothing is logged", view.logged == [], " ".join(view.logged))
    view.context.close()


def live(check, browser, binary, place, screenshots):
    """A run while it trains: what if, swap, roll back, settings, a version that is refused."""
    reward = place / "my_reward.py"
    reward.write_text(REWARD.format(target=20))
    (place / "better").mkdir()
    better, broken = place / "better/my_reward.py", place / "better/broken.py"
    better.write_text(REWARD.format(target=6))
    broken.write_text(BROKEN)
    runs = place / "live"
    runs.mkdir()
    with Ui(binary, runs, "--control") as ui:
        view = Page(browser, ui.url, screenshots=screenshots)
        page = view.go()
        expect(page.locator("table.runs")).to_contain_text("No run in this folder yet")
        check("an empty folder says how to begin", True)
        command = train(binary, runs / "run", reward, 100_000, "--plugin", "repetition_reward.wasm", "--log-completions", "all", "--save-strategy", "no")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            expect(page.locator("table.runs tbody tr a")).to_have_text("run")
            check("a run that begins appears", True)
            page.locator("table.runs tbody tr a").click()
            expect(page.locator(".state.running")).to_be_visible()
            expect(page.locator("#connection")).to_have_text("live")
            step = page.locator(".tile dd").first
            expect(page.locator(".chart .u-over").first).to_be_visible()
            first = step.inner_text()
            page.wait_for_function("first => document.querySelector('.tile dd').innerText !== first", arg=first)
            points = page.locator(".chart .at")
            check("curves and figures move as it trains", points.count() > 0)
            expect(page.locator(".newest .glance")).to_have_count(3)
            check("completions appear", True)
            page.get_by_role("tab", name="Rewards").click()
            card = page.locator(".plugin[aria-label=my_reward]")
            expect(card).to_be_visible()
            page.wait_for_timeout(3000)
            started = time.monotonic()
            card.locator("input[type=file]").set_input_files(str(better))
            expect(card.locator(".changed tbody tr").first).to_be_visible()
            check("a what-if shows what changes", card.locator(".whatif .tile").count() >= 3)
            print(f"     what-if: {time.monotonic() - started:.1f} s beside the run")
            view.picture("what-if")
            card.get_by_role("button", name="Swap it in").click()
            expect(page.locator(".toast.good")).to_contain_text("my_reward was swapped at step")
            check("the swap is done", True)
            expect(card.locator(".versions tr").filter(has_text="swapped")).to_have_count(1)
            typed = page.locator(".plugin[aria-label=repetition_reward]")
            typed.locator("summary", has_text="Settings").click()
            typed.get_by_label("weight", exact=True).fill("0.7")
            card.locator(".versions tr").filter(has_text="loaded").get_by_role("button", name="Roll back to this").click()
            expect(card.locator(".versions tr").filter(has_text="swapped")).to_have_count(2)
            check("the roll-back is done", True)
            check("what is typed for one plugin outlasts events of another", typed.get_by_label("weight", exact=True).input_value() == "0.7" and page.evaluate("document.activeElement.name") != "weight")
            card.locator("input[type=file]").set_input_files(str(broken))
            expect(card.locator(".whatif .bad")).to_be_visible()
            check("a broken version says why", "ZeroDivisionError" in card.locator(".whatif pre").inner_text())
            check("it can't be swapped in", card.get_by_role("button", name="Swap it in").is_disabled())
            card.locator("summary", has_text="Settings").click()
            card.get_by_label("target").fill("11")
            card.locator("form").get_by_role("button", name="What if").click()
            expect(card.locator(".changed tbody tr").first).to_be_visible()
            check("other settings are tried", "target" in card.locator(".whatif h3").first.inner_text())
            card.locator(".whatif").get_by_label("Close").click()
            card.get_by_role("button", name="Apply to the run").click()
            expect(card.locator(".versions tr").filter(has_text="swapped")).to_have_count(3)
            check("other settings are a version of their own", True)
            other = typed
            expect(other.get_by_label("weight", exact=True)).to_be_visible()
            check("a form has what the schema says", other.locator(".field small").count() > 1)
            view.picture("form")
            weight = other.get_by_label("weight", exact=True)
            weight.fill("1e9")
            other.get_by_role("button", name="Apply to the run").click()
            expect(page.locator(".toast.error").filter(has_text="at most 1e6")).to_be_visible()
            check("a refused weight says why, and stays to be corrected", weight.input_value() == "1e9")
            weight.fill("0.123")
            page.get_by_role("tab", name="Overview").click()
            page.get_by_role("tab", name="Rewards").click()
            other.locator("summary", has_text="Settings").click()
            weight.fill("0.123")
            other.get_by_role("button", name="Apply to the run").click()
            page.get_by_role("tab", name="Overview").click()
            expect(page.locator(".toast.good").filter(has_text="Changed at step")).to_be_visible()
            check("a box sets a reward's weight, and the answer is seen in any view", "0.123" in page.locator(".toast.good").filter(has_text="Changed at step").inner_text())
            page.get_by_role("tab", name="Rewards").click()
            card.locator(".versions tr").filter(has_text="loaded").get_by_role("button", name="Roll back to this").click()
            expect(card.locator(".versions tr").filter(has_text="swapped")).to_have_count(4)
            expect(card.locator(".versions tr").nth(1)).to_contain_text("target 20")
            check("a roll-back takes the settings, too", "target = 20" in (runs / "run/config.toml").read_text())
            page.get_by_role("tab", name="Overview").click()
            page.wait_for_timeout(4000)
            view.picture("live")
            steer = page.get_by_role("group", name="Steer the run")
            steer.get_by_role("button", name="Pause").click()
            expect(page.locator(".state.paused")).to_be_visible()
            waits = step.inner_text()
            page.wait_for_timeout(2500)
            check("a paused run takes no step", step.inner_text() == waits)
            steer.get_by_role("button", name="Save").click()
            expect(page.locator(".events .tag", has_text="checkpoint").first).to_be_visible()
            check("it saves meanwhile", list((runs / "run").glob("checkpoint-*")) != [])
            steer.get_by_role("button", name="Evaluate").click()
            expect(page.locator(".toast.error").last).to_contain_text("the run has no evaluation dataset")
            check("what can't be done is said", True)
            view.picture("paused")
            steer.get_by_role("button", name="Continue").click()
            expect(page.locator(".state.running")).to_be_visible()
            page.wait_for_function("waits => document.querySelector('.tile dd').innerText !== waits", arg=waits)
            check("it goes on", True)
            refused = [text for text in view.logged if "422" in text]
            check("nothing else is logged", len(view.logged) == len(refused) == 1, " ".join(view.logged))
            events = [json.loads(line) for line in (runs / "run/events.jsonl").read_text().splitlines()]
            swaps = [event for event in events if event["event"] == "plugin_swapped"]
            requested = [event["action"] for event in events if event["event"] == "requested"]
            check("the run recorded what was requested", requested == ["pause", "save", "evaluate", "continue"], requested)
            check("the run recorded four swaps, and who made them", len(swaps) == 4 and all("in the browser" in event["by"] for event in swaps), [event.get("by") for event in swaps])
            steer.get_by_role("button", name="Stop").click()
            steer.get_by_role("button", name="Really stop?").click()
            expect(page.locator(".state.stopped")).to_be_visible()
            check("it stops when that is requested twice", process.wait(60) == 3)
        finally:
            process.terminate()
            process.wait()
        expect(page.locator(".state.stopped, .state.finished")).to_be_visible()
        check("its end is seen", True)
        view.context.close()


def browsed(check, browser, ui, screenshots):
    """Completions: sorted, searched, selected, and a group side by side."""
    view = Page(browser, ui.url, screenshots=screenshots)
    page = view.go("#/run/one/completions")
    expect(page.locator(".item").first).to_be_visible()
    page.locator(".item").nth(2).click()
    expect(page.locator(".card")).to_have_count(8)
    check("a group is side by side", page.locator(".card.own").count() == 1)
    view.picture("completions")
    colour = page.get_by_label("Colour tokens by")
    for name in ("logp", "advantage", "trained"):
        colour.select_option(name)
        expect(page.locator(".legend .token").first).to_be_visible()
    colour.select_option("logp")
    card = page.locator(".card").first
    card.locator(".token").nth(1).hover()
    expect(card.locator(".readout")).to_contain_text("token 2 of")
    check("a token says how likely it was", "log-probability" in card.locator(".readout").inner_text())
    card.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    expect(card.locator(".readout")).to_contain_text("token 3 of")
    check("arrow keys go from token to token", True)
    shades = {page.evaluate("e => getComputedStyle(e).backgroundColor", token) for token in card.locator(".token").element_handles()}
    check("tokens have different colours", len(shades) > 1, len(shades))
    view.picture("tokens")
    colour.select_option("")
    expect(page.locator(".token")).to_have_count(0)
    page.get_by_label("Sort").select_option("best")
    page.wait_for_timeout(800)
    rewards = [float(text.replace("\u2212", "-")) for text in page.locator(".item .chip").all_inner_texts()]
    check("the best come first", rewards == sorted(rewards, reverse=True), f"{rewards[0]} to {rewards[-1]}")
    text = page.locator(".item .clamp").first.inner_text().split()[0]
    page.get_by_label("Search prompts and completions").fill(text)
    page.wait_for_timeout(1000)
    check("a search finds", page.locator(".item").count() > 0)
    page.get_by_label("Search prompts and completions").fill("no such text anywhere")
    expect(page.locator(".completions .empty")).to_have_text("No completion fits these filters.")
    page.get_by_label("Search prompts and completions").fill("")
    page.locator("summary", has_text="Filters").click()
    page.get_by_label("Step from").fill("3")
    page.get_by_label("Step to").fill("4")
    page.wait_for_timeout(1000)
    check("steps are selected", all("step 3" in text or "step 4" in text for text in page.locator(".item .facts").all_inner_texts()))
    page.get_by_role("button", name="Follow this prompt").click()
    page.wait_for_timeout(1000)
    rows = {text.split("prompt ")[1].split(" ")[0] for text in page.locator(".item .facts").all_inner_texts()}
    check("a prompt is followed through the run", len(rows) == 1, len(rows))
    page.go_back()
    page.wait_for_timeout(1000)
    check("Back goes to what was selected before", page.get_by_label("Step from").input_value() == "3" and page.get_by_label("Row of the dataset").input_value() == "")
    page.get_by_role("tab", name="Settings").click()
    page.locator("summary", has_text="Fork from a checkpoint").click()
    command = page.locator(".command")
    expect(command).to_contain_text("--resume-from-checkpoint")
    page.get_by_role("button", name="Change a setting").click()
    page.get_by_label("Setting", exact=True).fill("learning_rat")
    page.get_by_label("Value").fill("1e-5")
    expect(page.locator(".fork .bad")).to_contain_text('did you mean "learning_rate"')
    page.get_by_label("Setting", exact=True).fill("learning_rate")
    expect(command).to_contain_text("--set learning_rate=1e-5")
    check("a fork is one command, whose settings are judged", page.locator(".fork .bad").inner_text() == "")
    view.picture("fork")
    check("nothing is logged", view.logged == [], " ".join(view.logged))
    view.context.close()


def hostile(check, browser, binary, place, source, screenshots):
    """A run's folder of somebody else, with names and texts that are markup, and one that is huge."""
    runs = place / "hostile"
    name = "a <b>run</b> & more"
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text((source / "config.toml").read_text())
    events = [json.loads(line) for line in (source / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event.get("role") == "reward":
            event |= {"plugin": HOSTILE, "version": HOSTILE, "config": {HOSTILE: HOSTILE}}
    events.append({"event": HOSTILE, "step": 3, "text": HOSTILE, "time": "nonsense"})
    events.append({"event": "failed", "step": 5, "reason": HOSTILE})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    rows = [json.loads(line) for line in (source / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row | {HOSTILE: 1.5, f"rewards/{HOSTILE}/mean": 2}) + "\n" for row in rows))
    lines = [json.loads(line) for line in (source / "completions.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"prompt": HOSTILE, "completion": HOSTILE, "rewards": {HOSTILE: 1.0}, "extra": {HOSTILE: HOSTILE}}
        line["plugins"] = {HOSTILE: HOSTILE}
        line["messages"] = [{"role": HOSTILE, "content": HOSTILE, "tool_calls": [HOSTILE]}]
    (folder / "completions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "{\"step\": 9, garbage\n")
    tree = runs / "tree"
    tree.mkdir()
    for name_of_file in ("config.toml", "events.jsonl", "metrics.jsonl"):
        (tree / name_of_file).write_text((source / name_of_file).read_text())
    (tree / "completions.jsonl").write_text(json.dumps(lines[0] | TREE) + "\n")
    huge = runs / "huge"
    huge.mkdir()
    (huge / "config.toml").write_text((source / "config.toml").read_text())
    (huge / "events.jsonl").write_text((source / "events.jsonl").read_text())
    lines = [json.loads(line) for line in (source / "completions.jsonl").read_text().splitlines()]
    with (huge / "metrics.jsonl").open("w") as file:
        for step in range(1, 50_001):
            file.write(json.dumps(rows[step % len(rows)] | {"step": step, "time": step / 4}) + "\n")
    with (huge / "completions.jsonl").open("w") as file:
        for i in range(100_000):
            file.write(json.dumps(lines[i % len(lines)] | {"step": i // 2}) + "\n")
    with Ui(binary, runs, "--control") as ui:
        view = Page(browser, ui.url, screenshots=screenshots)
        page = view.go()
        expect(page.locator("table.runs tbody tr")).to_have_count(3)
        page.goto(ui.url + "#/run/tree/completions")
        page.locator(".item").first.click()
        branches = page.locator(".card .tree li")
        expect(branches).to_have_count(2)
        check("an agent's calls are a tree", "2 calls" in branches.first.inner_text() and "1 call" in branches.last.inner_text() and "again: check 4" in branches.last.inner_text())
        page.get_by_label("Colour tokens by").select_option("ratio")
        page.locator(".card .token").last.hover()
        expect(page.locator(".card .readout")).to_contain_text("ratio 1.2")
        check("ratios are shown", page.locator(".card .reply").count() == 2)
        view.picture("tree")
        page.goto(ui.url)
        page.get_by_role("link", name=name).click()
        for tab in ("Overview", "Charts", "Completions", "Rewards", "Events", "Settings"):
            page.get_by_role("tab", name=tab).click()
            page.wait_for_timeout(800)
        page.get_by_role("tab", name="Completions").click()
        page.locator(".item").first.click()
        expect(page.locator(".card").first).to_contain_text("<script>")
        check("hostile names and texts are text", page.evaluate("window.pwned") is None and page.locator("#main img, #main script, #main b:has-text('run')").count() == 0)
        check("hidden characters are shown", "\\u{202e}" in page.locator(".card").first.inner_text())
        page.get_by_role("tab", name="Overview").click()
        expect(page.locator(".notice.bad")).to_contain_text("The run failed.")
        check("a failed run says why", True)
        view.picture("hostile")
        begun = time.monotonic()
        page.goto(ui.url + "#/run/huge/completions")
        page.reload()
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        expect(page.locator(".item").first).to_be_visible()
        listed = time.monotonic() - begun
        expect(page.locator(".count")).to_have_text("100,000 completions")
        whole = time.monotonic() - begun
        page.get_by_role("tab", name="Charts").click()
        expect(page.locator(".chart .u-over").first).to_be_visible()
        page.wait_for_timeout(2000)
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
        check("100,000 completions and 50,000 steps: first paint below 1 s", paint < 1000, f"{paint:.0f} ms")
        check("memory of the page below 300 MB", heap < 300, f"{heap:.0f} MB")
        print(f"     first completions after {listed:.1f} s, all of them read after {whole:.1f} s")
        check("nothing is logged", view.logged == [], " ".join(view.logged))
        view.context.close()


def narrow(check, browser, ui, screenshots):
    """A phone's width, in the dark."""
    view = Page(browser, ui.url, width=390, height=844, screenshots=screenshots, scheme="dark")
    places = {"runs": "", "overview": "#/run/one/overview", "completions": "#/run/one/completions", "rewards": "#/run/one/rewards", "events": "#/run/one/events", "settings": "#/run/one/settings"}
    for name, place in places.items():
        page = view.go(place)
        page.wait_for_timeout(1200)
        check(f"{name} fits a phone", view.width() == 0)
        view.picture(f"phone-{name}")
    page = view.go("#/run/one/rewards")
    expect(page.locator(".scores").first).to_be_visible()
    torn = page.evaluate("[...document.querySelectorAll('.scores > div')].filter((pair) => pair.children[0].getBoundingClientRect().top > pair.children[1].getBoundingClientRect().bottom - 4 || pair.children[1].getBoundingClientRect().top > pair.children[0].getBoundingClientRect().bottom - 4).length")
    check("no label is torn from its value", torn == 0 and page.locator(".scores > div").count() > 3, torn)
    page = view.go("#/run/one/completions")
    expect(page.locator(".tabs .badge")).to_be_visible()
    page.wait_for_timeout(500)
    cut = page.evaluate("document.querySelector('.tabs .badge').getBoundingClientRect().right - document.querySelector('.tabs').getBoundingClientRect().right")
    check("the chosen tab is whole", cut <= 0, cut)
    page.locator(".item").first.click()
    expect(page.locator(".card").first).to_be_visible()
    page.get_by_role("button", name="List").click()
    expect(page.locator(".item").first).to_be_visible()
    check("a completion opens and closes", view.width() == 0)
    check("nothing is logged", view.logged == [], " ".join(view.logged))
    view.context.close()


def frozen(check, browser, binary, place, runs, screenshots):
    """The page in a file: of one run, whose reward was swapped, and of three."""
    report = runs / "one/report.html"
    subprocess.run([binary, "report", str(runs / "one")], check=True, stdout=subprocess.DEVNULL)
    several = place / "several.html"
    subprocess.run([binary, "report", *(str(runs / name) for name in ("one", "two", "three")), "--output", str(several)], check=True, stdout=subprocess.DEVNULL)
    check("files are small enough to be mailed", max(report.stat().st_size, several.stat().st_size) < 6e6, f"{report.stat().st_size / 1e6:.1f} and {several.stat().st_size / 1e6:.1f} MB")
    view = Page(browser, report.as_uri(), screenshots=screenshots)
    page = view.go()
    expect(page.locator("h1")).to_have_text("one")
    expect(page.locator(".chart .u-over").first).to_be_visible()
    check("a file's charts are drawn", page.locator(".chart canvas").count() >= 3, page.locator(".chart canvas").count())
    check("it says when it was written, and by what", "Written by rlhost" in page.locator("#top").inner_text())
    check("nothing in it is live", page.locator("#connection.live, .steer:visible, .drop, .pill").count() == 0)
    expect(page.locator(".keys .tile").first).to_contain_text("from")
    check("key metrics have a first and a last value", page.locator(".keys .tile").count() >= 3, page.locator(".keys .tile").count())
    expect(page.locator(".about")).to_contain_text("finished after step 12")
    view.picture("frozen-overview", full_page=True)
    for tab in ("Charts", "Metrics", "Rewards", "Events", "Settings"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(400)
        view.picture(f"frozen-{tab.lower()}", full_page=True)
    page.get_by_role("tab", name="Charts").click()
    page.get_by_label("Along").select_option("tokens")
    page.wait_for_timeout(300)
    page.get_by_label("Along").select_option("step")
    page.wait_for_timeout(600)
    zoom(page)
    expect(page.get_by_role("button", name="Whole run")).to_be_visible()
    check("a chart of a file zooms", True)
    page.get_by_role("button", name="Whole run").click()
    page.get_by_role("tab", name="Metrics").click()
    page.get_by_label("Search metrics").fill("completions/")
    names = page.locator("table.metrics tbody th").all_inner_texts()
    check("metrics are searched", names != [] and all("completions/" in name for name in names), len(names))
    page.get_by_role("tab", name="Completions").click()
    expect(page.locator(".item")).to_have_count(40)
    check("all completions of a short run are there", page.locator(".count").inner_text() == "384 completions", page.locator(".count").inner_text())
    page.locator(".item").nth(2).click()
    expect(page.locator(".card")).to_have_count(8)
    check("a completion opens with its group", page.locator(".card.own").count() == 1)
    view.picture("frozen-completions")
    # The longest word: of one that is in many completions, the page counts those of its first screen alone until it is scrolled.
    word = max(page.locator(".card.own .text").inner_text().split(), key=len)
    page.get_by_label("Search prompts and completions").fill(word)
    page.wait_for_timeout(600)
    check("a search finds", "found in" in page.locator(".count").inner_text(), page.locator(".count").inner_text())
    page.get_by_label("Search prompts and completions").fill("")
    page.get_by_label("Sort").select_option("best")
    page.wait_for_timeout(600)
    rewards = [float(text.replace("\u2212", "-")) for text in page.locator(".item .chip").all_inner_texts()]
    check("the best come first", rewards == sorted(rewards, reverse=True), f"{rewards[0]} to {rewards[-1]}")
    check("nothing is logged", view.logged == [], " ".join(view.logged))
    view.context.close()
    compared_in_file(check, browser, several, screenshots)
    for name, file, place in (("overview", report, ""), ("completions", report, "#/run/one/completions"), ("metrics", report, "#/run/one/metrics"), ("comparison", several, "")):
        view = Page(browser, file.as_uri(), width=390, height=844, screenshots=screenshots, scheme="dark")
        view.go(place).wait_for_timeout(800)
        check(f"a file's {name} fits a phone", view.width() == 0 and view.logged == [], " ".join(view.logged))
        view.picture(f"phone-frozen-{name}")
        view.context.close()


def compared_in_file(check, browser, several, screenshots):
    """Three runs in one file."""
    view = Page(browser, several.as_uri(), screenshots=screenshots)
    page = view.go()
    expect(page.locator("table.runs tbody tr")).to_have_count(3)
    expect(page.locator(".chart .u-over").first).to_be_visible()
    keys = page.locator(".chart").first.locator(".readout .key")
    expect(keys).to_have_count(2)
    check("a file averages runs that differ in their seed only", page.get_by_label(AVERAGE).is_checked())
    check("the settings that differ are shown", "learning_rate" in page.locator(".differences").inner_text())
    groups = page.locator("table.groups tbody tr")
    expect(groups).to_have_count(2)
    check("runs that differ in their seed are a group with a spread", "\u00b1" in groups.first.inner_text() and "best" in groups.first.inner_text())
    page.wait_for_timeout(300)
    view.picture("frozen-comparison", full_page=True)
    page.get_by_label(AVERAGE).uncheck()
    expect(keys).to_have_count(3)
    check("three runs share a file's charts", True)
    page.get_by_role("link", name="two", exact=True).click()
    expect(page.locator("h1")).to_have_text("two")
    page.get_by_role("tab", name="Completions").click()
    expect(page.locator(".item").first).to_be_visible()
    check("each run has its own view", True)
    check("nothing is logged", view.logged == [], " ".join(view.logged))
    view.context.close()


def zoom(page):
    """Drags over the first chart."""
    plot = page.locator(".chart .u-over").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 60)
    page.mouse.up()


def crowded(check, browser, binary, place, source, screenshots):
    """A dozen runs, one of which was resumed: colours, the axis of time, zooms, focus; a malformed address; and a server that stops."""
    runs = place / "crowded"
    for i in range(11):
        shutil.copytree(source, runs / f"learning_rate=3e-5,copy={i:02}")
    resumed = runs / "resumed"
    subprocess.run(train(binary, resumed, "tldr_length_reward.wasm", 6, "--save-steps", "4"), check=True, stdout=subprocess.DEVNULL)
    subprocess.run([binary, "-q", "resume", str(resumed), "--max-steps", "10"], check=True, stdout=subprocess.DEVNULL)
    # As if each process had worked for a quarter of an hour.
    rows = [json.loads(line) for line in (resumed / "metrics.jsonl").read_text().splitlines()]
    (resumed / "metrics.jsonl").write_text("".join(json.dumps(row | {"time": row["time"] * 200}) + "\n" for row in rows))
    with Ui(binary, runs, "--control") as ui:
        view = Page(browser, ui.url, screenshots=screenshots)
        page = view.go()
        expect(page.locator("table.runs tbody tr")).to_have_count(12)
        boxes = page.locator("td.choose input")
        for i in range(12):
            boxes.nth(i).check() if i < 8 else boxes.nth(i).click()
        check("as many runs can be chosen as there are colours, and the page says so", page.locator("tr.chosen").count() == 8 and "8 runs can be compared" in page.locator(".toast").last.inner_text())
        heading = page.get_by_role("button", name="Steps/s")
        heading.focus()
        page.wait_for_timeout(4500)
        check("a heading keeps the focus", page.evaluate("document.activeElement.textContent").startswith("Steps/s"))
        page.keyboard.press("Enter")
        check("and keeps it when it sorts", page.evaluate("document.activeElement.textContent").startswith("Steps/s") and page.locator("th[aria-sort=descending]").inner_text().startswith("Steps/s"))
        for place_of_charts in ("", "#/run/resumed/overview", "#/run/resumed/charts"):
            view.go(place_of_charts)
            if place_of_charts == "":
                expect(page.locator(".caption", has_text="Each line is the mean")).to_be_visible()
            expect(page.locator(".chart .u-over").first).to_be_visible()
            page.wait_for_timeout(500)
            zoom(page)
            page.get_by_role("button", name="Whole run").click()
            expect(page.get_by_role("button", name="Whole run")).to_be_hidden()
        check("every zoom has a way back", True)
        view.go("#/run/resumed/overview")
        page.get_by_label("Along").select_option("time")
        page.wait_for_timeout(800)
        view.picture("time")
        times = json.load(urlopen(f"{ui.url}api/series?run=resumed&x=time"))["runs"]["resumed"]["x"]
        check("time goes on where a run resumes", times == sorted(times) and len(times) == 10, [round(time) for time in times])
        took, duration = [float(text.split(" s")[0].split()[-1]) for text in (page.locator(".tile", has_text="Took").inner_text(), page.locator(".about").inner_text().split("Duration")[1])]
        check("the time that it took is the same everywhere", abs(took - duration) < 0.06, f"{took} and {duration} s")
        for width in (1400, 390):
            names = Page(browser, ui.url, width=width, screenshots=screenshots)
            names.go()
            expect(names.page.locator("table.runs tbody tr")).to_have_count(12)
            names.page.locator("summary", has_text="Values").click()
            expect(names.page.locator("table.groups tbody tr").first).to_be_visible()
            torn = names.torn(".groups tbody span.outside, .differences tbody span.outside")
            check(f"no name of a comparison is torn at {width} pixels", torn == [] and names.width() == 0, torn)
            names.picture(f"names-{width}", full_page=True)
            names.context.close()
        view.go()
        expect(page.locator(".chart .u-over").first).to_be_visible()
        page.get_by_label("Filter runs").fill("resumed")
        expect(page.locator("table.runs tbody tr")).to_have_count(1)
        for box in page.locator("td.choose input").all():
            box.check() if page.locator("tr.chosen").count() < 8 else None
        page.wait_for_timeout(800)
        view.picture("time-compared")
        view.go("#/run/%")
        expect(page.locator("#main .bad")).to_contain_text("there is no run")
        check("a malformed address says that there is no such run", True)
        check("nothing else is logged", all("404" in text for text in view.logged), " ".join(view.logged))
        view.go("#/run/resumed/rewards")
        expect(page.locator(".plugin").first).to_be_visible()
        view.logged.clear()
    expect(page.locator("#gone")).to_contain_text("open the address that it prints then")
    page.wait_for_timeout(12_000)
    check("a server that stops is one message", page.locator("#gone:visible").count() == 1 and page.locator(".toast").count() == 0, page.locator(".toast").count())
    check("nothing is said of what the run does now", "when last seen" in page.locator("header.run .state").inner_text() and page.locator(".plugin button[data-acts]:enabled").count() == 0)
    view.picture("gone")
    view.context.close()


def guarded(check, ui):
    """Requests that are refused."""
    token = ui.url.split("/")[3]
    check("no token, no page", ui.status("") == ui.status("api/runs") == ui.status(f"{token[:-1]}0/api/runs" if token[-1] != "0" else f"{token[:-1]}1/") == 403)
    check("another host's name is refused", ui.status(f"{token}/", Host="evil.example") == 403)
    check("paths lead nowhere", ui.status(f"{token}/../../etc/passwd") in (403, 404) and ui.status(f"{token}/api/run?run=..%2F..") == 404)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rlhost")
    parser.add_argument("--chromium", default=shutil.which("google-chrome") or shutil.which("chromium"))
    parser.add_argument("--screenshots")
    parser.add_argument("--only", choices=["frozen", "crowded", "recorded", "live"])
    arguments = parser.parse_args()
    expect.set_options(timeout=PATIENCE)
    binary, check = str(Path(arguments.rlhost).resolve()), Check()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        place = Path(place)
        runs, reward = place / "runs", place / "runs.reward.py"
        reward.write_text(REWARD.format(target=20).replace("my_reward", "runs_reward"))
        for name, seed, rate in (("one", 1, "3e-5"), ("two", 2, "3e-5"), ("three", 3, "1e-4")):
            command = train(binary, runs / name, "tldr_length_reward.wasm", 12, "--seed", str(seed), "--learning-rate", rate)
            subprocess.run([*command, "--log-completions", "all"], check=True, stdout=subprocess.DEVNULL)
        launch = {"executable_path": arguments.chromium} if arguments.chromium else {}
        browser = playwright.chromium.launch(args=["--no-sandbox", "--enable-precise-memory-info"], **launch)
        alone = {
            "frozen": lambda: frozen(check, browser, binary, place, runs, arguments.screenshots),
            "crowded": lambda: crowded(check, browser, binary, place, runs / "one", arguments.screenshots),
            "recorded": lambda: recorded(check, browser, binary, place, runs / "one", arguments.screenshots),
            "live": lambda: live(check, browser, binary, place, arguments.screenshots),
        }
        if arguments.only:
            alone[arguments.only]()
            browser.close()
            sys.exit(check.failed)
        frozen(check, browser, binary, place, runs, arguments.screenshots)
        with Ui(binary, runs) as ui:
            guarded(check, ui)
            compared(check, browser, ui, arguments.screenshots)
            browsed(check, browser, ui, arguments.screenshots)
            narrow(check, browser, ui, arguments.screenshots)
        crowded(check, browser, binary, place, runs / "one", arguments.screenshots)
        recorded(check, browser, binary, place, runs / "one", arguments.screenshots)
        hostile(check, browser, binary, place, runs / "one", arguments.screenshots)
        live(check, browser, binary, place, arguments.screenshots)
        browser.close()
    sys.exit(check.failed)


if __name__ == "__main__":
    main()
