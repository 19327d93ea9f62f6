"""Which events were taken in: a redelivered event finds its key here, for ever, and is a no-op (ledger R024)."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Table, Text, bindparam, insert, select

from host.db.engine import upsert
from host.db.metadata import metadata
from host.db.quick import quickly

ingest = Table(
    "ingest",
    metadata,
    Column("channel_type", Text, primary_key=True),
    Column("account_id", Text, primary_key=True),
    Column("event_key", Text, primary_key=True),
    Column("session_id", Text),
    Column("message_id", Text),
    Column("received_at", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Ingested:
    """One event; session and message id are None where it went nowhere (dropped, refused)."""

    channel_type: str
    account_id: str
    event_key: str
    session_id: str | None
    message_id: str | None
    received_at: str


_KNOWN = select(ingest.c.event_key).where(
    ingest.c.channel_type == bindparam("channel_type"),
    ingest.c.account_id == bindparam("account_id"),
    ingest.c.event_key.in_(bindparam("event_keys", expanding=True)),
)
_KNOWN_ONE = select(ingest.c.event_key).where(
    ingest.c.channel_type == bindparam("channel_type"),
    ingest.c.account_id == bindparam("account_id"),
    ingest.c.event_key == bindparam("event_key"),
)
"""A list of unknown length is put into the statement's text anew each time; most often there is one event."""

_INSERT = insert(ingest)


def known(connection: Connection, channel_type: str, account_id: str, event_keys: Sequence[str]) -> set[str]:
    """Which of these events were taken in before."""
    account = {"channel_type": channel_type, "account_id": account_id}
    if len(event_keys) == 1:
        return {row[0] for row in quickly(connection, _KNOWN_ONE, [{**account, "event_key": event_keys[0]}])}
    return set(connection.execute(_KNOWN, {**account, "event_keys": list(event_keys)}).scalars())


def record(connection: Connection, rows: Sequence[Ingested]) -> None:
    """Records events. Raises IntegrityError for one that is known."""
    quickly(connection, _INSERT, [{name: getattr(row, name) for name in Ingested.__slots__} for row in rows])


def destination(
    connection: Connection, channel_type: str, account_id: str, event_key: str
) -> tuple[str | None, str | None] | None:
    """(session id, message id) of an event, both None where it went nowhere; None for an event that never came."""
    row = connection.execute(
        select(ingest.c.session_id, ingest.c.message_id).where(
            ingest.c.channel_type == channel_type, ingest.c.account_id == account_id, ingest.c.event_key == event_key
        )
    ).one_or_none()
    return None if row is None else (row.session_id, row.message_id)


def settle(connection: Connection, rows: Sequence[Ingested]) -> None:
    """Fixes session and message id of events that were taken in before anybody knew where they go."""
    upsert(
        connection,
        ingest,
        [{name: getattr(row, name) for name in Ingested.__slots__} for row in rows],
        ("channel_type", "account_id", "event_key"),
        ("session_id", "message_id"),
    )
