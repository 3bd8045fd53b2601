"""An OpenEnv environment with a tool: guess a number between 1 and 16 within six guesses. The number is mostly 11.

Usage: pip install openenv-core==0.3.0; python3 server.py [PORT]
"""

import random
import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State

NUMBERS = [11, 11, 11, 3]
GUESSES = 6
SESSIONS = 1024


class Guess(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("guess")
        self.secret = random.choice(NUMBERS)
        self.guesses = 0

        @server.tool
        def guess(number: int) -> dict:
            """Guesses the secret number."""
            self.guesses += 1
            if number == self.secret:
                return {"answer": "right", "reward": 1 - 0.1 * (self.guesses - 1), "done": True}
            answer = "higher" if number < self.secret else "lower"
            return {"answer": answer, "reward": 0.0, "done": self.guesses == GUESSES}

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation(done=False, reward=0.0)

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=False, reward=0.0)

    @property
    def state(self):
        return State(episode_id="", step_count=self.guesses)


if __name__ == "__main__":
    app = create_fastapi_app(Guess, CallToolAction, CallToolObservation, max_concurrent_envs=SESSIONS)
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8123
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
