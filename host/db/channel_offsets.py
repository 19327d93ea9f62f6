"""How far each channel account was read: committed with the events, so a restart neither loses nor replays (R059)."""

from sqlalchemy import Column, Connection, Table, Text, select

from host.db.engine import upsert
from host.db.metadata import metadata

channel_offsets = Table(
    "channel_offsets",
    metadata,
    Column("channel_type", Text, primary_key=True),
    Column("account_id", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Column("updated_at", Text, nullable=False),
)


def store(connection: Connection, offsets: dict[tuple[str, str], str], now: str) -> None:
    """Stores the platform's own word for where to go on, by (channel_type, account_id)."""
    rows = [
        {"channel_type": channel_type, "account_id": account_id, "value": value, "updated_at": now}
        for (channel_type, account_id), value in offsets.items()
    ]
    upsert(connection, channel_offsets, rows, ("channel_type", "account_id"), ("value", "updated_at"))


def get(connection: Connection, channel_type: str, account_id: str) -> str | None:
    """The stored offset."""
    columns = channel_offsets.c
    return connection.execute(
        select(columns.value).where(columns.channel_type == channel_type, columns.account_id == account_id)
    ).scalar()
