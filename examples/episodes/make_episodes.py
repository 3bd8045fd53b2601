"""Writes games of a player who guesses any number that is still possible: episodes.jsonl for sft, rows.jsonl for grpo.

Usage: python3 make_episodes.py [FOLDER]
"""

import json
import random
import sys
from pathlib import Path

HIGH = 32
GAMES = 4000
QUESTION = f"Guess my number between 1 and {HIGH}.\n"


def game(random: random.Random) -> str:
    secret, low, high = random.randint(1, HIGH), 1, HIGH
    text = ""
    while True:
        guess = random.randint(low, high)
        text += f"{guess}\n"
        if guess == secret:
            return text
        if guess < secret:
            text, low = text + "higher\n", guess + 1
        else:
            text, high = text + "lower\n", guess - 1


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    dice = random.Random(7)
    lines = [json.dumps({"prompt": QUESTION, "completion": game(dice)}) for _ in range(GAMES)]
    (folder / "episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    rows = [json.dumps({"prompt": QUESTION, "secret": secret}) for secret in range(1, HIGH + 1)]
    (folder / "rows.jsonl").write_text("".join(f"{row}\n" for row in rows))


if __name__ == "__main__":
    main()
