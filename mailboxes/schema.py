"""The two files of a mailbox: their schema, how each side opens its own, and the shipped template of outbound.db.

One writer per file: inbound.db is the host's, outbound.db the runner's. Journal DELETE, never WAL (WAL needs shared
memory that does not exist across a virtual machine's mounts). The runner creates no schema; the host makes both files.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mailboxes.limits import BUSY_MILLISECONDS
from mailboxes.rows import Address, MessageIn

INBOUND_VERSION = 2
OUTBOUND_VERSION = 1
"""PRAGMA user_version. inbound.db is migrated by the host; outbound.db is drained and made afresh."""

_SERIES = """
CREATE TABLE series (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    direction TEXT NOT NULL,
    kind TEXT NOT NULL,
    content TEXT NOT NULL,
    channel_type TEXT,
    account_id TEXT,
    platform_id TEXT,
    thread_id TEXT,
    quiet INTEGER NOT NULL DEFAULT 0,
    expression TEXT,
    every_seconds INTEGER,
    anchor TEXT,
    zone TEXT NOT NULL,
    first_hour INTEGER,
    end_hour INTEGER,
    per_day INTEGER,
    missed TEXT NOT NULL,
    missed_from TEXT,
    missed_until TEXT,
    state TEXT NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    last_run TEXT,
    last_status TEXT,
    last_error TEXT,
    remove_when_done INTEGER NOT NULL DEFAULT 0,
    principal TEXT,
    created TEXT NOT NULL,
    moved_to TEXT
);
CREATE INDEX messages_in_series ON messages_in(series_id, slot) WHERE series_id IS NOT NULL;
CREATE INDEX deliveries_series ON deliveries(series_id, slot) WHERE series_id IS NOT NULL;
"""
"""Tasks: what makes occurrences, rows of messages_in (direction `in`) or of deliveries (`out`). host.series reads and
writes it; the runner has no business with it."""

INBOUND_SCHEMA = f"""
CREATE TABLE messages_in (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    status_changed TEXT,
    process_after TEXT,
    recurrence TEXT,
    tries INTEGER NOT NULL DEFAULT 0,
    platform_id TEXT,
    channel_type TEXT,
    account_id TEXT,
    thread_id TEXT,
    content TEXT NOT NULL,
    seq INTEGER NOT NULL UNIQUE,
    series_id TEXT,
    slot TEXT,
    trigger INTEGER NOT NULL DEFAULT 1,
    on_wake INTEGER NOT NULL DEFAULT 0,
    source_session TEXT,
    principal TEXT
);
CREATE INDEX messages_in_open ON messages_in(status, process_after) WHERE status IN ('pending', 'processing');
CREATE TABLE deliveries (
    id TEXT PRIMARY KEY,
    seq INTEGER UNIQUE,
    turn_id TEXT,
    in_reply_to TEXT,
    kind TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    channel_type TEXT,
    account_id TEXT,
    platform_id TEXT,
    thread_id TEXT,
    content TEXT NOT NULL,
    deliver_after TEXT,
    recurrence TEXT,
    state TEXT NOT NULL DEFAULT 'queued',
    state_changed TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_attempt_at TEXT,
    chunks_done INTEGER NOT NULL DEFAULT 0,
    platform_ids TEXT NOT NULL DEFAULT '[]',
    unknown_count INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    series_id TEXT,
    slot TEXT
);
CREATE INDEX deliveries_undelivered ON deliveries(state)
    WHERE state IN ('queued', 'sending', 'unknown', 'failed');
CREATE INDEX deliveries_turn ON deliveries(turn_id);
CREATE TABLE destinations (
    name TEXT PRIMARY KEY,
    target_type TEXT NOT NULL,
    target_id TEXT NOT NULL
);
{_SERIES}"""

_INBOUND_MIGRATIONS = {
    1: f"ALTER TABLE deliveries ADD COLUMN series_id TEXT; ALTER TABLE deliveries ADD COLUMN slot TEXT; {_SERIES}"
}
"""What makes the next version out of a version of inbound.db."""

OUTBOUND_SCHEMA = """
CREATE TABLE messages_out (
    id TEXT PRIMARY KEY, seq INTEGER NOT NULL UNIQUE, turn_id TEXT, in_reply_to TEXT, timestamp TEXT NOT NULL,
    deliver_after TEXT, recurrence TEXT, kind TEXT NOT NULL, channel_type TEXT, account_id TEXT, platform_id TEXT,
    thread_id TEXT, content TEXT NOT NULL);
CREATE TABLE claims (
    message_id TEXT NOT NULL, attempt INTEGER NOT NULL, turn_id TEXT NOT NULL, state TEXT NOT NULL, reason TEXT,
    retryable INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (message_id, attempt)) WITHOUT ROWID;
CREATE TABLE runner_state (
    id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT NOT NULL, next_seq INTEGER NOT NULL, beat INTEGER NOT NULL,
    runner_hash TEXT NOT NULL, turn_id TEXT, open_questions INTEGER NOT NULL DEFAULT 0,
    active_tools INTEGER NOT NULL DEFAULT 0);
"""

PAGE_SIZE = 4096
_TEMPLATE = f"outbound-{OUTBOUND_VERSION}.db"

MASKED = ((24, 40), (92, 100))
"""The ranges of page 1 that a writer changes without changing the schema: change counter, sizes, free list; the
version-valid-for number and the library's version."""


IN_COLUMNS = (
    "id, kind, timestamp, status, status_changed, process_after, recurrence, tries, platform_id, channel_type, "
    "account_id, thread_id, content, seq, series_id, slot, trigger, on_wake, source_session, principal"
)
"""Every column of messages_in, in the order of INBOUND_SCHEMA."""


class HostAway(Exception):
    """inbound.db cannot be read now: the host died in a commit (its journal is hot) or has not made the file yet."""


class NewerMailbox(sqlite3.DatabaseError):
    """An inbound.db of a version that this program does not know; the text names the file and the next step."""


def outbound_template() -> bytes:
    """The shipped outbound.db of OUTBOUND_VERSION: copied byte for byte, and what page 1 of a snapshot must equal."""
    from importlib import resources  # the runner never needs it, and starts sooner without

    return resources.files("mailboxes").joinpath(_TEMPLATE).read_bytes()


def masked_page1(image: bytes) -> bytes:
    """Page 1 of a database image with the ranges of MASKED zeroed."""
    page = bytearray(image[:PAGE_SIZE])
    for start, end in MASKED:
        page[start:end] = bytes(end - start)
    return bytes(page)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_MILLISECONDS / 1000,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    return connection


def open_inbound(path: Path) -> sqlite3.Connection:
    """The host's connection to an inbound.db that exists: journal DELETE, synchronous FULL, what is deleted is wiped.

    Opening it rolls a journal back that an earlier host left, and brings the file to INBOUND_VERSION. The connection
    may move between threads, one at a time. Raises NewerMailbox.
    """
    connection = _connect(path, "rw")
    try:
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA secure_delete=ON")
        _migrate_inbound(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate_inbound(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > INBOUND_VERSION:
        raise NewerMailbox(f"{path} was written by a newer version of this program. Install that version again.")
    while version < INBOUND_VERSION:
        # One transaction for a step and its number, so that a kill in between leaves the older version whole.
        with transaction(connection):
            for statement in _INBOUND_MIGRATIONS[version].split(";"):
                connection.execute(statement)
            version += 1
            connection.execute(f"PRAGMA user_version={version}")


def create_inbound(path: Path) -> None:
    """Makes an empty inbound.db under another name and renames it into place; does nothing where one exists."""
    if path.exists():
        return
    building = path.with_name(f".{path.name}.{os.getpid()}.new")
    building.unlink(missing_ok=True)
    connection = _connect(building, "rwc")
    try:
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.executescript(INBOUND_SCHEMA)
        connection.execute(f"PRAGMA user_version={INBOUND_VERSION}")
    finally:
        connection.close()
    building.rename(path)


def open_inbound_to_read(path: Path) -> sqlite3.Connection:
    """The runner's connection to inbound.db: read-only, over a read-only mount.

    Raises HostAway where there is no readable file.
    """
    try:
        connection = _connect(path, "ro")
        connection.execute("PRAGMA query_only=ON")
    except sqlite3.OperationalError as error:
        raise HostAway(str(error)) from error
    return connection


@contextmanager
def reading() -> Iterator[None]:
    """Turns what SQLite says while the host is away (a hot journal, a lock held past the time) into HostAway."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN):
            raise HostAway(str(error)) from error
        raise


def open_outbound(path: Path) -> sqlite3.Connection:
    """The runner's connection to outbound.db: journal DELETE, no sync (the record is the host's), no spill before
    commit.

    Raises HostAway where the file is missing: the runner never makes one.
    """
    try:
        connection = _connect(path, "rw")
        connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.OperationalError as error:
        raise HostAway(str(error)) from error
    connection.execute("PRAGMA locking_mode=NORMAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA cache_spill=OFF")
    return connection


def message_in_of(row: sqlite3.Row) -> MessageIn:
    """A message from a row with all of IN_COLUMNS."""
    address = None
    if row["channel_type"] is not None and row["platform_id"] is not None:
        address = Address(row["channel_type"], row["account_id"] or "", row["platform_id"], row["thread_id"])
    return MessageIn(
        id=row["id"],
        kind=row["kind"],
        timestamp=row["timestamp"],
        content=row["content"],
        address=address,
        status=row["status"],
        status_changed=row["status_changed"],
        process_after=row["process_after"],
        recurrence=row["recurrence"],
        tries=row["tries"],
        seq=row["seq"],
        series_id=row["series_id"],
        slot=row["slot"],
        trigger=bool(row["trigger"]),
        on_wake=bool(row["on_wake"]),
        source_session=row["source_session"],
        principal=row["principal"],
    )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One immediate transaction: committed at the end, rolled back on any exception."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
