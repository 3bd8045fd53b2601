"""Runs coroutines to their end. Time passes only as the plugin's clock does, and nothing comes from outside."""

import asyncio
import asyncio.base_events
import time

from .guard import GUARD, called


class NoSelector:
    """Waits for nothing but time: there are no sockets."""

    def select(self, timeout):
        if timeout is None:
            raise RuntimeError("the function waits for something that never happens")
        if timeout > 0:
            time.sleep(timeout)
        return []


class Loop(asyncio.base_events.BaseEventLoop):
    """An event loop without input or output."""

    def __init__(self):
        super().__init__()
        self._selector = NoSelector()

    def _process_events(self, events):
        pass

    def _write_to_self(self):
        pass


class Policy(asyncio.events._AbstractEventLoopPolicy):
    """Makes `asyncio.run` use this loop."""

    _loop = None

    def get_event_loop(self):
        if self._loop is None:
            raise RuntimeError("There is no current event loop.")
        return self._loop

    def set_event_loop(self, loop):
        self._loop = loop

    def new_event_loop(self):
        return Loop()


def install() -> None:
    """Makes this loop the one that asyncio creates."""
    asyncio.events._set_event_loop_policy(Policy())


def finish(coroutine):
    """Runs a coroutine to its end and returns its result."""
    return asyncio.run(coroutine)


def awaited(coroutine):
    """Runs a coroutine of the script's to its end, with what its top level replaced in force."""
    GUARD.undo_rest()
    return called(finish, coroutine)


async def together(coroutines, errors: bool = False):
    """Runs coroutines side by side and returns their results in order, among them their errors if `errors`."""
    return await asyncio.gather(*coroutines, return_exceptions=errors)
