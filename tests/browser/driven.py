"""A running `rlhost ui`, its page in a browser, and what is said of them."""

import subprocess
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

PATIENCE = 60_000


class Check:
    """Says of each thing whether it is as it should be, and remembers whether one was not."""

    def __init__(self):
        self.failed = False

    def __call__(self, what, good, figure=""):
        self.failed |= not good
        print(f"{'ok  ' if good else 'FAIL'} {what}{f': {figure}' if figure != '' else ''}", flush=True)


class Ui:
    """A running `rlhost ui`."""

    def __init__(self, binary, folder, *arguments):
        command = [binary, "ui", str(folder), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def status(self, path, **headers):
        """The status of a request to a path below the server's root."""
        root = "/".join(self.url.split("/")[:3])
        try:
            return urlopen(Request(f"{root}/{path}", headers=headers)).status
        except HTTPError as error:
            return error.code


class Page:
    """A page, with what it logs."""

    def __init__(self, browser, url, width=1400, height=900, screenshots=None, scheme="light"):
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce")
        self.page, self.url, self.logged, self.screenshots = self.context.new_page(), url, [], screenshots
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.logged.append(m.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))

    def go(self, place=""):
        self.page.goto(self.url + place)
        return self.page

    def picture(self, name, **options):
        if self.screenshots:
            self.page.wait_for_timeout(400)
            self.page.screenshot(path=str(Path(self.screenshots) / f"{name}.png"), **options)

    def width(self):
        return self.page.evaluate("Math.max(0, document.documentElement.scrollWidth - innerWidth)")

    def torn(self, selector):
        """Names without a space in them that take more than one line."""
        script = """selector => [...document.querySelectorAll(selector)].filter((name) => {
            const range = document.createRange();
            range.selectNodeContents(name);
            const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
            return !name.textContent.trim().includes(" ") && lines.size > 1;
        }).map((name) => name.textContent)"""
        return self.page.evaluate(script, selector)
