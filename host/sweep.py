"""The sweep: wakes stopped sessions whose time has come, from an index in memory; it never opens mailboxes to look."""

from collections.abc import Awaitable, Callable

import structlog

from host.due import DueIndex
from host.fleet import Fleet
from mailboxes.clock import Clock, to_text

SWEEP_SECONDS = 60.0
"""Sandboxes that nobody knows are looked for this often."""

TICK_SECONDS = 1.0
"""How late a due row may be."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Sweep:
    """`orphans` is awaited once a minute: it ends sandboxes of ours that no session has."""

    def __init__(self, due: DueIndex, fleet: Fleet, clock: Clock, orphans: Callable[[], Awaitable[None]]) -> None:
        self._due = due
        self._fleet = fleet
        self._clock = clock
        self._orphans = orphans
        self._next = 0.0

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            await self.tick()
            await self._clock.sleep(TICK_SECONDS)

    async def tick(self) -> None:
        """Wakes what is due; a live session sees its due rows by itself."""
        for key in self._due.take(to_text(self._clock.now())):
            self._fleet.notify(key)
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + SWEEP_SECONDS
            try:
                await self._orphans()
            except Exception:  # one look that failed: the next one comes, and everything else goes on
                log.exception("looking for sandboxes that nobody knows failed")
