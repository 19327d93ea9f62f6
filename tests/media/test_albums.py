"""What a person sends as one and a platform brings in pieces is put together, whenever its pieces come."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from host.channels.base import InboundEvent
from host.home import Home
from host.writers import ALBUM_SECONDS
from tests.fakes.clock import FakeClock
from tests.routing.world import Host, event, luna_answers_in_7, prepare, running


@pytest.fixture
def url(tmp_path: Path) -> str:
    return prepare(tmp_path / "host.db", luna_answers_in_7)


def photo(key: str, album: str | None = "9") -> InboundEvent:
    return replace(event(key, key), album=album)


async def passes(clock: FakeClock, seconds: float) -> None:
    """Lets the writer come to where it waits for the clock, then moves that."""
    async with asyncio.timeout(10):
        while not clock._sleepers:
            await asyncio.sleep(0.005)
    await clock.advance(seconds)


async def puts(host: Host) -> int:
    await host.settled()
    return host.inboxes.tries


@pytest.mark.fault(38)
async def test_three_pictures_of_an_album_that_come_one_by_one_are_put_together(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        for key in ("one", "two", "three"):
            await host.accept(photo(key))
            await passes(clock, ALBUM_SECONDS - 0.2)  # each one later than the first alone would wait
            assert host.inboxes.tries == 0
        await passes(clock, 0.3)
        assert await puts(host) == 1
        assert len(host.inboxes.woken) == 3


@pytest.mark.fault(38)
async def test_an_album_without_end_does_not_hold_its_chat_up_for_ever(url: str, home: Home, clock: FakeClock) -> None:
    async with running(url, home, clock) as host:
        for number in range(12):
            await host.accept(photo(f"p{number}"))
            if host.inboxes.tries:
                break
            await passes(clock, 1.0)
        assert host.inboxes.tries == 1
        await clock.advance(20)
        await host.settled()


async def test_an_ordinary_message_waits_for_nothing(url: str, home: Home, clock: FakeClock) -> None:
    async with running(url, home, clock) as host:
        await host.accept(photo("one", album=None))
        assert await puts(host) == 1
