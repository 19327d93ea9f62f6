"""One inbound.db, opened when it is used: its connection, its transactions, and the plain facts read from it."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from host.db.agent_destinations import Destination
from host.items import InboundHeld, Target
from mailboxes import clock, schema
from mailboxes.rows import Address, DeliveryState, Kind, MessageOut


class InboundFile:
    """The file under host.mailbox. Every call blocks; one thread at a time."""

    def __init__(self, path: Path, now: Callable[[], datetime]) -> None:
        self._path = path
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._floor = 0
        self._opened: tuple[int, int] | None = None

    @property
    def session_folder(self) -> Path:
        """The session's folder, where this file lies in inbound/."""
        return self._path.parent.parent

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, opened at the first use; for reading, and inside `write`."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        with _held_by_the_sandbox():  # rolling back the journal of a killed host takes the same lock as a write
            connection = schema.open_inbound(self._path)
        self._floor = connection.execute("SELECT max(seq) FROM deliveries").fetchone()[0] or 0
        self._opened = self._identity()
        return connection

    def notice_replaced(self) -> None:
        """Lets go of a file that is no longer the one at its path: the folder was removed, moved, or put back from a
        copy. Writing on would go into a file that nobody can see."""
        if self._connection is not None and self._identity() != self._opened:
            self.close()

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def exists(self) -> bool:
        """Whether the file is there."""
        return self._connection is not None or self._path.exists()

    def close(self) -> None:
        """Lets go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def floor(self) -> int:
        """The highest seq of messages_out that was looked at: reading starts behind it."""
        if self._connection is None:
            self._connection = self._connect()
        return self._floor

    def now(self) -> datetime:
        """Now, by the host's clock."""
        return self._now()

    def stamp(self) -> str:
        """Now, as canonical text."""
        return clock.to_text(self._now())

    def write(self, work: Callable[[sqlite3.Connection], None], *, durable: bool = True) -> None:
        """One transaction. Raises InboundHeld where the lock is not to be had in time."""
        db = self.db
        try:
            if not durable:
                db.execute("PRAGMA synchronous=NORMAL")
            with _held_by_the_sandbox(), schema.transaction(db):
                work(db)
        finally:
            if not durable:
                db.execute("PRAGMA synchronous=FULL")

    def show_destinations(self, destinations: Sequence[Destination]) -> None:
        """Has the agent see whom it may write to: a copy for its tools, from which no right comes."""
        wanted = sorted((one.name, one.target_type, one.target_id) for one in destinations)
        if [tuple(row) for row in self.db.execute("SELECT * FROM destinations ORDER BY name")] == wanted:
            return

        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM destinations")
            db.executemany("INSERT INTO destinations (name, target_type, target_id) VALUES (?, ?, ?)", wanted)

        self.write(work)

    # -- plain facts

    def knows(self, row: MessageOut) -> bool:
        """Whether a row, or another with its seq, was taken over."""
        return self.db.execute("SELECT 1 FROM deliveries WHERE id=? OR seq=?", (row.id, row.seq)).fetchone() is not None

    def status_of(self, message_id: str) -> str | None:
        """The status of a message; None where it is not here (yet)."""
        row = self.db.execute("SELECT status FROM messages_in WHERE id=?", (message_id,)).fetchone()
        return row["status"] if row else None

    def target(self, seq: int) -> Target | None:
        """The message with that seq, with the platform's ids as far as it was sent or came with one; None where there
        is none, or it belongs to no chat."""
        said = seq % 2 == 1
        table = "deliveries" if said else "messages_in"
        row = self.db.execute(f"SELECT * FROM {table} WHERE seq=?", (seq,)).fetchone()  # noqa: S608  our own words
        if row is None or row["platform_id"] is None:
            return None
        address = Address(row["channel_type"], row["account_id"], row["platform_id"], row["thread_id"])
        if said:
            sent = json.loads(row["platform_ids"]) if row["state"] == DeliveryState.SENT else ()
            return Target(row["id"], address, tuple(map(str, sent)), row["next_attempt_at"] or row["deliver_after"])
        content = json.loads(row["content"])
        known = content.get("messageId" if row["kind"] == Kind.CHAT else "id")
        return Target(row["id"], address, (known,) if isinstance(known, str) else (), ours=False)

    def is_origin(self, address: Address) -> bool:
        """Whether a message of this session ever came from that address."""
        found = self.db.execute(
            "SELECT 1 FROM messages_in "
            "WHERE channel_type=? AND account_id=? AND platform_id=? AND thread_id IS ? LIMIT 1",
            (address.channel_type, address.account_id, address.platform_id, address.thread_id),
        ).fetchone()
        return found is not None


@contextmanager
def _held_by_the_sandbox() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise InboundHeld(str(error)) from error
        raise
