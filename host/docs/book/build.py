"""Builds the book into target/book and checks that every link in it leads somewhere. Needs mdbook on PATH."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[3]
BOOK = ROOT / "target/book"


class Page(HTMLParser):
    """The links of a page, and what can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.update(value for value in [attributes.get("id"), attributes.get("name")] if value)
        link = attributes.get("href" if tag == "a" else "src")
        if link and tag in ("a", "img", "script"):
            self.links.append(link)


def broken(pages):
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target = (path.parent / unquote(file)).resolve() if file else path
            if not target.exists():
                yield f"{path.relative_to(BOOK)}: {link} leads to no file"
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                yield f"{path.relative_to(BOOK)}: {link} leads to nothing of that page"


def main():
    subprocess.run(["mdbook", "build", str(ROOT / "host/docs")], check=True)
    # The page of everything for printing repeats the others, and the page for what is not found may be anywhere.
    files = [file for file in BOOK.rglob("*.html") if file.name not in ("print.html", "404.html", "toc.html")]
    pages = {file: Page(file.read_text()) for file in files}
    errors = sorted(broken(pages))
    if errors:
        sys.exit("broken links in the book:\n  " + "\n  ".join(errors))
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, none broken")


main()
