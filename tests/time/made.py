"""Tasks in one word, and what their occurrences have become."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from host import series_changes
from host.items import TakeOver
from host.mailbox import Mailbox
from host.series import Direction, Series, get
from host.series_changes import Done
from host.timetable import Every
from mailboxes.clock import from_text
from mailboxes.rows import Claim, ClaimState
from tests.mailbox.made import CHAT, STAMP, snapshot, table, take

NOW = datetime(2026, 1, 1, tzinfo=UTC)
"""What the clock of a test begins with."""
HOUR = timedelta(hours=1)
HOURLY = Every(3600, NOW)


def task(**changes: Any) -> Series:
    made = Series(
        "task-1", "water", Direction.IN, "task", '{"prompt": "water the plants"}', CHAT, HOURLY, "Europe/Berlin", STAMP
    )
    return replace(made, **changes)


def reminder(**changes: Any) -> Series:
    return replace(task(), direction=Direction.OUT, kind="chat", content='{"text": "stand up"}', **changes)


def add(mailbox: Mailbox, series: Series, start: datetime | None = None) -> Done:
    done = Done()
    at = start or from_text(series.created)
    mailbox.write(lambda db: _none(series_changes.add(mailbox, db, series, at, done)))
    return done


def do(mailbox: Mailbox, change: Any, series_id: str = "task-1") -> Done:
    """One of series_changes' functions that take nothing more."""
    done = Done()
    mailbox.write(lambda db: _none(change(mailbox, db, series_changes.wanted(db, series_id), done)))
    return done


def known(mailbox: Mailbox, series_id: str = "task-1") -> Series:
    found = get(mailbox.db, series_id)
    assert found is not None
    return found


def occurrences(folder: Path, name: str = "messages_in") -> list[tuple[str, str]]:
    """(slot, status) of every occurrence, in order of slot."""
    state = "status" if name == "messages_in" else "state"
    return sorted((row["slot"][11:16], row[state]) for row in table(folder, name) if row["slot"] is not None)


def waiting(folder: Path) -> dict[str, Any]:
    """The one row that waits."""
    (row,) = [row for row in table(folder, "messages_in") if row["status"] in ("pending", "processing")]
    return row


def run(mailbox: Mailbox, folder: Path, state: ClaimState = ClaimState.COMPLETED, **changes: Any) -> TakeOver:
    """The runner's word on what waits."""
    row = waiting(folder)
    word = replace(Claim(row["id"], row["tries"], f"t-{row['id'][:8]}-{row['tries']}", state), **changes)
    return take(mailbox, snapshot(claims=[word]))


def fail(mailbox: Mailbox, folder: Path) -> TakeOver:
    """What waits fails for good."""
    return run(mailbox, folder, ClaimState.RELEASED, reason="the model refused.", retryable=False)


def _none(_: object) -> None:
    """For a change whose result says nothing."""
