"""What the host itself says has no session: it is a row of the central database, delivered by the same code."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select

from host.channels.base import NotSent
from host.db import host_outbox
from host.db.engine import CentralDatabase, make_engine
from host.db.schema import metadata
from host.delivery import Delivery
from host.home import Home
from host.mailbox_pool import MailboxPool
from host.postmaster import DeliveryBooks
from host.recovery import open_outbox
from mailboxes.clock import to_text
from tests.delivery.conftest import nobody, until
from tests.fakes.clock import FakeClock
from tests.fakes.recording_channel import Held, RecordingChannel
from tests.mailbox.made import CHAT


class Outbox:
    """The central half of delivery; `restart` is the host dying and starting again."""

    def __init__(self, home: Home, clock: FakeClock) -> None:
        self.clock = clock
        self.channel = RecordingChannel()
        self.database = CentralDatabase(f"sqlite:///{home.database}", clock)
        self.pool = MailboxPool(home, clock, nobody)
        self._open()

    def _open(self) -> None:
        books = DeliveryBooks(self.pool, self.database)
        self.delivery = Delivery({("telegram", "bot"): self.channel}, books, self.clock)

    async def say(self, row_id: str, text: str) -> None:
        now = to_text(self.clock.now())
        await self.database.run(lambda c: host_outbox.add(c, row_id, CHAT, f'{{"text": "{text}"}}', now))
        await self.take_up()

    async def take_up(self) -> None:
        """What the host does at its start, and whenever something was put into the outbox."""
        self.delivery.add(await self.database.run(open_outbox))

    async def restart(self) -> None:
        await self.delivery.close()
        self._open()
        await self.take_up()

    async def record(self, row_id: str) -> tuple[str, int, str | None]:
        table = host_outbox.host_outbox
        columns = select(table.c.state, table.c.attempts, table.c.last_error).where(table.c.id == row_id)
        state, attempts, error = await self.database.run(lambda c: c.execute(columns).one())
        return state, attempts, error

    async def until_quiet(self) -> None:
        await until(lambda: not self.delivery._lanes)


@pytest.fixture
async def outbox(home: Home, clock: FakeClock) -> AsyncIterator[Outbox]:
    engine = make_engine(f"sqlite:///{home.database}")
    metadata.create_all(engine)
    engine.dispose()
    made = Outbox(home, clock)
    await made.database.start()
    yield made
    await made.delivery.close()
    await made.pool.close()
    await made.database.close()


@pytest.mark.req("R241")
async def test_the_hosts_own_word_is_sent_as_a_notice_and_recorded(outbox: Outbox) -> None:
    await outbox.say("h-1", "You are not on the list.")
    await outbox.until_quiet()
    assert outbox.channel.notices() == ["You are not on the list."]
    assert outbox.channel.taken[0][1].notice
    assert await outbox.record("h-1") == ("sent", 0, None)


@pytest.mark.req("R134", "R241")
async def test_what_is_on_its_way_is_not_queued_again_when_more_comes(outbox: Outbox) -> None:
    held = Held()
    outbox.channel.plan("42", held, NotSent("blip"))
    await outbox.say("h-1", "one")
    await until(lambda: len(outbox.channel.calls) == 1)
    await outbox.say("h-2", "two")
    held.release.set()
    await until(lambda: bool(outbox.delivery.waiting()))
    await outbox.say("h-3", "three")
    await outbox.clock.advance(6)
    await outbox.until_quiet()
    assert outbox.channel.notices() == ["one", "two", "three"]


@pytest.mark.req("R241", "R242")
async def test_a_host_that_died_while_sending_asks_and_never_sends_a_third_time(outbox: Outbox) -> None:
    outbox.channel.plan("42", Held(), Held())
    await outbox.say("h-1", "one")
    await until(lambda: len(outbox.channel.calls) == 1)
    await outbox.restart()
    await until(lambda: len(outbox.channel.calls) == 2)
    await outbox.restart()
    await outbox.until_quiet()
    assert len(outbox.channel.calls) == 2
    assert len(outbox.channel.asked) == 2
    assert await outbox.record("h-1") == ("failed", 0, "it is not known whether it arrived, twice")


@pytest.mark.req("R241", "R242")
async def test_failures_are_counted_over_restarts_until_the_dead_letter(outbox: Outbox) -> None:
    outbox.channel.plan("42", *(NotSent(f"failure {number}") for number in range(1, 6)))
    await outbox.say("h-1", "one")
    for _ in range(4):
        await until(lambda: bool(outbox.delivery.waiting()))
        await outbox.restart()
        await until(lambda: bool(outbox.delivery.waiting()))
        await outbox.clock.advance(720)
    await outbox.until_quiet()
    assert await outbox.record("h-1") == ("failed", 5, "failure 5")
    await outbox.restart()
    await outbox.until_quiet()
    assert len(outbox.channel.calls) == 5
