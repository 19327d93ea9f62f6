"""A look into a mailbox that changes nothing: no journal is rolled back, no schema brought up to date."""

import contextlib
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from host.items import SessionRef
from host.mailbox import Mailbox
from host.mailbox_index import Read
from host.undelivered import BUSY_SECONDS, UNDELIVERED

_STANDS = f"SELECT COUNT(*), COUNT(NULLIF(state, 'failed')) FROM deliveries WHERE {UNDELIVERED}"  # noqa: S608  our words


class _Glance(Mailbox):
    """A mailbox whose file is opened read-only."""

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(f"{self._path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        connection.row_factory = sqlite3.Row
        return connection


def reader(now: Callable[[], datetime]) -> Read:
    """The Read of the running host."""

    def read(agent_group_id: str, session_id: str, path: str) -> tuple[int, bool, str | None]:
        folder = Path(path).parent.parent
        with contextlib.closing(_Glance(SessionRef(agent_group_id, session_id), folder, now)) as mailbox:
            undelivered, unfinished = mailbox.db.execute(_STANDS).fetchone()
            return undelivered, unfinished > 0, mailbox.next_due()

    return read
