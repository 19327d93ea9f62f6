"""When something recurs: cron against another implementation, grids, hours of the day, what was missed."""

import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from host.timetable import (
    CATCH_UP,
    At,
    Cron,
    Every,
    Hours,
    Missed,
    ScheduleRefused,
    cron,
    every,
    following,
    moment,
    next_fire,
    next_slot,
    recurrence,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def fires(expression: str, zone: str, after: datetime, until: datetime) -> list[datetime]:
    found = []
    at = next_fire(expression, zone, after)
    while at is not None and at <= until:
        found.append(at)
        at = next_fire(expression, zone, at)
    return found


def transitions(year: int) -> dict[str, list[datetime]]:
    """The times at which the offset of a zone changes, to the hour; of zones that change alike only one."""
    found: dict[tuple[object, ...], str] = {}
    days = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in range(366)]
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        offsets = [day.astimezone(zone).utcoffset() for day in days]
        if len(set(offsets)) == 1:
            continue
        changes = tuple(
            (hour, (hour + HOUR).astimezone(zone).utcoffset())
            for day, (before, after) in zip(days, itertools.pairwise(offsets), strict=False)
            if before != after
            for hour in (day + HOUR * n for n in range(24))
            if hour.astimezone(zone).utcoffset() != (hour + HOUR).astimezone(zone).utcoffset()
        )
        found.setdefault(changes, name)
    return {name: [hour for hour, _ in changes] for changes, name in found.items()}  # type: ignore[attr-defined,misc]


EXPRESSIONS = ("30 2 * * *", "0 9 * * *", "0 */2 * * *", "*/20 2 * * *", "45 * * * *", "0 0 * * *", "5 */3 * * 0")
OURS_IS_RIGHT = {("Australia/LHI", text) for text in ("0 */2 * * *", "*/20 2 * * *", "45 * * * *", "5 */3 * * 0")}
"""Its clocks go back by half an hour, of which cronsim leaves out what recurs within the day."""


@pytest.mark.req("R149")
def test_cron_agrees_with_another_implementation_around_every_change_of_the_clocks_of_a_year() -> None:
    zones = transitions(2026)
    assert len(zones) > 20
    for name, changes in zones.items():
        for change in changes:
            begin, end = change - 25 * HOUR, change + 26 * HOUR
            for expression in EXPRESSIONS:
                ours = fires(expression, name, begin, end)
                assert len(ours) == len(set(ours))
                if (name, expression) in OURS_IS_RIGHT:
                    continue
                theirs = CronSim(expression, begin.astimezone(ZoneInfo(name)))
                expected = [next(theirs).astimezone(UTC) for _ in range(len(ours) + 1)]
                assert ours == [at for at in expected if at <= end], (name, change, expression)


@pytest.mark.req("R149")
def test_a_local_hour_stays_over_the_change_of_the_clocks() -> None:
    assert fires("0 9 * * *", "Asia/Shanghai", NOW, NOW + 24 * HOUR) == [utc("2026-01-01T01:00")]
    us = fires("0 9 * * *", "America/New_York", utc("2026-03-07T00:00"), utc("2026-03-08T23:00"))
    assert us == [utc("2026-03-07T14:00"), utc("2026-03-08T13:00")]


@pytest.mark.req("R149")
def test_what_names_its_time_fires_once_in_the_doubled_hour_and_once_for_the_skipped_one() -> None:
    assert fires("30 2 * * *", "Europe/Berlin", utc("2026-10-25T00:00"), utc("2026-10-25T12:00")) == [
        utc("2026-10-25T00:30")
    ]
    assert fires("30 2 * * *", "Europe/Berlin", utc("2026-03-29T00:00"), utc("2026-03-29T12:00")) == [
        utc("2026-03-29T01:00")
    ]


@pytest.mark.req("R149", "R115")
@pytest.mark.parametrize(
    "expression",
    ["@daily", "0 9 * *", "0 0 9 * * *", "0 9 * * * 2026 7", "R * * * *", "H H * * *", "60 * * * *", "0 0 31 2 *",
     "0 0 W * *", "٣ * * * *", "", "0 9 * * " + "1," * 200 + "1"],
)  # fmt: skip
def test_an_expression_that_is_none_is_refused_with_its_text(expression: str) -> None:
    with pytest.raises(ScheduleRefused) as refused:
        cron(expression, "UTC", NOW)
    assert expression[:20] in str(refused.value)


@pytest.mark.req("R149")
def test_a_zone_that_is_none_is_refused() -> None:
    for zone in ("Mars/Base", "../../etc/passwd", ""):
        with pytest.raises(ScheduleRefused, match="Europe/Berlin"):
            cron("0 9 * * *", zone, NOW)


@pytest.mark.req("R238")
def test_an_interval_lies_on_the_grid_of_its_anchor() -> None:
    grid = every(3600, utc("2026-01-01T00:10"))
    assert next_slot(grid, NOW) == utc("2026-01-01T00:10")
    assert next_slot(grid, utc("2026-01-01T00:10")) == utc("2026-01-01T01:10")
    assert next_slot(grid, utc("2026-01-05T17:45")) == utc("2026-01-05T18:10")
    assert str(grid) == "every 1h"


@pytest.mark.req("R115")
def test_an_interval_below_a_minute_is_refused() -> None:
    with pytest.raises(ScheduleRefused, match="60 s"):
        recurrence("every 59s", "UTC", NOW, NOW)
    assert recurrence("Every 90m", "UTC", NOW, NOW) == Every(5400, NOW)


@pytest.mark.req("R238")
def test_a_single_time_comes_once() -> None:
    once = At(NOW + HOUR)
    assert next_slot(once, NOW) == NOW + HOUR
    assert next_slot(once, NOW + HOUR) is None


@pytest.mark.req("R145")
@given(
    minutes=st.integers(1, 10_000), late=st.lists(st.integers(0, 100_000), min_size=1, max_size=20),
    policy=st.sampled_from(Missed),
)  # fmt: skip
def test_however_late_each_run_is_all_times_lie_on_the_grid_and_never_come_back(
    minutes: int, late: list[int], policy: Missed
) -> None:
    grid = every(minutes * 60, NOW)
    slot = NOW
    for seconds in late:
        then = following(grid, slot, slot + timedelta(seconds=seconds), policy).slot
        assert then is not None
        assert then > slot
        assert (then - NOW) % timedelta(minutes=minutes) == timedelta(0)
        slot = then


CRONS = st.sampled_from(("0 9 * * *", "30 2 * * *", "*/7 * * * *", "15 */5 * * *", "0 0 1 * *", "0 12 * * 1-5"))
ZONES = st.sampled_from(("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Shanghai"))
TIMES = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))


@pytest.mark.req("R145", "R149")
@pytest.mark.fault(62)
@settings(max_examples=150, deadline=None)
@given(expression=CRONS, zone=ZONES, at=TIMES)
def test_the_next_time_is_later_matches_and_has_none_before_it(expression: str, zone: str, at: datetime) -> None:
    then = next_fire(expression, zone, at)
    assert then is not None
    assert then > at
    halfway = at + (then - at) / 2
    assert next_fire(expression, zone, halfway) == then
    assert next_slot(Cron(expression, zone), at) == then


@pytest.mark.req("R148")
def test_after_three_days_off_an_hourly_task_ran_once_and_goes_on_in_the_future() -> None:
    hourly, now = every(3600, NOW), NOW + timedelta(days=3, minutes=20)
    then = following(hourly, NOW, now, Missed.ONCE)
    assert then.slot == NOW + timedelta(days=3, hours=1)
    assert then.missed_from == NOW + HOUR


@pytest.mark.req("R148")
def test_the_policy_all_runs_what_was_missed_up_to_a_cap() -> None:
    hourly = every(3600, NOW)
    few = following(hourly, NOW, NOW + 5 * HOUR, Missed.ALL)
    assert (few.slot, few.missed_from) == (NOW + HOUR, None)
    many = following(hourly, NOW, NOW + timedelta(days=30), Missed.ALL)
    assert many.slot == NOW + timedelta(days=30) - (CATCH_UP - 1) * HOUR
    assert many.missed_from == NOW + HOUR


@pytest.mark.req("R234")
@pytest.mark.parametrize(
    ("first", "end", "inside", "outside"),
    [
        (9, 22, {9, 21}, {8, 22, 0}),
        (22, 6, {22, 0, 5}, {6, 21, 12}),
        (7, 7, {7, 0, 23}, set()),
        (0, 24, {0, 23}, set()),
    ],
)
def test_hours_of_the_day_wrap_midnight_and_equal_ones_are_the_whole_day(
    first: int, end: int, inside: set[int], outside: set[int]
) -> None:
    hours = Hours(first, end, "Europe/Berlin")
    at = {hour: datetime(2026, 6, 1, hour, 30, tzinfo=ZoneInfo("Europe/Berlin")) for hour in range(24)}
    assert {hour for hour in inside if hours.hold(at[hour])} == inside
    assert {hour for hour in outside if hours.hold(at[hour])} == set()


@pytest.mark.req("R234")
def test_what_has_hours_waits_for_their_beginning() -> None:
    hours = Hours(9, 22, "Asia/Kathmandu")
    half_hourly = every(1800, utc("2026-01-01T00:10"))
    at = next_slot(half_hourly, utc("2026-01-01T16:00"), hours)
    assert at is not None
    assert at.astimezone(ZoneInfo("Asia/Kathmandu")).isoformat(timespec="minutes") == "2026-01-01T21:55+05:45"
    then = next_slot(half_hourly, at, hours)
    assert then is not None
    assert then.astimezone(ZoneInfo("Asia/Kathmandu")).isoformat(timespec="minutes") == "2026-01-02T09:25+05:45"


@pytest.mark.fault(61)
@pytest.mark.req("R115")
def test_a_time_without_an_offset_is_meant_in_the_zone_of_its_task() -> None:
    assert moment("2026-07-01T09:00", "Europe/Berlin") == utc("2026-07-01T07:00")
    assert moment("2026-07-01T09:00+02:00", "Asia/Shanghai") == utc("2026-07-01T07:00")
    assert moment("2026-07-01T07:00:00Z", "Asia/Shanghai") == utc("2026-07-01T07:00")
    for text in ("tomorrow", "1782889200", "2026-13-01", "0001-01-01T00:00"):
        with pytest.raises(ScheduleRefused):
            moment(text, "Asia/Shanghai")


@pytest.mark.req("R234")
def test_a_schedule_that_has_no_time_within_its_hours_has_none() -> None:
    hours = Hours(9, 22, "UTC")
    assert next_slot(Cron("0 3 * * *", "UTC"), NOW, hours) is None
    assert next_slot(every(86400, NOW), NOW, hours) is None


@pytest.mark.req("R149", "R234")
def test_hours_that_a_day_does_not_have_are_waited_for_until_the_next() -> None:
    two_to_three = Hours(2, 3, "Europe/Berlin")
    at = next_slot(every(600, utc("2026-03-28T00:05")), utc("2026-03-28T03:00"), two_to_three)
    assert at == utc("2026-03-30T00:05")
