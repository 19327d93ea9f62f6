"""How many messages of the sessions have not arrived, counted again only where a mailbox has changed.

Opening a thousand databases takes half a second; reading their change counters takes some milliseconds. SQLite raises
the counter with every commit, so a count holds for as long as its counter stands.
"""

import os
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path

from mailboxes.layout import INBOUND_DB

OPEN_STATES = ("queued", "sending", "unknown", "failed")
"""The states of what has been said and has not arrived (mailboxes.rows.DeliveryState)."""

UNDELIVERED = f"state IN {OPEN_STATES}"
"""In SQL, and in the very words of the index of `deliveries`: SQLite uses that index for no others."""

BUSY_SECONDS = 0.25

_COUNT = f"SELECT COUNT(*) FROM deliveries WHERE {UNDELIVERED}"  # noqa: S608  our own words

_COUNTER_AT, _COUNTER_BYTES = 24, 4


class Undelivered:
    """Keeps a count for each inbound.db; one that cannot be read now counts as it did last."""

    def __init__(self) -> None:
        self._counts: dict[Path, tuple[bytes, int]] = {}
        self._counting = threading.Lock()

    def count(self, session_folders: Iterable[Path]) -> int:
        """The sum over these sessions. Blocks; any thread may ask."""
        with self._counting:
            paths = [folder / "inbound" / INBOUND_DB for folder in session_folders]
            found = {path: self._look(path) for path in paths}
            self._counts = {path: known for path, known in found.items() if known is not None}
            return sum(number for _, number in self._counts.values())

    def _look(self, path: Path) -> tuple[bytes, int] | None:
        known = self._counts.get(path)
        # The counter is read first: a commit in between makes it older than the count beside it, never newer.
        counter = _change_counter(path)
        if counter is None or (known is not None and known[0] == counter):
            return known if counter is not None else None
        try:
            return counter, _count(path)
        except sqlite3.Error:
            # The host writes just now, or died in a write and rolls it back at its next start.
            return None if known is None else (b"", known[1])


def _change_counter(path: Path) -> bytes | None:
    """None where there is no file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.pread(descriptor, _COUNTER_BYTES, _COUNTER_AT)
    finally:
        os.close(descriptor)


def _count(path: Path) -> int:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    try:
        return int(connection.execute(_COUNT).fetchone()[0])
    finally:
        connection.close()
