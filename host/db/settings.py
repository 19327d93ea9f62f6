"""Settings that a person stored; what they mean stands in host.settings. Never a secret."""

from sqlalchemy import Column, Connection, Table, Text, delete, select

from host.db.engine import upsert
from host.db.metadata import metadata

settings = Table(
    "settings",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)


def store(connection: Connection, name: str, value: str) -> None:
    """Sets one; the caller has checked it with host.settings.parse."""
    upsert(connection, settings, [{"name": name, "value": value}], ("name",), ("value",))


def unset(connection: Connection, name: str) -> None:
    """Back to the default."""
    connection.execute(delete(settings).where(settings.c.name == name))


def every(connection: Connection) -> dict[str, str]:
    """All that are set."""
    return {row.name: row.value for row in connection.execute(select(settings))}
