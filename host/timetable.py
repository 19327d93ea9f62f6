"""When something that recurs is due: pure functions over a schedule and a time. No clock, no database.

A next time is reckoned from the scheduled one (the slot), never from when the work was done, so nothing drifts. Cron
is read in the zone of its task; every other reckoning is in UTC.
"""

import re
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mailboxes.clock import to_text

MIN_SECONDS = 60
"""The shortest time between two occurrences of one task."""

CATCH_UP = 24
CATCH_UP_WINDOW = timedelta(days=1)
"""The policy `all` runs at most so many missed occurrences, the newest, of at most so long ago."""

_GUARD_STEPS = 100
"""Hits of croniter that are looked at in search of one that stands: the doubled hour of a minutely task has 60."""

_OPENINGS = 400
"""So many openings of its hours are looked at in search of a time of a schedule: it may have none in them."""

_FIELD = re.compile(r"(?:[0-9*,/#?-]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC|SUN|MON|TUE|WED|THU|FRI|SAT|L)+")
"""What the five fields may be made of: croniter also draws numbers at random (R) and hashes (H)."""

_EVERY = re.compile(r"every\s+(\d{1,9})\s*(s|m|h|d)", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class ScheduleRefused(ValueError):
    """A schedule cannot be; the text names it, the reason and the next step."""


class Missed(StrEnum):
    """What becomes of occurrences whose time passed while nothing could run them."""

    ONCE = "once"
    """They collapse into one run."""
    SKIP = "skip"
    """They are left out."""
    ALL = "all"
    """Each is run, up to CATCH_UP."""


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields, read in an IANA zone. Made by `cron`."""

    expression: str
    zone: str

    def __str__(self) -> str:
        return self.expression


@dataclass(frozen=True, slots=True)
class Every:
    """At `anchor` and each so many seconds after it. Made by `every`."""

    seconds: int
    anchor: datetime

    def __str__(self) -> str:
        unit = next(unit for unit in ("d", "h", "m", "s") if self.seconds % _UNITS[unit] == 0)
        return f"every {self.seconds // _UNITS[unit]}{unit}"


@dataclass(frozen=True, slots=True)
class At:
    """Once."""

    moment: datetime


Schedule = Cron | Every | At


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours of the day, in a zone, in which something may be: from the beginning of `first` to the beginning of
    `end`, over midnight where `end` is smaller; the whole day where they are equal."""

    first: int
    end: int
    zone: str

    def __post_init__(self) -> None:
        if not (0 <= self.first <= 24 and 0 <= self.end <= 24):
            raise ScheduleRefused(f"{self.first}-{self.end} are no hours of a day. Write them as 9-22 or 22-6.")

    def hold(self, moment: datetime) -> bool:
        """Whether a time lies within."""
        hour = moment.astimezone(zone_of(self.zone)).hour
        first, end = self.first % 24, self.end % 24
        if first == end:
            return True
        return first <= hour < end if first < end else hour >= first or hour < end

    def next_opening(self, moment: datetime) -> datetime:
        """The first time from `moment` on that lies within, to the hour."""
        if self.hold(moment):
            return moment
        at = moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        # In quarters: zones lie 15 minutes apart. Two days: where clocks go forward a day may not have the hour at all.
        quarters = (at + timedelta(minutes=15) * n for n in range(1, 4 * 50))
        return next(quarter for quarter in quarters if self.hold(quarter))


def zone_of(name: str) -> ZoneInfo:
    """The zone of an IANA name. Raises ScheduleRefused."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleRefused(f"There is no time zone {name[:60]!r}. Write one such as Europe/Berlin or UTC.") from None


def cron(expression: str, zone: str, now: datetime) -> Cron:
    """A cron schedule, tried once. Raises ScheduleRefused."""
    fields = expression.upper().split()
    if len(fields) != 5 or not expression.isascii() or len(expression) > 200:
        raise ScheduleRefused(
            f"{expression[:60]!r} is no cron expression of five fields (minute hour day month weekday). "
            "Write it as '0 9 * * 1-5'."
        )
    if bad := next((field for field in fields if not _FIELD.fullmatch(field)), None):
        raise ScheduleRefused(f"{bad[:60]!r} means nothing in the cron expression {expression!r}.")
    made = Cron(" ".join(fields), zone)
    try:
        found = next_fire(made.expression, zone, now)
    except ValueError as error:  # croniter's own errors are such
        raise ScheduleRefused(f"{expression!r} is no cron expression: {error}.") from None
    if found is None:
        raise ScheduleRefused(f"The cron expression {expression!r} never comes true.")
    return made


def every(seconds: int, anchor: datetime) -> Every:
    """An interval. Raises ScheduleRefused for less than MIN_SECONDS, or more than ten years."""
    if not MIN_SECONDS <= seconds <= 10 * 366 * 86400:
        raise ScheduleRefused(f"Every {seconds} s is not possible: the shortest interval is {MIN_SECONDS} s.")
    return Every(seconds, anchor.astimezone(UTC))


def recurrence(text: str, zone: str, anchor: datetime, now: datetime) -> Cron | Every:
    """A recurrence as people and agents write it: a cron expression, or "every 30m" (s, m, h, d) from `anchor` on.
    Raises ScheduleRefused."""
    if found := _EVERY.fullmatch(text.strip().lower()):
        return every(int(found[1]) * _UNITS[found[2]], anchor)
    return cron(text, zone, now)


def moment(text: str, zone: str) -> datetime:
    """A time that somebody wrote in ISO 8601; one without an offset is meant in `zone`. In the doubled hour it is the
    first, in the skipped one as much later. Raises ScheduleRefused."""
    try:
        read = datetime.fromisoformat(text.strip())
        placed = read.replace(tzinfo=zone_of(zone)) if read.tzinfo is None else read
        return placed.astimezone(UTC)
    except ScheduleRefused:
        raise
    except (ValueError, OverflowError):
        example = "2026-01-31T09:00 or 2026-01-31T09:00:00Z"
        raise ScheduleRefused(f"{text[:60]!r} is no time. Write it as {example}.") from None


def next_fire(expression: str, zone: str, after: datetime) -> datetime | None:
    """The first time after `after` for which a cron expression holds in a zone, in UTC; None where there is none.

    In the hour that a zone has twice, what names its minute and hour fires at the first of the two; what recurs within
    the day (a field of the two begins with `*`) at both. In the hour that it skips, the former fires at its end, the
    latter not at all. Raises ValueError where the expression is none.
    """
    from croniter import CroniterBadDateError, croniter  # slow, and most commands schedule nothing

    minute, hour = expression.split()[:2]
    wildcard = minute.startswith("*") or hour.startswith("*")
    hits = croniter(expression, after.astimezone(zone_of(zone)))
    minutes, hours = (range(60) if field == ["*"] else field for field in croniter.expand(expression)[0][:2])
    try:
        for _ in range(_GUARD_STEPS):
            hit: datetime = hits.get_next(datetime)
            stands = (hit.minute in minutes and hit.hour in hours) if wildcard else hit.fold == 0
            if stands and hit > after:
                return hit.astimezone(UTC)
    except CroniterBadDateError:
        return None
    return None


def next_slot(schedule: Schedule, after: datetime, hours: Hours | None = None) -> datetime | None:
    """The first time of a schedule after `after`, within `hours`; None where there is none (any more)."""
    if isinstance(schedule, At):
        return schedule.moment if schedule.moment > after else None
    found = _next(schedule, after)
    for _ in range(_OPENINGS):
        if found is None or hours is None or hours.hold(found):
            return found
        # To the opening at once: a beat a minute may have hundreds of times outside.
        found = _next(schedule, hours.next_opening(found) - timedelta(microseconds=1))
    return None


def _next(schedule: Cron | Every, after: datetime) -> datetime | None:
    if isinstance(schedule, Cron):
        return next_fire(schedule.expression, schedule.zone, after)
    if after < schedule.anchor:
        return schedule.anchor
    step = timedelta(seconds=schedule.seconds)
    return schedule.anchor + ((after - schedule.anchor) // step + 1) * step


@dataclass(frozen=True, slots=True)
class Following:
    """The slot that follows. `missed_from`: the first one that will not be run, None where each is."""

    slot: datetime | None
    missed_from: datetime | None = None


def following(
    schedule: Schedule, slot: datetime, now: datetime, policy: Missed, hours: Hours | None = None
) -> Following:
    """What comes after the occurrence of `slot`, which was done with at `now`."""
    first = next_slot(schedule, slot, hours)
    if first is None or first > now:
        return Following(first)
    if policy is not Missed.ALL:
        return Following(next_slot(schedule, now, hours), missed_from=first)
    kept: deque[datetime] = deque(maxlen=CATCH_UP)
    at = next_slot(schedule, max(slot, now - CATCH_UP_WINDOW), hours)
    while at is not None and at <= now:
        kept.append(at)
        at = next_slot(schedule, at, hours)
    due = kept[0] if kept else at
    return Following(due, missed_from=None if due == first else first)


def shown(moment: datetime, zone: str) -> str:
    """A time as an agent or a person reads it, in a zone: 2026-01-31 09:00 (Europe/Berlin)."""
    return f"{moment.astimezone(zone_of(zone)):%Y-%m-%d %H:%M} ({zone})"


def canonical(moment: datetime | None) -> str | None:
    """The text of a slot; None for none."""
    return None if moment is None else to_text(moment)
