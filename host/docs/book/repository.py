"""The book's preprocessor: adds the repository's other pages, and checks and rewrites links.

mdBook calls it with a book on standard input. Links in the sources are those of the repository, so that they work where people read
it. A link to a page of the book becomes one within the book. A link to another file leads to the repository's site if RLHOST_REPOSITORY
says where that is (as in https://example.org/rlhost/blob/main), and becomes plain text otherwise. A link that leads nowhere is an error.
"""

import json
import os
import re
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[3]
DOCS = "host/docs"

# Pages elsewhere in the repository: title, file, and its place in the book.
OTHERS = {
    "Reference": [
        ("Built-in plugins", "plugins/README.md", "reference/plugins.md"),
        ("The Rust SDK", "plugin-sdk/README.md", "reference/sdk.md"),
    ],
    "The project": [
        ("Overview", "README.md", "project/overview.md"),
        ("Architecture", "host/ARCHITECTURE.md", "project/architecture.md"),
        ("Security", "host/SECURITY.md", "project/security.md"),
        ("Benchmarks", "host/benches/README.md", "project/benchmarks.md"),
        ("Contributing", "CONTRIBUTING.md", "project/contributing.md"),
        ("Changes", "CHANGELOG.md", "project/changes.md"),
    ],
    "Examples": [
        ("The built-in model", "examples/builtin-model/README.md", "examples/builtin-model.md"),
        ("Hot swap", "examples/hot-swap/README.md", "examples/hot-swap.md"),
        ("Nine languages", "examples/languages/README.md", "examples/languages.md"),
        ("Rewards that run code", "examples/code-rewards/README.md", "examples/code-rewards.md"),
        ("A reward model", "examples/reward-model/README.md", "examples/reward-model.md"),
        ("Guess a number", "examples/episodes/README.md", "examples/episodes.md"),
        ("OpenEnv", "examples/openenv/README.md", "examples/openenv.md"),
        ("Stories", "examples/stories/README.md", "examples/stories.md"),
        ("On a cluster", "examples/cluster/README.md", "examples/cluster.md"),
    ],
}

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def chapters(items):
    for item in items:
        if "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def in_book(book):
    """The book's place of each page of the repository that it has."""
    places = {f"{DOCS}/{chapter['source_path']}": chapter["path"] for chapter in chapters(book) if chapter.get("source_path")}
    places.update({file: place for pages in OTHERS.values() for _, file, place in pages})
    return places


def headings(text):
    """The anchors of a page's headings, as mdBook and GitHub make them."""
    seen, anchors, fenced = {}, set(), False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if fenced or not re.match(r"#{1,6} ", line):
            continue
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip())
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors


def moved(target, source, place, places, errors):
    """Where a link of the file `source`, whose place in the book is `place`, leads; none if to nothing in the book."""
    path, _, anchor = target.partition("#")
    file = os.path.normpath(PurePosixPath(source).parent / path) if path else source
    if not (ROOT / file).exists():
        errors.append(f"{source}: {target} leads to no file")
        return None
    if anchor and file.endswith(".md") and anchor not in headings((ROOT / file).read_text()):
        errors.append(f"{source}: {target} leads to no heading of {file}")
    ending = f"#{anchor}" if anchor else ""
    if file in places:
        return os.path.relpath(places[file], PurePosixPath(place).parent) + ending if path else ending
    if file.startswith(DOCS) and not file.endswith(".md") and (ROOT / file).is_file():
        return os.path.relpath(PurePosixPath(file).relative_to(DOCS), PurePosixPath(place).parent)
    site = os.environ.get("RLHOST_REPOSITORY")
    return f"{site.rstrip('/')}/{file}{ending}" if site else None


def rewritten(text, source, place, places, errors):
    """A page's text with its links rewritten, except in code."""

    def link(match):
        image, label, target = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match.group(0)
        to = moved(target, source, place, places, errors)
        return f"{image}[{label}]({to})" if to else label

    # Links may be broken over lines, so that what is between blocks of code is looked at as a whole.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts))


def chapter(title, file, place):
    text = (ROOT / file).read_text()
    return {
        "Chapter": {
            "name": title,
            "content": text,
            "number": None,
            "sub_items": [],
            "path": place,
            "source_path": None,
            "parent_names": [],
        }
    }


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "supports":
        sys.exit(0)
    _, book = json.load(sys.stdin)
    key = "items" if "items" in book else "sections"
    items = book[key]
    places = in_book(items)
    sources = {place: file for file, place in places.items()}

    at = next(i for i, item in enumerate(items) if isinstance(item, dict) and item.get("PartTitle") == "Design")
    items[at:at] = [chapter(*page) for page in OTHERS["Reference"]]
    for title in ["The project", "Examples"]:
        items.append({"PartTitle": title})
        items.extend(chapter(*page) for page in OTHERS[title])

    errors = []
    for page in chapters(items):
        source = sources[page["path"]]
        page["content"] = rewritten(page["content"], source, page["path"], places, errors)
    if errors:
        sys.exit("broken links:\n  " + "\n  ".join(errors))
    json.dump(book, sys.stdout)


main()
