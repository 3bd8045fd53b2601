#!/usr/bin/env python3
"""Make the pictures of the tutorial "Change your mind at step 31", by following it in Chromium.

    python -m venv venv && venv/bin/pip install playwright
    venv/bin/python host/docs/tutorials/pictures.py target/debug/rlhost

A Chrome or Chromium that is there already is used; --chromium names another.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

REWARD = """def my_reward(completions, target: int = {target}, **columns):
    return [-abs(len(completion.split()) - target) for completion in completions]
"""
PATIENCE = 120_000
BEGIN, LAST = 31, 100


def last_step(run):
    """The last step that the run has logged."""
    try:
        rows = (run / "metrics.jsonl").read_text().splitlines()
        return json.loads(rows[-1])["step"]
    except (OSError, IndexError, ValueError):
        return 0


def wait_for(run, step):
    while last_step(run) < step:
        time.sleep(0.02)


class Camera:
    """Takes pictures of a page, or of a part of it."""

    def __init__(self, browser, url, folder, width=1240, height=860):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light", reduced_motion="reduce")
        self.page, self.folder = context.new_page(), folder
        self.page.set_default_timeout(PATIENCE)
        self.page.goto(url)

    def take(self, name, **options):
        self.page.wait_for_timeout(500)
        self.page.screenshot(path=str(self.folder / f"{name}.png"), **options)

    def take_part(self, name, locator, width=1240, height=700):
        """Takes the beginning of a part of the page."""
        self.page.wait_for_timeout(500)
        locator.evaluate("element => scrollTo(0, element.getBoundingClientRect().top + scrollY - 60)")
        box = locator.bounding_box()
        clip = {"x": box["x"], "y": box["y"], "width": min(box["width"], width), "height": min(box["height"], height)}
        self.page.screenshot(path=str(self.folder / f"{name}.png"), clip=clip)


def follow(binary, place, browser, folder):
    """Follows the tutorial. The pictures are taken at the places that it describes."""
    reward, better, run = place / "my_reward.py", place / "shorter" / "my_reward.py", place / "runs" / "posts"
    better.parent.mkdir()
    run.parent.mkdir()
    reward.write_text(REWARD.format(target=20))
    better.write_text(REWARD.format(target=8))
    common = ["--max-steps", str(LAST), "--save-steps", "20", "--logging-steps", "1", "--log-completions", "all"]
    command = [binary, "-q", "--plugin", reward.name, "--plugin", "repetition_reward.wasm", "--output-dir", "runs/posts", *common]
    training = subprocess.Popen(command, cwd=place)
    ui = subprocess.Popen([binary, "ui", "runs", "--control"], cwd=place, stdout=subprocess.PIPE, text=True)
    try:
        url = ui.stdout.readline().split()[0]
        wait_for(run, BEGIN - 1)
        subprocess.run([binary, "control", str(run), "pause"], check=True)
        camera = Camera(browser, f"{url}#/run/posts", folder)
        page = camera.page
        expect(page.locator(".state.paused")).to_be_visible()
        expect(page.locator(".newest .glance")).to_have_count(3)
        camera.take("mind-paused")
        page.get_by_role("tab", name="Completions").click()
        page.get_by_label("Sort").select_option("best")
        expect(page.locator(".item .facts").first).to_contain_text("step 0")
        page.locator(".item").first.click()
        expect(page.locator(".card.own")).to_be_visible()
        page.get_by_label("Colour tokens by").select_option("logp")
        camera.take("mind-completions")
        page.get_by_role("tab", name="Rewards").click()
        card = page.locator(".plugin[aria-label=my_reward]")
        card.locator("input[type=file]").set_input_files(str(better))
        expect(card.locator(".changed tbody tr").first).to_be_visible()
        camera.take_part("mind-what-if", card, height=660)
        card.get_by_role("button", name="Swap it in").click()
        expect(page.locator(".toast.good")).to_contain_text("was swapped at step")
        page.get_by_role("group", name="Steer the run").get_by_role("button", name="Continue").click()
        wait_for(run, LAST)
        training.wait(120)
        page.get_by_role("tab", name="Overview").click()
        expect(page.locator(".state.finished")).to_be_visible()
        page.reload()
        expect(page.locator(".chart .u-over").first).to_be_visible()
        camera.take("mind-swapped")
        page.get_by_role("tab", name="Settings").click()
        page.locator("summary", has_text="Fork from a checkpoint").click()
        page.get_by_label("Checkpoint").select_option("20")
        page.get_by_role("button", name="Change a setting").click()
        page.get_by_label("Setting", exact=True).fill("plugin.my_reward.config.target")
        page.get_by_label("Value").fill("12")
        expect(page.locator(".command")).to_contain_text("target=12")
        camera.take_part("mind-fork", page.locator("details", has=page.locator(".fork")), width=640)
    finally:
        for process in (training, ui):
            process.terminate()
            process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rlhost")
    parser.add_argument("--chromium", default=shutil.which("google-chrome") or shutil.which("chromium"))
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    expect.set_options(timeout=PATIENCE)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as playwright:
        launch = {"executable_path": arguments.chromium} if arguments.chromium else {}
        browser = playwright.chromium.launch(args=["--no-sandbox"], **launch)
        follow(str(Path(arguments.rlhost).resolve()), Path(place), browser, arguments.folder)
        browser.close()


if __name__ == "__main__":
    main()
