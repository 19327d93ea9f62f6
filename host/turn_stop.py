"""Ending what a session works on: its rows are cancelled, and the runner, which reads so, drops its turn."""

import sqlite3
from dataclasses import dataclass, field

from host import series
from host.items import TakeOver
from host.mailbox import Mailbox
from mailboxes.rows import Address, InStatus, MessageIn

_STOPPED = "It was stopped."


@dataclass(slots=True)
class Cancelled:
    """What was cancelled: the ids of the messages, and what follows for tasks among them."""

    messages: list[str] = field(default_factory=list)
    taken: TakeOver = field(default_factory=TakeOver)
    due: str | None = None


def cancel_turn(mailbox: Mailbox, address: Address) -> Cancelled:
    """Cancels what is being worked on for a chat, whatever its thread; where there is nothing, what would be worked on
    next for that address."""
    chat = "channel_type=? AND account_id=? AND platform_id=?"
    where = (address.channel_type, address.account_id, address.platform_id)
    rows = mailbox.rows(f"status='processing' AND {chat}", where)
    if not rows:
        waits = "status='pending' AND trigger=1 AND (process_after IS NULL OR tries > 0) AND series_id IS NULL"
        rows = [row for row in mailbox.rows(f"{waits} AND {chat}", where) if row.address == address]
    done = Cancelled([row.id for row in rows])
    if rows:
        mailbox.write(lambda db: _cancel(mailbox, db, rows, done.taken))
    done.due = mailbox.next_due()
    return done


def _cancel(mailbox: Mailbox, db: sqlite3.Connection, rows: list[MessageIn], taken: TakeOver) -> None:
    for row in rows:
        db.execute("UPDATE messages_in SET status='cancelled', status_changed=? WHERE id=?", (mailbox.stamp(), row.id))
        series.finished(mailbox, db, row, InStatus.CANCELLED, _STOPPED, taken)
