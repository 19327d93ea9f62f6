"""What the host itself has to say (notices, refusals, pairing replies), committed before it is sent; the same record as
`deliveries` of a mailbox, drained by the same code (mailboxes/schema.py)."""

from sqlalchemy import Column, Connection, Index, Integer, Table, Text, select, text, update

from host.db.engine import upsert
from host.db.metadata import metadata
from mailboxes.rows import Address, DeliveryState

host_outbox = Table(
    "host_outbox",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seq", Integer, unique=True),
    Column("turn_id", Text),
    Column("in_reply_to", Text),
    Column("kind", Text, nullable=False),
    Column("timestamp", Text, nullable=False),
    Column("channel_type", Text),
    Column("account_id", Text),
    Column("platform_id", Text),
    Column("thread_id", Text),
    Column("content", Text, nullable=False),
    Column("deliver_after", Text),
    Column("recurrence", Text),
    Column("state", Text, nullable=False, server_default="queued"),
    Column("state_changed", Text),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_attempt_at", Text),
    Column("chunks_done", Integer, nullable=False, server_default="0"),
    Column("platform_ids", Text, nullable=False, server_default="[]"),
    Column("unknown_count", Integer, nullable=False, server_default="0"),
    Column("last_error", Text),
)
_OPEN = text("state IN ('queued', 'sending', 'unknown')")
Index("host_outbox_open", host_outbox.c.state, sqlite_where=_OPEN, postgresql_where=_OPEN)

_CHANGEABLE = (
    "state",
    "state_changed",
    "attempts",
    "next_attempt_at",
    "chunks_done",
    "platform_ids",
    "unknown_count",
    "last_error",
)


def add(connection: Connection, id: str, address: Address, content: str, now: str, kind: str = "chat") -> None:  # noqa: A002
    """Queues one message (the JSON text of its kind) to an address; an id that is known is a no-op."""
    row = {
        "id": id,
        "kind": kind,
        "timestamp": now,
        "content": content,
        "state": DeliveryState.QUEUED.value,
        "state_changed": now,
        "channel_type": address.channel_type,
        "account_id": address.account_id,
        "platform_id": address.platform_id,
        "thread_id": address.thread_id,
    }
    upsert(connection, host_outbox, [row])


def open_rows(connection: Connection) -> list[dict[str, object]]:
    """The rows that are not settled, oldest first, as plain columns (the delivery code has the type for them)."""
    rows = connection.execute(select(host_outbox).where(_OPEN).order_by(host_outbox.c.timestamp, host_outbox.c.id))
    return [dict(row) for row in rows.mappings()]


def retry(connection: Connection, id: str, now: str) -> dict[str, object] | None:  # noqa: A002
    """Queues a dead letter again with a fresh count; its row, or None where it is none."""
    again = update(host_outbox).where(host_outbox.c.id == id, host_outbox.c.state == DeliveryState.FAILED.value)
    fresh = again.values(
        state=DeliveryState.QUEUED.value, attempts=0, unknown_count=0, next_attempt_at=None, state_changed=now
    )
    if connection.execute(fresh).rowcount == 0:
        return None
    return dict(connection.execute(select(host_outbox).where(host_outbox.c.id == id)).mappings().one())


def change(connection: Connection, id: str, **columns: str | int | None) -> None:  # noqa: A002
    """Sets columns of the delivery record. Raises ValueError for any other column."""
    if not columns.keys() <= set(_CHANGEABLE):
        raise ValueError(f"only {', '.join(_CHANGEABLE)} of a delivery change")
    connection.execute(update(host_outbox).where(host_outbox.c.id == id).values(**columns))
