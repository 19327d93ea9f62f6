"""A clock that moves only when a test says so."""

import asyncio
import heapq
from datetime import UTC, datetime, timedelta


class FakeClock:
    """Implements mailboxes.clock.Clock. `advance` moves both clocks and wakes the sleepers that are due, in order."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._monotonic = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._count, future))
        await future

    def jump(self, seconds: float) -> None:
        """Moves the wall clock alone, as a correction of the machine's time does."""
        self._now += timedelta(seconds=seconds)

    async def advance(self, seconds: float) -> None:
        """Lets that much time pass, sleeper by sleeper, and lets what they start run on in between."""
        end = self._monotonic + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            self._move_to(due)
            if not future.done():
                future.set_result(None)
            for _ in range(10):
                await asyncio.sleep(0)
        self._move_to(end)
        for _ in range(10):
            await asyncio.sleep(0)

    def _move_to(self, monotonic: float) -> None:
        self._now += timedelta(seconds=monotonic - self._monotonic)
        self._monotonic = monotonic
