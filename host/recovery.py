"""After a restart: takes up what an earlier host left, and ends what nobody knows any more."""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence

import structlog
from sqlalchemy import Connection

from host import views
from host.db import host_outbox, sessions
from host.db.engine import CentralDatabase, query_on
from host.db.sessions import ContainerStatus
from host.delivery import Delivery
from host.fleet import Fleet
from host.items import InboundHeld, Item, SessionRef, item_of
from host.mailbox_index import Held, MailboxIndex
from host.postmaster import Postmaster
from host.runtime.base import Found, Runtime, RuntimeName, RuntimeUnavailable
from host.untrusted import BadFile, TornSnapshot

OPEN_AT_ONCE = 16
"""Mailboxes: enough for the pool's threads, and few enough not to fill the memory with a thousand of them."""

FIND_SECONDS = 10.0
"""How long an engine may take to say what runs."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def recover(
    database: CentralDatabase,
    postmaster: Postmaster,
    delivery: Delivery,
    fleet: Fleet,
    runtimes: Mapping[RuntimeName, Runtime],
    index: MailboxIndex,
) -> None:
    """The host's own journals first (opening a mailbox rolls them back), then what is undelivered, then the
    sandboxes.

    A stopped session whose mailbox has no journal and holds nothing to take up is not opened: of it only when it is due
    matters, and the index knows. One that was over, but whose sandbox still ran, is looked through as well: what it
    said goes out, and host.moving takes over what waits in it.
    """
    active, over = await database.run(lambda connection: (sessions.active(connection), sessions.closed(connection)))
    keys = {session.id: SessionRef(session.agent_group_id, session.id) for session in active}
    left = [
        SessionRef(session.agent_group_id, session.id)
        for session in (*active, *over)
        if session.container_status != ContainerStatus.STOPPED
    ]
    found = await _find_sandboxes(runtimes, FIND_SECONDS if left else FIND_SECONDS / 5)
    held = {one.session_id: one for _, one in found}
    holds = await asyncio.to_thread(_look, index, list(keys.values()))
    touched = {key.session_id for key in left} | held.keys()
    few = asyncio.Semaphore(OPEN_AT_ONCE)

    async def take_up(key: SessionRef) -> None:
        one = holds[key.agent_group_id, key.session_id]
        if one is not None and not one.unfinished and key.session_id not in touched:
            postmaster.rests(key, one.due)
            return
        async with few:
            await _open_mailbox(postmaster, key, held.get(key.session_id), ran=key.session_id in touched)

    await asyncio.gather(*(take_up(key) for key in keys.values()))
    delivery.add(await database.run(open_outbox))
    await fleet.adopt([(keys.get(one.session_id), runtime, one) for runtime, one in found], left)
    for key in (keys[session_id] for session_id in touched if session_id in keys):
        try:
            await fleet.mend(key)
        except (OSError, sqlite3.Error, InboundHeld, BadFile, TornSnapshot) as error:  # the sweep looks again
            log.warning("what a session has missed is not known yet", session=key.session_id, reason=str(error))


def _look(index: MailboxIndex, keys: Sequence[SessionRef]) -> Mapping[tuple[str, str], Held | None]:
    index.take()
    return index.look((key.agent_group_id, key.session_id) for key in keys)


async def leave(database: CentralDatabase, index: MailboxIndex) -> None:
    """At the end of an orderly stop: the next start need not open what nobody has written to."""
    keys = await database.run(lambda connection: views.session_keys(query_on(connection)))

    def write() -> None:
        index.look(keys)
        index.save()

    try:
        await asyncio.to_thread(write)
    except OSError as error:
        log.warning("what the mailboxes hold could not be noted: the next start reads them all", reason=str(error))


async def _open_mailbox(postmaster: Postmaster, key: SessionRef, left: Found | None, *, ran: bool) -> None:
    """A mailbox that cannot be opened holds up its own session alone. One that its sandbox holds a lock on costs that
    sandbox its life."""
    try:
        try:
            await postmaster.recover(key, ran=ran)
        except InboundHeld:
            if left is None:
                raise
            await left.sandbox.kill()
            await postmaster.recover(key, ran=ran)
    except (OSError, sqlite3.Error, InboundHeld, RuntimeUnavailable) as error:
        log.error("a mailbox could not be opened at start", session=key.session_id, reason=str(error))  # noqa: TRY400  the sentence says it all


def open_outbox(connection: Connection) -> list[Item]:
    """What the host itself has to say and has not delivered."""
    return [item_of(row, None) for row in host_outbox.open_rows(connection)]


async def _find_sandboxes(runtimes: Mapping[RuntimeName, Runtime], seconds: float) -> list[tuple[Runtime, Found]]:
    """What runs and is ours. An engine that is away has nothing that we could reach."""
    found = []
    for runtime in runtimes.values():
        try:
            async with asyncio.timeout(seconds):
                found += [(runtime, one) for one in await runtime.find_ours()]
        except (RuntimeUnavailable, TimeoutError) as error:
            log.info("no sandboxes to find", runtime=runtime.name, reason=str(error))
    return found


async def end_orphans(runtimes: Mapping[RuntimeName, Runtime], fleet: Fleet) -> None:
    """Ends sandboxes of ours that no session has (a start that was broken off)."""
    for runtime, one in await _find_sandboxes(runtimes, FIND_SECONDS):
        if not fleet.knows(one.sandbox.id, one.session_id):
            log.warning("a sandbox that nobody knows is ended", runtime=runtime.name, session=one.session_id)
            await one.sandbox.stop(0.0)
