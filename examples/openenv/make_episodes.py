"""Writes games of a player who guesses any number that is still possible, by calling a tool: episodes.jsonl for sft, rows.jsonl for grpo.

Usage: python3 make_episodes.py [FOLDER]
"""

import json
import random
import sys
from pathlib import Path

HIGH = 16
GUESSES = 6
GAMES = 4000
QUESTION = f"Guess my number between 1 and {HIGH}.\n"


def game(dice: random.Random) -> str:
    secret, low, high = dice.randint(1, HIGH), 1, HIGH
    text = ""
    for place in range(GUESSES):
        guess = dice.randint(low, high)
        call = json.dumps({"name": "guess", "arguments": {"number": guess}})
        text += f"<tool_call>{call}</tool_call>\n"
        if guess == secret:
            break
        answer = "higher" if guess < secret else "lower"
        said = {"answer": answer, "reward": 0.0, "done": place == GUESSES - 1}
        text += json.dumps(said, separators=(",", ":")) + "\n"
        low, high = (guess + 1, high) if guess < secret else (low, guess - 1)
    return text


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    dice = random.Random(7)
    lines = [json.dumps({"prompt": QUESTION, "completion": game(dice)}) for _ in range(GAMES)]
    (folder / "episodes.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps({'prompt': QUESTION})}\n" for _ in range(16)))


if __name__ == "__main__":
    main()
