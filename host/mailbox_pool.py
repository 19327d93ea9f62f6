"""Every mailbox of the host, opened when used: calls run in worker threads, one at a time per session."""

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import structlog

from host.home import Home
from host.items import InboundHeld, SessionRef
from host.mailbox import Mailbox
from host.threads import Threads
from mailboxes.clock import Clock

WORKERS = 8
KEPT_OPEN = 256
"""Connections that stay open after use (about 100 KB each)."""

HELD_TRIES = 3

T = TypeVar("T")
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class MailboxPool:
    """Hands out mailboxes. `evict` is awaited when a session's sandbox holds a lock on what is the host's: it has to
    go."""

    def __init__(
        self,
        home: Home,
        clock: Clock,
        evict: Callable[[SessionRef], Awaitable[None]],
        zone: Callable[[], str] = lambda: "UTC",
    ) -> None:
        """`zone`: what a time without one means, an IANA name."""
        self._home = home
        self._zone = zone
        self._clock = clock
        self._evict = evict
        self._threads = Threads(WORKERS, "mailbox")
        self._open: OrderedDict[str, Mailbox] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}
        self._closed = False
        self.broken: dict[SessionRef, str] = {}
        """The sessions whose mailbox could not be used when it was asked last, and why."""

    async def call(self, key: SessionRef, work: Callable[[Mailbox], T]) -> T:
        """Runs `work` on a session's mailbox. Raises InboundHeld when its lock could not be had although the sandbox
        was stopped, and whatever `work` raises."""
        async with self._alone(key.session_id):
            for attempt in range(HELD_TRIES):
                try:
                    done = await self._run(key, work)
                except (OSError, sqlite3.Error) as error:
                    self.broken[key] = str(error)
                    raise
                except InboundHeld:
                    if attempt == HELD_TRIES - 1:
                        raise
                    log.warning(
                        "the sandbox holds a lock on its inbound mailbox and is stopped", session=key.session_id
                    )
                    await self._evict(key)
                else:
                    self.broken.pop(key, None)
                    return done
            raise AssertionError("unreachable")

    @asynccontextmanager
    async def _alone(self, session_id: str) -> AsyncIterator[None]:
        """One user of a session's mailbox at a time, in order of asking."""
        lock = self._locks.setdefault(session_id, asyncio.Lock())
        self._users[session_id] = self._users.get(session_id, 0) + 1
        try:
            async with lock:
                if self._closed:
                    raise RuntimeError("the mailboxes are closed")
                yield
        finally:
            self._users[session_id] -= 1
            if not self._users[session_id]:
                del self._users[session_id], self._locks[session_id]

    async def _run(self, key: SessionRef, work: Callable[[Mailbox], T]) -> T:
        mailbox = self._open.get(key.session_id)
        if mailbox is None:
            folder = self._home.session_folder(key.agent_group_id, key.session_id)
            mailbox = self._open[key.session_id] = Mailbox(key, folder, self._clock.now, self._zone)
        self._open.move_to_end(key.session_id)
        surplus = self._surplus()
        return await self._in_thread(lambda: _use(work, mailbox, surplus))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Also when cancelled it returns only after the thread is done: until then the mailbox is in use."""
        running = self._threads.run(work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            raise

    def _surplus(self) -> list[Mailbox]:
        """The least recently used mailboxes above KEPT_OPEN that nobody uses, taken out of the pool."""
        surplus = len(self._open) - KEPT_OPEN
        if surplus <= 0:
            return []
        idle = [session_id for session_id in self._open if session_id not in self._users]
        return [self._open.pop(session_id) for session_id in idle[:surplus]]

    async def forget(self, key: SessionRef) -> None:
        """Closes a session's files, so that its folder can be moved or mended."""
        async with self._alone(key.session_id):
            mailbox = self._open.pop(key.session_id, None)
            if mailbox is not None:
                await self._in_thread(mailbox.close)

    async def close(self) -> None:
        """Closes everything, after the calls that run: SQLite dies of a connection that is closed while it is used."""
        self._closed = True
        while self._locks:
            async with next(iter(self._locks.values())):
                pass  # whoever waits for it hears that they are closed
            await asyncio.sleep(0)
        for mailbox in self._open.values():
            await self._threads.run(mailbox.close)
        self._open.clear()
        await asyncio.to_thread(self._threads.close)


def _use(work: Callable[[Mailbox], T], mailbox: Mailbox, surplus: list[Mailbox]) -> T:
    for unused in surplus:
        unused.close()
    mailbox.notice_replaced()
    return work(mailbox)
