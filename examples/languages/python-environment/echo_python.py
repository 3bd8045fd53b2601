"""A number is hidden, and the model finds it with a tool. Save the file while a run uses it, and the run goes on with what it says then."""

import random


class echo_python:
    """A number is hidden, and the model finds it with a tool."""

    def __init__(self, most: int = 9):
        # Arguments with a default are settings.
        self.most = most

    def reset(self, **row) -> str:
        """Begins an episode; what it returns is added to the prompt, and `row` has the dataset's columns."""
        self.hidden = random.randint(0, self.most)
        self.tries, self.found = 0, False
        return f"A number from 0 to {self.most} is hidden. Find it with the tool guess."

    def guess(self, number: int) -> str:
        """Guesses the hidden number.

        Args:
            number: The guess.
        """
        self.tries += 1
        self.found = self.found or number == self.hidden
        if number == self.hidden:
            return "That is it."
        return "It is larger." if number < self.hidden else "It is smaller."

    def get_reward(self) -> float:
        """Returns the episode's reward."""
        return 1 / self.tries if self.found else 0.0
