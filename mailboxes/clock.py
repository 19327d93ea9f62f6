"""The one clock and the one time format: UTC, ``YYYY-MM-DDTHH:MM:SS.mmmZ``.

Every time stamp in a database is made and compared here, because SQLite compares text: mixed formats shift schedules.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What a component that waits or stamps is given; tests inject one that they move by hand."""

    def now(self) -> datetime:
        """The wall clock: an aware UTC time."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; compare only with itself."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits for that many seconds of this clock."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """The wall clock in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """`time.monotonic`."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """`asyncio.sleep`."""
        await asyncio.sleep(seconds)


def to_text(moment: datetime) -> str:
    """The canonical text of an aware time, cut (not rounded) to milliseconds.

    Raises ValueError for a time without a zone: guessing one is how reminders come eight hours early.
    """
    if moment.tzinfo is None:
        raise ValueError(f"the time {moment.isoformat()} has no zone")
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def from_text(text: str) -> datetime:
    """An aware UTC time from any ISO 8601 text that carries an offset or ``Z``.

    Raises ValueError for text that is no time or has no zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone; write it as 2026-01-31T09:00:00Z or with an offset")
    return moment.astimezone(UTC)


def canonical(text: str) -> str:
    """Any zoned ISO 8601 text in the canonical form."""
    return to_text(from_text(text))


def later(moment: datetime, seconds: float) -> str:
    """The canonical text of `moment` plus `seconds`."""
    return to_text(moment + timedelta(seconds=seconds))
