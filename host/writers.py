"""Messages on their way from the central database into the mailboxes: in order for each session, until it works.

A mailbox that cannot be written holds up its own session and nothing else; what waits stays in the spool.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog
from sqlalchemy.exc import DBAPIError

from host import backoff
from host.channels.base import Attachment
from host.db import ingest_spool
from host.db.agent_groups import AgentGroup
from host.db.engine import CentralDatabase
from host.db.sessions import Session
from host.items import InboundHeld
from mailboxes.clock import Clock
from mailboxes.crash import crash_at
from mailboxes.rows import MessageIn

_MAX_PUT = 100
"""Messages of one session that share one write of its mailbox at most."""

ALBUM_SECONDS = 1.5
_LONGEST_ALBUM_SECONDS = 10.0
"""How long after one picture of an album the next one is waited for, and after the first one at most: what a person
sends as one is one turn. It counts from their arrival, however long they take to be fetched."""

TELL_AFTER = 5
"""Tries to write a mailbox, 23 seconds, before the chat hears that its message waits."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Routed:
    """A message on its way into a mailbox. `message.seq` is 0: the inbox gives the number. `attachments` are still to
    be fetched; `arrived` is on the monotonic clock, 0 for what an earlier host took in."""

    session: Session
    agent_group: AgentGroup
    message: MessageIn
    attachments: tuple[Attachment, ...] = ()
    album: str | None = None
    arrived: float = 0.0


Put = Callable[[Sequence[Routed]], Awaitable[None]]
"""Writes messages of one session into its mailbox, all or none, then rings and wakes; a message id that is there is a
no-op. Tried again after an exception."""


Tell = Callable[[Routed, str], Awaitable[None]]
"""Tells the chat of a message that it waits, and why, once for each message. May raise what the database raises."""


class Writers:
    """One writer for each session that has something to be written, each in a task of its own."""

    def __init__(self, database: CentralDatabase, clock: Clock, put: Put, tell: Tell) -> None:
        self._database = database
        self._clock = clock
        self._put = put
        self._tell = tell
        self._queues: dict[str, deque[Routed]] = {}
        self._writers: dict[str, asyncio.Task[None]] = {}
        self._backing_off: set[str] = set()
        self._closing = False

    def add(self, routed: Routed) -> None:
        """Queues a message behind those of its session."""
        session_id = routed.session.id
        self._queues.setdefault(session_id, deque()).append(routed)
        if session_id not in self._writers and not self._closing:
            self._writers[session_id] = asyncio.create_task(self._write(session_id))

    async def _write(self, session_id: str) -> None:
        queue = self._queues[session_id]
        try:
            while queue and not self._closing:
                await self._until_albums_are_whole(queue)
                together = list(islice(queue, _MAX_PUT))
                await self._put_until_done(session_id, together)
                crash_at("after_put")
                for done in together:
                    queue.popleft()
                    self._database.ride(ingest_spool.FORGET, {"done": done.message.id})
        finally:
            del self._writers[session_id]
            if not queue:
                del self._queues[session_id]

    async def _until_albums_are_whole(self, queue: Iterable[Routed]) -> None:
        while not self._closing:
            arrived = [routed.arrived for routed in islice(queue, _MAX_PUT) if routed.album is not None]
            if not arrived:
                return
            until = min(max(arrived) + ALBUM_SECONDS, min(arrived) + _LONGEST_ALBUM_SECONDS)
            if (rest := until - self._clock.monotonic()) <= 0:
                return
            await self._clock.sleep(rest)

    async def _put_until_done(self, session_id: str, routed: Sequence[Routed]) -> None:
        tries, told = 0, False
        while True:
            try:
                await self._put(routed)
                return
            except (OSError, sqlite3.Error, InboundHeld) as error:
                reason = str(error)
                log.warning("a mailbox cannot be written yet", session=session_id, messages=len(routed), reason=reason)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                log.exception("a mailbox cannot be written yet", session=session_id, messages=len(routed))
            tries += 1
            self._backing_off.add(session_id)
            try:
                if self._closing:
                    raise asyncio.CancelledError
                if tries >= TELL_AFTER and not told:
                    told = await self._told(routed[0], reason)
                await self._clock.sleep(backoff.pause(tries))
            finally:
                self._backing_off.discard(session_id)

    async def _told(self, routed: Routed, reason: str) -> bool:
        try:
            await self._tell(routed, reason)
        except DBAPIError:  # a full disk takes no word of ours either
            return False
        return True

    async def idle(self) -> None:
        """Returns when everything is in its mailbox."""
        while self._writers:
            await asyncio.wait(self._writers.values())

    async def close(self) -> None:
        """Finishes what is being written, and leaves the rest in the spool."""
        self._closing = True
        for session_id in self._backing_off:
            self._writers[session_id].cancel()
        await asyncio.gather(*self._writers.values(), return_exceptions=True)
