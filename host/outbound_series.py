"""Words of an agent that recur: a row of messages_out with `recurrence` is the first occurrence of a task that is the
host's from the take-over on."""

import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING

from host.items import text_of
from host.series import Direction, Series, every, first_slot, store
from host.timetable import ScheduleRefused, recurrence
from mailboxes.clock import from_text, to_text
from mailboxes.ids import derived_id
from mailboxes.rows import MessageOut

if TYPE_CHECKING:
    from host.mailbox import Mailbox

MAX_SERIES = 50
"""Tasks that may be live in one session at once (ledger R115)."""

TOO_MANY = f"There are {MAX_SERIES} tasks in this session already. Cancel one first."
_NAME = 40


def begin(mailbox: "Mailbox", db: sqlite3.Connection, row: MessageOut) -> tuple[MessageOut, str | None, str | None]:
    """The row with the time of its first slot, and the id of its task; or the row as it is, and why it cannot recur."""
    if row.address is None:
        return row, None, "What recurs has to name the chat it goes to."
    if len(every(db)) >= MAX_SERIES:
        return row, None, TOO_MANY
    zone, now = mailbox.zone(), mailbox.now()
    start = from_text(row.deliver_after) if row.deliver_after is not None else now
    try:
        schedule = recurrence(row.recurrence or "", zone, start, now)
    except ScheduleRefused as refused:
        return row, None, str(refused)
    made = Series(
        derived_id(row.id, "series"), " ".join(text_of(row.kind, row.content).split())[:_NAME], Direction.OUT, row.kind,
        row.content, row.address, schedule, zone, mailbox.stamp(), _principal(db, row),
    )  # fmt: skip
    first = first_slot(made, max(start, now))
    assert first is not None
    store(db, made)
    return replace(row, deliver_after=to_text(first), recurrence=str(schedule)), made.id, None


def _principal(db: sqlite3.Connection, row: MessageOut) -> str | None:
    """Who caused it: as the message that it replies to, else the last that came in."""
    found = db.execute(
        "SELECT principal FROM messages_in WHERE principal IS NOT NULL ORDER BY id=? DESC, seq DESC LIMIT 1",
        (row.in_reply_to,),
    ).fetchone()
    return None if found is None else str(found["principal"])
