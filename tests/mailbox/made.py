"""Rows, claims and snapshots in one word, and a look into an inbound.db as the runner has it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from host.items import SessionRef, TakeOver
from host.mailbox import Mailbox
from host.reader import BadRow, Snapshot
from mailboxes import schema
from mailboxes.layout import INBOUND_DB
from mailboxes.rows import Address, Claim, ClaimState, Kind, MessageIn, MessageOut

KEY = SessionRef("ag-1", "s-1")
CHAT = Address("telegram", "bot", "42")
OTHER = Address("telegram", "bot", "43")
STAMP = "2026-01-01T00:00:00.000Z"


def message(message_id: str = "m-1", *, address: Address | None = CHAT, **changes: Any) -> MessageIn:
    return replace(MessageIn(message_id, Kind.CHAT, STAMP, '{"text": "hi"}', address), **changes)


def said(row_id: str, seq: int, text: str = "hello", *, address: Address | None = CHAT, **changes: Any) -> MessageOut:
    made = MessageOut(row_id, seq, "t-1", "m-1", STAMP, Kind.CHAT, f'{{"text": "{text}"}}', address)
    return replace(made, **changes)


def claim(
    message_id: str = "m-1", state: ClaimState = ClaimState.PROCESSING, attempt: int = 0, **changes: Any
) -> Claim:
    return replace(Claim(message_id, attempt, "t-1", state), **changes)


def snapshot(
    rows: Iterable[MessageOut] = (), claims: Iterable[Claim] = (), *, more: bool = False, bad: Iterable[BadRow] = ()
) -> Snapshot:
    return Snapshot(tuple(rows), tuple(claims), None, tuple(bad), more=more, spent_seconds=0.0)


def allow(_: MessageOut) -> str | None:
    return None


def take(
    mailbox: Mailbox,
    read: Snapshot,
    *,
    refusal: Callable[[MessageOut], str | None] = allow,
    reserve: Callable[[Address], bool] = lambda _: False,
    counted: bool = True,
    ended: str | None = None,
) -> TakeOver:
    return mailbox.take_over(read, refusal=refusal, reserve=reserve, counted=counted, ended=ended)


def make_session(folder: Path) -> Path:
    """A session's folder with an empty inbound mailbox."""
    (folder / "inbound").mkdir(parents=True)
    schema.create_inbound(folder / "inbound" / INBOUND_DB)
    return folder


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    """All rows of one table of inbound.db, in the order in which they were written."""
    connection = schema.open_inbound_to_read(folder / "inbound" / INBOUND_DB)
    try:
        return [dict(row) for row in connection.execute(f"SELECT * FROM {name} ORDER BY rowid")]
    finally:
        connection.close()


def row_of(folder: Path, row_id: str, name: str = "messages_in") -> dict[str, Any]:
    """One row by its id."""
    return next(row for row in table(folder, name) if row["id"] == row_id)
