"""What is known of a message, in words for the person who asks with /why: from the record of its session's mailbox."""

import json
import sqlite3

from host.items import text_of
from host.text import printable, shorten
from mailboxes.rows import Address

_SHOWN = 60
_LOOKED_AT = 200
"""Sent messages among which the one replied to is looked for, newest first."""

_STATUS = {
    "pending": "waits for its turn",
    "processing": "is being worked on",
    "completed": "was worked on and is done",
    "failed": "failed",
    "paused": "is paused",
    "cancelled": "was cancelled",
}
_STATE = {
    "queued": "waits to be delivered",
    "sending": "is being sent",
    "sent": "was delivered",
    "unknown": "may or may not have arrived",
    "failed": "could not be delivered",
    "cancelled": "was cancelled",
}


def explain(db: sqlite3.Connection, address: Address, replied_to: str | None) -> str:
    """What happened to a message that was sent to `address` (by its platform's id), and to what it answers; without an
    id, or for one that is not known, to the last message that came from there."""
    said = _said_as(db, address, replied_to) if replied_to is not None else None
    if said is None:
        came = db.execute(
            f"SELECT * FROM messages_in WHERE kind IN ('chat', 'chat-sdk') AND {_HERE} ORDER BY seq DESC LIMIT 1",  # noqa: S608  our words
            _of(address),
        ).fetchone()
        if came is None:
            return "Nothing is known of a message from here."
        begin = "That message is not known. " if replied_to is not None else ""
        return f"{begin}The last message from here, {_of_row(came)}"
    lines = [f"That message {_STATE[said['state']]}{_of_delivery(said)}."]
    came = db.execute("SELECT * FROM messages_in WHERE id=?", (said["in_reply_to"],)).fetchone()
    if came is not None:
        lines.append(f"It answers a message, {_of_row(came)}")
    return "\n".join(lines)


_HERE = "channel_type=? AND account_id=? AND platform_id=?"


def _of(address: Address) -> tuple[str, str, str]:
    return address.channel_type, address.account_id, address.platform_id


def _said_as(db: sqlite3.Connection, address: Address, platform_id: str) -> sqlite3.Row | None:
    rows = db.execute(
        f"SELECT * FROM deliveries WHERE {_HERE} ORDER BY rowid DESC LIMIT {_LOOKED_AT}",  # noqa: S608  our words
        _of(address),
    )
    return next((row for row in rows if platform_id in json.loads(row["platform_ids"])), None)


def _of_row(row: sqlite3.Row) -> str:
    text = shorten(printable(text_of(row["kind"], row["content"])), _SHOWN)
    what = f"“{text}”, " if text else ""
    status = _STATUS.get(row["status"], row["status"])
    came = f"{what}came at {row['timestamp'][:19].replace('T', ' ')} UTC and {status}"
    tries = f" after {row['tries'] + 1} tries" if row["tries"] else ""
    again = f"; it is tried again at {row['process_after'][11:19]} UTC" if _waits(row) else ""
    return f"{came}{tries}{again}. (message {row['id']})"


def _waits(row: sqlite3.Row) -> bool:
    return row["status"] == "pending" and row["process_after"] is not None


def _of_delivery(row: sqlite3.Row) -> str:
    at = f" at {row['state_changed'][:19].replace('T', ' ')} UTC" if row["state_changed"] else ""
    tries = f", after {row['attempts']} failed attempts" if row["attempts"] else ""
    error = f": {printable(row['last_error']).rstrip('.')}" if row["state"] == "failed" and row["last_error"] else ""
    return f"{at}{tries}{error}"
