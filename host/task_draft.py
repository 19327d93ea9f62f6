"""What somebody asks of a task, as an agent's action, a command or a file says it, made into a task. No side effect."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from host.series import Direction, Series
from host.series_changes import A_MOMENT
from host.timetable import (
    MIN_SECONDS,
    At,
    Cron,
    Every,
    Hours,
    Missed,
    Schedule,
    ScheduleRefused,
    cron,
    moment,
    recurrence,
    zone_of,
)
from mailboxes.clock import to_text
from mailboxes.rows import Address, Kind

MAX_TEXT = 32_000
MAX_NAME = 80
_NAME_OF_TEXT = 40

_TEXTS = ("prompt", "message", "process_after", "recurrence", "zone", "name", "script", "missed", "hours")
_FLAGS = ("quiet", "remove_when_done")
FIELDS = (*_TEXTS, *_FLAGS, "per_day")
"""What may be said of a task.

prompt | message   what the agent is woken with | what goes out as it is, at that time, without waking the agent
process_after      when it is first: ISO 8601, with an offset or in `zone`
recurrence         "" (once), five fields of cron, or "every 30m"
zone               an IANA name; the installation's where none is said
name, script       its name for people; the script that says whether the agent has to wake
missed             once, skip or all: what becomes of what was missed
hours              "9-22": only within these hours of the day (over midnight: "22-6")
quiet              results are kept and logged, and sent nowhere
per_day            at most so many runs a day
remove_when_done   it is forgotten after its last run
"""

_CHANGE_OF_KIND = "A task that wakes the agent does not become one that only says something. Make a new one."


def check(said: Mapping[str, object]) -> None:
    """Raises ScheduleRefused for what has another shape."""
    for name, value in said.items():
        if name not in FIELDS:
            raise ScheduleRefused(f"A task has no {name[:40]!r}. It has: {', '.join(FIELDS)}.")
        if value is None:
            continue
        if name in _TEXTS and not (isinstance(value, str) and len(value) <= MAX_TEXT):
            raise ScheduleRefused(f"{name} is a text of at most {MAX_TEXT} characters.")
        if name in _FLAGS and not isinstance(value, bool):
            raise ScheduleRefused(f"{name} is true or false.")
        if name == "per_day" and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10_000):
            raise ScheduleRefused("per_day is a number above 0.")


def new_series(
    said: Mapping[str, object], *, series_id: str, address: Address | None, principal: str | None, zone: str,
    now: datetime, soonest: timedelta = timedelta(0),
) -> tuple[Series, datetime]:  # fmt: skip
    """A task, and when its times begin. `soonest`: a single time is put off until then. Raises ScheduleRefused."""
    check(said)
    prompt, message = _text(said, "prompt"), _text(said, "message")
    if bool(prompt) == bool(message):
        raise ScheduleRefused("A task has either a prompt, with which the agent is woken, or a message, which is sent.")
    if not _text(said, "process_after") and not _text(said, "recurrence"):
        raise ScheduleRefused("A task needs a time: process_after, recurrence, or both.")
    if message and address is None:
        raise ScheduleRefused("A message needs a chat to go to, and this session has none.")
    zone = zone_of(_text(said, "zone") or zone).key
    made = Series(
        series_id, _name(said, prompt or message), Direction.IN if prompt else Direction.OUT,
        Kind.TASK if prompt else Kind.CHAT, "", address, At(now), zone, to_text(now), principal,
        quiet=address is None,
    )  # fmt: skip
    schedule, start = _schedule(said, made, now, soonest)
    return _filled(replace(made, schedule=schedule), said), start


def changed(
    series: Series, said: Mapping[str, object], *, now: datetime, soonest: timedelta = timedelta(0)
) -> tuple[Series, datetime]:
    """A task with what is said of it in the place of what was, and when its times begin. Raises ScheduleRefused."""
    check(said)
    other = "message" if series.direction is Direction.IN else "prompt"
    if _text(said, other):
        raise ScheduleRefused(_CHANGE_OF_KIND)
    if _text(said, "zone"):
        series = replace(series, zone=zone_of(_text(said, "zone")).key)
        if isinstance(series.schedule, Cron):
            series = replace(series, schedule=cron(series.schedule.expression, series.zone, now))
    start = now + A_MOMENT
    if said.get("process_after") is not None or said.get("recurrence") is not None:
        schedule, start = _schedule(said, series, now, soonest)
        series = replace(series, schedule=schedule)
    if _text(said, "name"):
        series = replace(series, name=_name(said, ""))
    return _filled(series, said), start


def _filled(series: Series, said: Mapping[str, object]) -> Series:
    """With what is said of everything but its times."""
    content: dict[str, object] = json.loads(series.content) if series.content else {}
    text = _text(said, "prompt") or _text(said, "message")
    if text:
        content["prompt" if series.direction is Direction.IN else "text"] = text
    script = said.get("script")
    if script is not None:
        if series.direction is Direction.OUT:
            raise ScheduleRefused("A message has no script: there is no agent to wake.")
        content["script"] = script
        if not script:
            del content["script"]
    missed, per_day, quiet, hours = said.get("missed"), said.get("per_day"), said.get("quiet"), said.get("hours")
    if missed is not None and missed not in set(Missed):
        raise ScheduleRefused(f"missed is one of {', '.join(Missed)}.")
    if quiet is False and series.address is None:
        raise ScheduleRefused("This session has no chat to which a result could be sent.")
    return replace(
        series,
        content=json.dumps(content, ensure_ascii=False),
        quiet=series.quiet if quiet is None else bool(quiet),
        missed=series.missed if missed is None else Missed(str(missed)),
        hours=hours_of(str(hours), series.zone) if hours is not None else _hours_in(series),
        per_day=series.per_day if not isinstance(per_day, int) else per_day,
        remove_when_done=bool(said.get("remove_when_done", series.remove_when_done)),
    )


def _hours_in(series: Series) -> Hours | None:
    return series.hours and replace(series.hours, zone=series.zone)


def hours_of(text: str, zone: str) -> Hours | None:
    """Hours as people write them; "" for the whole day. Raises ScheduleRefused."""
    if not text:
        return None
    first, _, end = text.partition("-")
    if not (first.strip().isdecimal() and end.strip().isdecimal()):
        raise ScheduleRefused(f"{text[:40]!r} are no hours of a day. Write them as 9-22 or 22-6.")
    return Hours(int(first), int(end), zone)


def _schedule(
    said: Mapping[str, object], series: Series, now: datetime, soonest: timedelta
) -> tuple[Schedule, datetime]:
    """The schedule that is said, and when it begins: what is not said of it stays."""
    first = _text(said, "process_after")
    start = moment(first, series.zone) if first else now
    text = said.get("recurrence")
    if text is None and series.recurs and series.content:
        text = str(series.schedule)
    if text:
        made = recurrence(str(text), series.zone, start, now)
        if first:
            return made, max(start, now)
        # Without a time of its own an interval stays on its grid; a new one begins now, with its first time at its end.
        same = (
            isinstance(made, Every) and isinstance(series.schedule, Every) and made.seconds == series.schedule.seconds
        )
        return series.schedule if same else made, now + A_MOMENT
    if not first:
        raise ScheduleRefused("A task that is not to recur any more needs a time: process_after.")
    if start < now - timedelta(seconds=MIN_SECONDS):
        raise ScheduleRefused(f"{first} lies in the past: it is {to_text(now)} now.")
    start = max(start, now + soonest)
    return At(start), start


def _text(said: Mapping[str, object], name: str) -> str:
    return str(said.get(name) or "").strip()


def _name(said: Mapping[str, object], text: str) -> str:
    given = " ".join((_text(said, "name") or text[: 4 * _NAME_OF_TEXT]).split())
    return given[:MAX_NAME] if _text(said, "name") else given[:_NAME_OF_TEXT]
