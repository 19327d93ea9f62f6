"""Sessions that do not get on: what failed, how often in a row, and until when each is held back.

Nothing here outlives the host. A session is well again when a turn of its has come to an end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from host.items import SessionRef
from mailboxes.clock import Clock


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A session that is not started before a time on the monotonic clock."""

    until: float
    timer: asyncio.Task[None]


class Setbacks:
    """Where the time of a session that was held back is over, `has_work` is asked, and then `released` is called with
    the answer."""

    def __init__(
        self,
        clock: Clock,
        has_work: Callable[[SessionRef], Awaitable[bool]],
        released: Callable[[SessionRef, bool], None],
    ) -> None:
        self._clock = clock
        self._has_work = has_work
        self._released = released
        self._in_a_row: dict[SessionRef, int] = {}
        self._told: set[SessionRef] = set()
        self._held: dict[SessionRef, HeldBack] = {}
        self.reasons: dict[SessionRef, str] = {}
        """What is wrong now, a sentence each."""

    def count(self, key: SessionRef) -> int:
        """One more; how many in a row that makes."""
        self._in_a_row[key] = self._in_a_row.get(key, 0) + 1
        return self._in_a_row[key]

    def is_news(self, key: SessionRef) -> bool:
        """True the first time that it is asked of a session since that one was well."""
        news = key not in self._told
        self._told.add(key)
        return news

    def forget(self, key: SessionRef) -> None:
        """It is well again."""
        self._in_a_row.pop(key, None)
        self._told.discard(key)
        self.reasons.pop(key, None)

    def hold_back(self, key: SessionRef, seconds: float) -> None:
        """Nothing is started for it before so many seconds are over."""
        if key not in self._held:
            timer = asyncio.create_task(self._let_go(key, seconds), name=f"held back {key.session_id}")
            self._held[key] = HeldBack(self._clock.monotonic() + seconds, timer)

    async def _let_go(self, key: SessionRef, seconds: float) -> None:
        await self._clock.sleep(seconds)
        try:
            work = await self._has_work(key)
        finally:
            del self._held[key]
        self._released(key, work)

    def holds(self, key: SessionRef) -> bool:
        """Whether it is held back now."""
        return key in self._held

    def again_in(self, key: SessionRef) -> float | None:
        """Seconds until it is tried again; None where it is not held back."""
        held = self._held.get(key)
        return None if held is None else max(0.0, held.until - self._clock.monotonic())

    async def close(self) -> None:
        """Nobody is let go any more."""
        timers = [held.timer for held in self._held.values()]
        for timer in timers:
            timer.cancel()
        await asyncio.gather(*timers, return_exceptions=True)
