"""A query while it runs: its next event, its end, and what a provider's faults become."""

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine
from pathlib import Path
from typing import Any

from agent_runner.log import log
from agent_runner.providers.base import Event, Failure, Query

CLOSE_SECONDS = 0.3
"""What a query and its tools get to end when the runner is told to stop; the sandbox ends the rest."""


class Stopped(Exception):
    """The runner was told to stop."""


class Running:
    """A query and its next event; `stir` is called when that has come."""

    def __init__(self, query: Query, stir: Callable[[], None]) -> None:
        self.query = query
        self._stir = stir
        self._events = query.events()
        self.go_on()

    def next_event(self) -> Event | None:
        """The event that has come. What the provider raised is a failure. Raises Stopped."""
        try:
            return self.coming.result()
        except Stopped:
            raise
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  a provider is foreign code, it must not end the runner
            return provider_failure(error)

    def go_on(self) -> None:
        """Sends for the next event: after the last one's commit, for what the provider does next is another part."""
        self.coming = asyncio.ensure_future(anext(self._events, None))
        self.coming.add_done_callback(lambda _: self._stir())

    async def close(self) -> None:
        """Ends the query and what it runs, within CLOSE_SECONDS."""
        self.query.abort()
        self.coming.cancel()
        await asyncio.wait((self.coming,), timeout=CLOSE_SECONDS)
        if self.coming.done() and not self.coming.cancelled():
            self.coming.exception()  # asked for, so that asyncio does not report it as never looked at
        if self.coming.done() and isinstance(self._events, AsyncGenerator):
            await within(CLOSE_SECONDS, self._events.aclose())


async def within(seconds: float, closing: Coroutine[Any, Any, None]) -> None:
    """Runs it, at most for so long: what does not end is left to the end of the process."""
    task = asyncio.ensure_future(closing)
    await asyncio.wait((task,), timeout=seconds)
    if not task.done():
        task.cancel()
    elif not task.cancelled() and (error := task.exception()) is not None:
        log_error("close_failed", error)


def provider_failure(error: BaseException) -> Failure:
    """What a provider raised, as a failure that may pass."""
    log_error("provider_raised", error)
    return Failure(f"The model's provider failed ({type(error).__name__}).", retryable=True)


def log_error(event: str, error: BaseException) -> None:
    """Logs where an error came from and its type; its text may hold a message's."""
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
    log(event, "error", error=type(error).__name__, where=where)
