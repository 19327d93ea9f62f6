"""Words that go out at a time, and again: no agent is woken for them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from host.channels.base import NotSent
from host.home import Home
from host.mailbox import Mailbox
from host.series import State, every
from host.series_changes import cancel, pause, resume
from mailboxes.clock import to_text
from mailboxes.rows import DeliveryState
from tests.delivery.conftest import Post, until
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, said, snapshot, table, take
from tests.time.made import HOUR, NOW, add, do, known, occurrences, reminder


@pytest.fixture
async def post(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Post]:
    made = Post(Home(tmp_path / "home", tmp_path / "run"), clock)
    yield made
    await made.stop()


@pytest.mark.req("R150", "R144")
async def test_a_reminder_goes_out_on_time_and_its_next_one_waits(post: Post, clock: FakeClock) -> None:
    done = await post.pool.call(KEY, lambda mailbox: add(mailbox, reminder(), NOW + HOUR))
    post.delivery.add(done.taken.items)
    await clock.advance(3590)
    assert post.channel.texts() == []
    await clock.advance(20)
    await until(lambda: post.channel.texts() == ["stand up"])
    await until(lambda: ("02:00", "queued") in occurrences(post.folder, "deliveries"))
    await clock.advance(3600)
    await until(lambda: post.channel.texts() == ["stand up"] * 2)
    assert await post.pool.call(KEY, Mailbox.next_due) is None


@pytest.mark.req("R144", "R150")
def test_a_row_of_the_agent_that_recurs_is_the_hosts_from_the_take_over_on(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    taken = take(mailbox, snapshot([said("o-1", 1, recurrence="0 9 * * *")]))
    assert [item.due for item in taken.items] == ["2026-01-01T08:00:00.000Z"]
    (series,) = every(mailbox.db)
    assert (series.zone, str(series.schedule), series.address) == ("Europe/Berlin", "0 9 * * *", taken.items[0].address)
    assert table(folder, "deliveries")[0]["slot"] == "2026-01-01T08:00:00.000Z"


@pytest.mark.req("R115", "R150")
def test_a_row_that_recurs_too_often_is_refused_and_the_agent_hears_why(mailbox: Mailbox, folder: Path) -> None:
    taken = take(mailbox, snapshot([said("o-1", 1, recurrence="every 1s"), said("o-2", 3, recurrence="* * * * * *")]))
    assert taken.items == []
    assert [row["state"] for row in table(folder, "deliveries")] == ["failed", "failed"]
    assert ["60 s" in row["content"] or "five fields" in row["content"] for row in table(folder, "messages_in")] == [
        True,
        True,
    ]
    assert every(mailbox.db) == []


@pytest.mark.req("R150")
async def test_a_reminder_that_cannot_be_delivered_goes_on_and_is_paused_after_five(
    post: Post, clock: FakeClock
) -> None:
    post.channel.script.extend([NotSent("kicked out", permanent=True)] * 5)
    done = await post.pool.call(KEY, lambda mailbox: add(mailbox, reminder(), NOW + HOUR))
    post.delivery.add(done.taken.items)
    for hour in range(1, 6):
        await clock.advance(3600)
        await until(lambda hour=hour: len(_ended(post)) == hour)  # type: ignore[misc]
    series = await post.pool.call(KEY, known)
    assert (series.state, series.failures) == (State.PAUSED, 5)
    await until(lambda: len(post.channel.notices()) == 1)
    assert "kicked out" in post.channel.notices()[0]


def _ended(post: Post) -> list[str]:
    return [slot for slot, state in occurrences(post.folder, "deliveries") if state == DeliveryState.FAILED]


@pytest.mark.req("R117", "R150")
async def test_a_reminder_that_is_held_or_cancelled_does_not_go_out(post: Post, clock: FakeClock) -> None:
    done = await post.pool.call(KEY, lambda mailbox: add(mailbox, reminder(), NOW + HOUR))
    post.delivery.add(done.taken.items)
    held = await post.pool.call(KEY, lambda mailbox: do(mailbox, pause))
    post.delivery.withdraw(held.withdrawn)
    await clock.advance(4000)
    assert post.channel.texts() == []
    again = await post.pool.call(KEY, lambda mailbox: do(mailbox, resume))
    post.delivery.withdraw(again.withdrawn)
    post.delivery.add(again.taken.items)
    assert [item.due for item in again.taken.items] == [to_text(NOW + 2 * HOUR)]
    gone = await post.pool.call(KEY, lambda mailbox: do(mailbox, cancel))
    post.delivery.withdraw(gone.withdrawn)
    await clock.advance(4 * 3600)
    assert post.channel.texts() == []


@pytest.mark.req("R150")
async def test_a_reminder_outlives_the_host(post: Post, clock: FakeClock) -> None:
    await post.pool.call(KEY, lambda mailbox: add(mailbox, reminder(), NOW + HOUR))
    await post.restart()
    await clock.advance(3700)
    await until(lambda: post.channel.texts() == ["stand up"])
