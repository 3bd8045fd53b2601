"""What the model may read of what its code said."""

import re

MARKS = [re.compile(r"<(?=[^<>\s]+>)"), re.compile(r"\[(?=/?[A-Z_]+\])")]


def as_text(said, longest):
    """Shortens a text, and parts what templates might take for a mark: `<|end|>`, `</s>`, `[INST]`."""
    for mark in MARKS:
        said = mark.sub(lambda found: f"{found[0]} ", said)
    # Half a surrogate pair is no text.
    said = said.encode("utf-8", "replace").decode().rstrip()
    if not said:
        return "(no output)"
    return said if len(said) <= longest else f"{said[:longest]}\n({len(said) - longest} more characters)"
