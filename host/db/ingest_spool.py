"""Events on their way into a mailbox: with host_outbox the only content in this database, and it drains."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Integer, Table, Text, bindparam, delete, insert, select

from host.db.metadata import metadata
from host.db.quick import quickly

ingest_spool = Table(
    "ingest_spool",
    metadata,
    # SQLAlchemy gives this its own series in either database: rows are put in the order in which they were accepted.
    Column("position", Integer, primary_key=True),
    Column("message_id", Text, nullable=False, unique=True),
    Column("event", Text, nullable=False),
    Column("session_id", Text),
    Column("trigger", Integer, nullable=False, server_default="1"),
    Column("received_at", Text, nullable=False),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True, slots=True)
class Spooled:
    """One event (its JSON text); session_id is None while nobody decided where it goes."""

    message_id: str
    event: str
    session_id: str | None
    trigger: int
    received_at: str


_INSERT = insert(ingest_spool)
FORGET = delete(ingest_spool).where(ingest_spool.c.message_id == bindparam("done"))
"""Takes one row out; its parameter is `done`, the message id."""


def add(connection: Connection, rows: Sequence[Spooled]) -> None:
    """Spools events, in order."""
    quickly(connection, _INSERT, [{name: getattr(row, name) for name in Spooled.__slots__} for row in rows])


def holds(connection: Connection, message_id: str) -> bool:
    """Whether a message is on its way."""
    found = select(ingest_spool.c.message_id).where(ingest_spool.c.message_id == message_id)
    return connection.execute(found).first() is not None


def every(connection: Connection) -> list[Spooled]:
    """All that is spooled, in order."""
    columns = [ingest_spool.c[name] for name in Spooled.__slots__]
    return [Spooled(*row) for row in connection.execute(select(*columns).order_by(ingest_spool.c.position))]
