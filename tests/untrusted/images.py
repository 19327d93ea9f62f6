"""Images of an outbound.db, honest and hostile, all written by the real SQLite."""

import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mailboxes.schema import open_outbound, outbound_template, transaction

GOOD: dict[str, object] = {
    "id": "o-good",
    "seq": 1,
    "turn_id": "t-1",
    "in_reply_to": "m-1",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "deliver_after": None,
    "recurrence": None,
    "kind": "chat",
    "channel_type": "telegram",
    "account_id": "bot",
    "platform_id": "42",
    "thread_id": None,
    "content": '{"text":"hello"}',
}


def insert_out(connection: sqlite3.Connection, values: dict[str, object]) -> None:
    columns = ", ".join(values)
    marks = ", ".join("?" for _ in values)
    connection.execute(f"INSERT INTO messages_out ({columns}) VALUES ({marks})", tuple(values.values()))


def written(write: Callable[[sqlite3.Connection], object], start: bytes | None = None) -> bytes:
    """The image after `write` ran on a connection as the runner opens it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outbound.db"
        path.write_bytes(start or outbound_template())
        connection = open_outbound(path)
        try:
            write(connection)
        finally:
            connection.close()
        return path.read_bytes()


def with_rows(*rows: Mapping[str, object]) -> bytes:
    """An image with these rows; each holds what differs from GOOD."""

    def write(connection: sqlite3.Connection) -> None:
        with transaction(connection):
            for number, row in enumerate(rows):
                insert_out(connection, {**GOOD, "id": f"o-{number}", "seq": 2 * number + 1, **row})

    return written(write)


def with_sql(*statements: str | tuple[str, Sequence[object]]) -> bytes:
    """An image after these statements (text, or text and its values)."""

    def write(connection: sqlite3.Connection) -> None:
        for statement in statements:
            text, values = (statement, ()) if isinstance(statement, str) else statement
            connection.execute(text, values)

    return written(write)


def made_by(script: str) -> bytes:
    """A database of quite another schema."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "other.db"
        connection = sqlite3.connect(path)
        try:
            connection.executescript(script)
        finally:
            connection.close()
        return path.read_bytes()
