"""Takes what waits in one mailbox over into another: a conversation that begins anew keeps its tasks."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
from sqlalchemy import Connection

from host import series as tasks
from host.db import sessions
from host.db.engine import CentralDatabase
from host.delivery import Delivery
from host.items import Item, SessionRef, item_of
from host.mailbox import Mailbox
from host.mailbox_index import MailboxIndex
from host.mailbox_pool import MailboxPool
from host.outbound_files import SENT
from mailboxes.crash import crash_at
from mailboxes.layout import FILES
from mailboxes.rows import Address, DeliveryState, InStatus, MessageIn, MessageOut

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_STATUS: dict[str, str] = {InStatus.PROCESSING: InStatus.PENDING}
"""What a row becomes that was being worked on."""


@dataclass(frozen=True, slots=True)
class _Load:
    """What is to be moved: tasks, rows of messages_in, rows of deliveries (whole, by column)."""

    series: list[tasks.Series]
    rows: list[MessageIn]
    deferred: list[dict[str, object]]

    def __len__(self) -> int:
        return len(self.series) + len(self.rows) + len(self.deferred)


async def move_tasks(pool: MailboxPool, delivery: Delivery, source: SessionRef, target: SessionRef) -> int:
    """Moves the tasks of a session, its pending and paused rows, and what it said that is to go out later. Returns how
    many there were.

    The source's sandbox has been stopped, and nothing wakes it meanwhile; the target's folder is there. May be done
    again after a kill at any point. The caller sets both due times and notifies the target.
    """
    crash_at("before_move")
    load = await pool.call(source, _load)
    if not load:
        return 0
    folder = await pool.call(source, lambda mailbox: mailbox.session_folder)
    items = await pool.call(target, lambda mailbox: _put(mailbox, load, folder))
    crash_at("between_moves")
    await pool.call(source, lambda mailbox: _mark_moved(mailbox, load, target))
    delivery.withdraw([str(row["id"]) for row in load.deferred])
    delivery.add(items)
    return len(load)


async def finish_moves(
    database: CentralDatabase,
    index: MailboxIndex,
    move: Callable[[SessionRef, SessionRef], Awaitable[None]],
    take_up: Callable[[SessionRef], Awaitable[None]],
) -> None:
    """At the start: what still waits in a session that is over goes into the one that took its place, after what it has
    said and asked for was taken up. A host was killed between the two."""

    def look(connection: Connection) -> dict[SessionRef, SessionRef]:
        places = {session.key: session for session in sessions.active(connection)}
        return {
            SessionRef(old.agent_group_id, old.id): SessionRef(old.agent_group_id, places[old.key].id)
            for old in sessions.closed(connection)
            if old.key in places
        }

    replaced = await database.run(look)
    holds = await asyncio.to_thread(index.look, [(old.agent_group_id, old.session_id) for old in replaced])
    for old, new in replaced.items():
        held = holds[old.agent_group_id, old.session_id]
        if held is not None and held.unfinished:
            await take_up(old)
        if held is not None and (held.due is not None or held.unfinished):  # what goes out later waits, too
            log.warning("what waited in a session that is over goes into the next", session=old.session_id)
            await move(old, new)


def _load(mailbox: Mailbox) -> _Load:
    deferred = mailbox.db.execute(
        "SELECT * FROM deliveries WHERE state='queued' AND deliver_after > ? AND attempts=0 AND kind <> 'system' "
        "AND platform_id IS NOT NULL ORDER BY rowid",
        (mailbox.stamp(),),
    )
    rows = mailbox.rows("status IN ('pending', 'processing', 'paused')")
    return _Load(tasks.every(mailbox.db), rows, [dict(row) for row in deferred])


def _put(mailbox: Mailbox, load: _Load, folder: Path) -> list[Item]:
    """Writes it, with the files that lie in the other session's `folder`; what is there already, by an earlier try,
    stays as it has become meanwhile."""
    items: list[Item] = []
    for message in load.rows:
        link_files(folder / "inbound" / FILES, mailbox.session_folder / "inbound" / FILES, message.id)
    for row in load.deferred:
        for name in (str(row["id"]), f"{row['id']}.json"):
            link_files(folder / SENT, mailbox.session_folder / SENT, name)

    def work(db: sqlite3.Connection) -> None:
        for series in load.series:
            if tasks.get(db, series.id) is None:
                tasks.store(db, series)
        mailbox.insert(db, [replace(row, status=_STATUS.get(row.status, row.status)) for row in load.rows])
        for row in load.deferred:
            if db.execute("SELECT 1 FROM deliveries WHERE id=?", (row["id"],)).fetchone() is None:
                _insert(mailbox, db, row)
                items.append(replace(item_of(row, mailbox.key), state=DeliveryState.QUEUED))

    mailbox.write(work)
    return items


def link_files(source: Path, target: Path, name: str, new_name: str | None = None) -> None:
    """Gives a file, or a folder of files, of one session to another of the same agent, whole or not at all. Both
    folders are the host's, and what lies in them is never changed: a second name for it does."""
    new_name = new_name or name
    if not (source / name).exists() or (target / new_name).exists():
        return
    target.mkdir(mode=0o700, exist_ok=True)
    building = target / f".{new_name}.new"
    if (source / name).is_dir():
        shutil.rmtree(building, ignore_errors=True)  # of a host that died here
        shutil.copytree(source / name, building, copy_function=os.link)
        status = (source / name).stat()
        os.chown(building, status.st_uid, status.st_gid)
    else:
        building.unlink(missing_ok=True)
        building.hardlink_to(source / name)
    building.rename(target / new_name)


def _insert(mailbox: Mailbox, db: sqlite3.Connection, row: dict[str, object]) -> None:
    # Without its number: that of another session's series would be given out here a second time. With a turn: what has
    # neither is the host's own word (host.items.item_of).
    text = {name: None if value is None else str(value) for name, value in row.items()}
    address = Address(
        text["channel_type"] or "", text["account_id"] or "", text["platform_id"] or "", text["thread_id"]
    )
    moved = MessageOut(
        text["id"] or "", 0, text["turn_id"] or "moved", text["in_reply_to"], text["timestamp"] or "",
        text["kind"] or "", text["content"] or "", address, text["deliver_after"], text["recurrence"],
    )  # fmt: skip
    mailbox.insert_delivery(db, moved, DeliveryState.QUEUED, None, series_id=text["series_id"], slot=text["slot"])


def _mark_moved(mailbox: Mailbox, load: _Load, target: SessionRef) -> None:
    def work(db: sqlite3.Connection) -> None:
        for series in load.series:
            tasks.store(db, replace(series, state=tasks.State.MOVED, moved_to=target.session_id))
        changed = "SET status='cancelled', status_changed=?"
        for message in load.rows:
            db.execute(f"UPDATE messages_in {changed} WHERE id=?", (mailbox.stamp(), message.id))
        for row in load.deferred:
            db.execute("UPDATE deliveries SET state='cancelled' WHERE id=? AND state='queued'", (row["id"],))

    mailbox.write(work)
