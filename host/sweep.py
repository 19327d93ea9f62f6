"""The sweep: wakes stopped sessions whose time has come, from an index in memory; it never opens mailboxes to look."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

import structlog

from host.due import DueIndex
from host.fleet import Fleet
from host.items import InboundHeld, SessionRef
from host.series import LATE
from host.untrusted import BadFile, TornSnapshot
from mailboxes.clock import Clock, to_text

SWEEP_SECONDS = 60.0
"""Sandboxes that nobody knows are looked for this often."""

TICK_SECONDS = 1.0
"""How late a due row may be."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Sweep:
    """`orphans` is awaited once a minute: it ends sandboxes of ours that no session has. `mend` is awaited for a
    session whose time passed unseen, because there was no host or the machine slept: it leaves out what is to be left
    out then, and says when the session is due."""

    def __init__(
        self,
        due: DueIndex,
        fleet: Fleet,
        clock: Clock,
        orphans: Callable[[], Awaitable[None]],
        mend: Callable[[SessionRef], Awaitable[str | None]],
    ) -> None:
        self._due = due
        self._fleet = fleet
        self._clock = clock
        self._orphans = orphans
        self._mend = mend
        self._next = 0.0
        self._mending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            await self.tick()
            await self._clock.sleep(TICK_SECONDS)

    async def tick(self) -> None:
        """Wakes what is due; a live session sees its due rows by itself."""
        for key in self._due.take(""):
            self._fleet.notify(key)
        now = self._clock.now()
        for key in self._due.take(to_text(now - LATE)):
            # Beside the others: a mailbox that cannot be had at once must not hold them up.
            task = asyncio.create_task(self._mend_and_wake(key), name=f"late {key.session_id}")
            self._mending.add(task)
            task.add_done_callback(self._mending.discard)
        for key in self._due.take(to_text(now)):
            self._fleet.notify(key)
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + SWEEP_SECONDS
            try:
                await self._orphans()
            except Exception:  # one look that failed: the next one comes, and everything else goes on
                log.exception("looking for sandboxes that nobody knows failed")

    async def _mend_and_wake(self, key: SessionRef) -> None:
        try:
            due = await self._mend(key)
        except (OSError, sqlite3.Error, InboundHeld, BadFile, TornSnapshot) as error:
            # What is due wants its turn all the same.
            log.error("a late session could not be looked at", session=key.session_id, reason=str(error))  # noqa: TRY400  the sentence says it all
            self._fleet.notify(key)
            return
        if due is not None and due <= to_text(self._clock.now()):
            self._fleet.notify(key)
        else:
            self._due.set(key, due)
