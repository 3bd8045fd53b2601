"""The page of runs as their files say, which short runs do not write."""

import json

from driven import Page, Ui
from playwright.sync_api import expect


TRACEBACK = """plugin {0}, score in step {1}: Traceback (most recent call last):
  File "{0}.py", line 2, in {0}
    1 / 0
    ~~^~~
ZeroDivisionError: division by zero"""
LONG = "eval_rewards/a_reward_with_a_name_that_is_rather_long"
INTERVALS = "95% confidence intervals"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(run, source, events, rows):
    """Writes a run's files, with the configuration of another."""
    run.mkdir(parents=True)
    (run / "config.toml").write_text((source / "config.toml").read_text())
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["step"])))
    (run / "completions.jsonl").touch()


def write_runs(runs, source):
    """Writes a run that logs every third step, with a swap, a version loaded again and errors, and one of SFT. Returns the reward's name."""
    begun = [event for event in lines(source / "events.jsonl") if event["event"] in ("started", "plugin_loaded")]
    loaded = next(event for event in begun if event.get("role") == "reward")
    name, settings, other = loaded["plugin"], loaded["settings"], "ab" * 32
    swap = {key: loaded[key] for key in ("plugin", "version", "config")} | {"event": "plugin_swapped", "to": other, "from_settings": settings, "to_settings": settings}
    error = {"event": "plugin_error", "plugin": name, "rows": [0, 1]}
    events = [
        swap | {"from": loaded["hash"], "step": 4},
        {"event": "plugin_refused", "plugin": name, "hash": "cd" * 32, "step": 5, "reason": "no number"},
        swap | {"from": other, "step": 8},
        *(error | {"step": step, "reason": TRACEBACK.format(name, step + 1)} for step in (8, 9, 10)),
        {"event": "stopped", "step": 11, "seconds": 5},
    ]
    rows = [{key: value for key, value in row.items() if key != "versions"} for row in lines(source / "metrics.jsonl") if row["step"] in (3, 6, 9)]
    means = {f"{LONG}/mean": -123.456, f"{LONG}/stderr": 0.012345}
    evaluations = [{"step": step, "eval_reward": -step, "eval_reward/stderr": 0.5} | means for step in (6, 9)]
    write(runs / "swapped", source, begun + events, rows + evaluations)
    write(runs / "sft", source, [*begun, {"event": "finished", "step": 9, "seconds": 5}], [*rows, {"step": 9, "eval_loss": 2.5}])
    return name


def recorded(check, browser, binary, place, source, screenshots):
    """Two runs as their files say, and both compared; on a phone, too."""
    name = write_runs(place / "recorded", source)
    with Ui(binary, place / "recorded") as ui:
        view = Page(browser, ui.url, screenshots=screenshots)
        overview(check, view, name)
        versions_and_settings(check, view, name)
        sft(check, view)
        compared(check, view)
        check("nothing is logged", view.logged == [], " ".join(view.logged))
        view.context.close()
        narrow(check, Page(browser, ui.url, width=390, height=844, screenshots=screenshots))


def overview(check, view, name):
    page = view.go("#/run/swapped/overview")
    expect(page.locator(".about")).to_contain_text("stopped after step 11")
    expect(page.locator(".tile dd").first).to_have_text("11of 12")
    check("the step is that of the last event, as everywhere on the page", "11 of 12" in page.locator(".about").inner_text())
    eras = page.locator(".eras").first
    expect(eras).to_be_visible()
    check("a version's colour is of the steps after its swap, logged or not", eras.inner_text().split("\n") == ["to step 4", "from step 5"], " ".join(eras.inner_text().split()))
    failed = page.locator("aside .event", has_text="plugin failed")
    expect(failed).to_have_count(1)
    text = failed.inner_text()
    check("an error that repeats is one of the newest events", "\u00d7 3" in text)
    check("a traceback is named by its error", f"{name}: ZeroDivisionError: division by zero" in text and "Traceback" not in text)
    tags = page.locator("aside .event .tag").all_inner_texts()
    check("what happened last comes first", tags[:2] == ["stopped", "plugin failed \u00d7 3"], tags)
    check("no heading stands over no completions", page.get_by_role("heading", name="Newest completions").count() == 0)
    check("intervals of evaluations are explained", INTERVALS in page.locator("#panel").inner_text())
    view.picture("recorded")


def versions_and_settings(check, view, name):
    page = view.page
    page.get_by_role("tab", name="Rewards").click()
    card = page.locator(f".plugin[aria-label={name}]")
    expect(card).to_contain_text("declared version")
    tags = card.locator(".tag.refused").all_inner_texts()
    check("a refused version is called that everywhere", tags == ["refused"], tags)
    cells = "[...document.querySelectorAll('.in-use tbody tr > *')]"
    check("names of versions are level with the rest", page.evaluate(f"{cells}.length > 0 && {cells}.every((cell) => getComputedStyle(cell).verticalAlign === 'middle')"))
    page.get_by_role("tab", name="Settings").click()
    expect(page.locator(".config .own").first).to_be_visible()
    own = page.locator(".config .own th").all_inner_texts()
    inner = [key for key in own if any(part in key for part in (".limits.", ".config.", ".on_error"))]
    check("settings that were set are marked, and no others", f"plugin.{name}.path" in own and "max_steps" in own and inner == [], inner)


def sft(check, view):
    page = view.go("#/run/sft/overview")
    expect(page.locator("h1")).to_have_text("sft")
    expect(page.locator("table.metrics")).to_contain_text("eval_loss")
    check("evaluations without intervals promise none", INTERVALS not in page.locator("#panel").inner_text())
    page.get_by_role("tab", name="Completions").click()
    expect(page.locator(".completions .empty")).to_be_visible()
    text = page.locator(".completions .empty").inner_text()
    check("a run that has ended has no completions to wait for", "yet" not in text, text)


def compared(check, view):
    page = view.go()
    plot = page.locator(".plot").first
    expect(plot.locator(".u-over")).to_be_visible()
    plot.focus()
    page.keyboard.press("Home")
    places = set()
    for _ in range(8):
        places.add(float(plot.get_attribute("aria-valuenow")))
        page.keyboard.press("ArrowRight")
    # A break is a point between two others.
    check("curves break at a swap, not where its version is loaded again", sorted(places) == [3, 4.5, 6, 9], sorted(places))


def narrow(check, view):
    page = view.go("#/run/swapped/overview")
    expect(page.locator("table.metrics tbody tr", has_text=LONG)).to_be_visible()
    inside = "[...document.querySelectorAll('table.metrics td')].every((cell) => cell.getBoundingClientRect().right <= innerWidth)"
    check("evaluations fit a phone", view.width() == 0 and page.evaluate(inside))
    torn = [text for text in view.torn("table.metrics tbody th") if text != LONG]
    check("their names are whole", torn == [], torn)
    view.picture("phone-evaluations", full_page=True)
    page = view.go("#/run/swapped/rewards")
    expect(page.locator(".in-use")).to_be_visible()
    lines = page.evaluate("[...document.querySelectorAll('.in-use tbody th')].filter((name) => getComputedStyle(name).borderBottomWidth !== '0px').length")
    check("names of versions have no line of their own", lines == 0, lines)
    view.picture("phone-versions", full_page=True)
    view.context.close()
