"""Copies messages of one session into another: to be worked on again, or to be known of.

A copy has an id that follows from what asked for it and from the original, so doing it twice is doing it once. It names
the session that it comes from, and by that it gives nobody's authority to the turn that reads it.
"""

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from host import event_text
from host.items import text_of
from host.mailbox import Mailbox
from host.moving import link_files
from mailboxes.ids import derived_id
from mailboxes.layout import FILES
from mailboxes.rows import Address, InStatus, Kind, MessageIn

MOST = 200
"""Messages in one go."""

MAX_TEXT = 2000
"""Characters of each message that is read or copied to be known of."""

_ASKED_FOR_IT = (
    "SELECT in_reply_to FROM deliveries WHERE kind='system' AND in_reply_to IS NOT NULL "
    "AND json_extract(content, '$.action') IN ('replay_session', 'reset_session')"
)
"""The messages that led to a replay: one that was replayed would ask for the next."""

_REPLAYABLE = (
    "kind IN ('chat', 'chat-sdk', 'webhook') AND status IN ('completed', 'failed') AND series_id IS NULL "
    "AND (trigger=1 OR source_session IS NULL) AND json_extract(content, '$.hops') IS NULL "
    f"AND id NOT IN ({_ASKED_FOR_IT})"
)

_HISTORY = """
SELECT 'in' AS direction, id, timestamp, kind, content, status, rowid AS place FROM messages_in
    WHERE kind <> 'system' AND timestamp >= :since
UNION ALL
SELECT 'out', id, timestamp, kind, content, state, rowid FROM deliveries
    WHERE kind <> 'system' AND platform_id IS NOT NULL AND timestamp >= :since
        AND coalesce(json_extract(content, '$.operation'), '') = ''
ORDER BY timestamp DESC, direction DESC, place DESC LIMIT :limit
"""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a session's history. `sender` is "" for what the agent said; `status` as its table has it."""

    direction: str
    id: str
    time: str
    sender: str
    text: str
    status: str


def history(mailbox: Mailbox, *, since: str = "", limit: int = MOST) -> tuple[list[Said], bool]:
    """What people and the agent said, oldest first, the last `limit` of it; and whether there was more before. `since`
    is canonical text. Reads and changes nothing."""
    if not mailbox.exists():
        return [], False
    limit = min(limit, MOST)
    rows = mailbox.db.execute(_HISTORY, {"since": since, "limit": limit + 1}).fetchall()
    said = [
        Said(row["direction"], row["id"], row["timestamp"], _sender(row), _text(row), row["status"])
        for row in reversed(rows[:limit])
    ]
    return said, len(rows) > limit


def _sender(row: sqlite3.Row) -> str:
    if row["direction"] == "out":
        return ""
    return str(json.loads(row["content"]).get("sender") or row["kind"])


def _text(row: sqlite3.Row) -> str:
    values = json.loads(row["content"])
    text = text_of(row["kind"], row["content"]) or str(values.get("prompt") or row["content"])
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [...]"


@dataclass(frozen=True, slots=True)
class Old:
    """Messages of a session, and the folder in which their files lie."""

    session_id: str
    files: Path
    rows: list[MessageIn]


def to_replay(mailbox: Mailbox, last: int) -> Old:
    """The last messages of people and webhooks that a session is done with, in order: no word of the host's, no answer,
    no task, nothing from other agents."""
    rows = mailbox.rows(_REPLAYABLE) if mailbox.exists() else []
    first = {(row.timestamp, row.content): row.id for row in reversed(rows)}  # of a message and its copies
    chosen = [row for row in rows if first[row.timestamp, row.content] == row.id][-min(last, MOST) :]
    return Old(mailbox.key.session_id, mailbox.session_folder / "inbound" / FILES, chosen)


def replay(mailbox: Mailbox, old: Old, cause: str) -> list[MessageIn]:
    """The copies that are to be worked on like new messages, once they are put into this mailbox; their files are there
    already."""
    copies = [
        replace(
            row,
            id=derived_id(f"{cause} {row.id}", "replay"),
            status=InStatus.PENDING,
            status_changed=None,
            process_after=None,
            tries=0,
            source_session=old.session_id,
        )
        for row in old.rows
    ]
    for row, copy in zip(old.rows, copies, strict=True):
        link_files(old.files, mailbox.session_folder / "inbound" / FILES, row.id, copy.id)
    return copies


def as_context(said: Sequence[Said], source: str, agent: str, address: Address | None, cause: str) -> list[MessageIn]:
    """The rows by which a session knows what was said in another, the session `source` of the agent of that name. They
    wake nobody and are answered by nobody; they belong to what comes from `address`."""
    return [
        MessageIn(
            derived_id(f"{cause} {one.id}", "context"),
            Kind.CHAT,
            one.time,
            event_text.dump({"sender": one.sender or agent, "text": one.text, "isFromMe": False}),
            address,
            trigger=False,
            source_session=source,
        )
        for one in said
    ]
