import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboxes.clock import SystemClock, canonical, from_text, later, to_text

_zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_times = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=_zones)


@pytest.mark.req("R021")
@given(_times)
def test_every_zoned_time_has_one_text_of_one_form(moment: datetime) -> None:
    text = to_text(moment)

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert timedelta(0) <= moment - from_text(text) < timedelta(milliseconds=1)
    assert canonical(text) == text
    assert canonical(moment.isoformat()) == text


@pytest.mark.req("R021")
@given(_times, _times)
def test_text_sorts_as_time_does(one: datetime, other: datetime) -> None:
    if one <= other:
        assert to_text(one) <= to_text(other)
    else:
        assert to_text(one) >= to_text(other)


@pytest.mark.req("R021")
@pytest.mark.parametrize(
    "text",
    [
        "2026-02-25T09:30:00+08:00",
        "2026-02-25T01:30:00Z",
        "2026-02-25T01:30:00+00:00",
        "2026-02-25T01:30:00.000999Z",
        "2026-02-24T20:30:00-05:00",
        "20260225T013000Z",
    ],
)
def test_the_same_moment_has_the_same_text_however_it_was_written(text: str) -> None:
    assert canonical(text) == "2026-02-25T01:30:00.000Z"
    assert "2026-02-25T01:29:59.999Z" < canonical(text) <= "2026-02-25T01:30:00.000Z"


@pytest.mark.req("R021")
@pytest.mark.parametrize("text", ["2026-02-25T09:30:00", "2026-02-25", "tomorrow", "", "2026-02-25T25:00:00Z"])
def test_a_time_without_a_zone_and_text_that_is_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        canonical(text)


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(ValueError, match="no zone"):
        to_text(datetime(2026, 1, 1))


def test_later_counts_seconds() -> None:
    assert later(datetime(2026, 1, 1, tzinfo=UTC), 90.5) == "2026-01-01T00:01:30.500Z"


async def test_the_machines_clock_is_utc_and_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0)

    assert clock.monotonic() >= before
    assert clock.now().utcoffset() == timedelta(0)
