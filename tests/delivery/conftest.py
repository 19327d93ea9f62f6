"""Delivery over a real mailbox and a channel whose outcomes the test decides."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import structlog

from host.channels.base import Channel, SentFile
from host.delivery import Delivery
from host.home import Home
from host.items import Change, Item, SessionRef, Target
from host.mailbox_pool import MailboxPool
from host.outbound_files import files_of
from mailboxes.rows import DeliveryState, MessageOut
from tests.fakes.clock import FakeClock
from tests.fakes.recording_channel import RecordingChannel
from tests.mailbox.made import KEY, make_session, row_of, snapshot, table, take

DEADLINE = 20.0


async def until(reached: Callable[[], bool]) -> None:
    """Lets the loop and the mailbox's threads run until something is so."""
    async with asyncio.timeout(DEADLINE):
        while not reached():
            await asyncio.sleep(0)


async def nobody(key: SessionRef) -> None:
    raise AssertionError(f"nothing holds {key}")


class Books:
    """host.delivery.Books over the mailboxes of a home; keeps what was recorded in order."""

    def __init__(self, pool: MailboxPool) -> None:
        self.pool = pool
        self.recorded: list[tuple[str, Change]] = []
        self.told: list[tuple[str, str]] = []
        self.before_record: Callable[[Change], None] = lambda change: None

    async def record(self, item: Item, change: Change) -> list[Item]:
        assert item.session is not None
        self.before_record(change)
        following = await self.pool.call(item.session, lambda mailbox: mailbox.record(item.id, change))
        self.recorded.append((item.id, change))
        return following

    async def failed(self, item: Item, error: str) -> Item | None:
        assert item.session is not None
        self.told.append((item.id, error))
        return await self.pool.call(item.session, lambda mailbox: mailbox.tell_of_failure(item, error))

    async def target(self, item: Item, seq: int) -> Target | None:
        assert item.session is not None
        return await self.pool.call(item.session, lambda mailbox: mailbox.target(seq))

    async def files_of(self, item: Item) -> tuple[SentFile, ...]:
        assert item.session is not None
        return await self.pool.call(item.session, lambda box: files_of(box.session_folder, box.db, item.id))

    def states(self, item_id: str) -> list[DeliveryState]:
        return [change.state for known, change in self.recorded if known == item_id]


class Post:
    """One session whose words are delivered. `restart` is the host dying and starting again."""

    def __init__(self, home: Home, clock: FakeClock) -> None:
        self.home = home
        self.clock = clock
        self.folder: Path = make_session(home.session_folder(KEY.agent_group_id, KEY.session_id))
        self.channel = RecordingChannel()
        self.channels: dict[tuple[str, str], Channel] = {("telegram", "bot"): self.channel}
        self._open()

    def _open(self) -> None:
        self.pool = MailboxPool(self.home, self.clock, nobody)
        self.books = Books(self.pool)
        self.delivery = Delivery(self.channels, self.books, self.clock)

    async def say(self, *rows: MessageOut) -> None:
        """Takes rows over as the host does and queues them."""
        taken = await self.pool.call(KEY, lambda mailbox: take(mailbox, snapshot(rows), reserve=self.delivery.reserve))
        self.delivery.add(taken.items)

    def state(self, row_id: str) -> str:
        return str(row_of(self.folder, row_id, "deliveries")["state"])

    async def until_state(self, row_id: str, state: DeliveryState) -> None:
        await until(lambda: state in self.books.states(row_id))

    async def until_held_up(self, reason: str = "") -> None:
        await until(lambda: any(reason in why for why in self.delivery.waiting().values()))

    async def until_quiet(self) -> None:
        """Until no lane has anything left."""
        await until(lambda: not self.delivery._lanes)

    async def stop(self) -> None:
        await self.delivery.close()
        await self.pool.close()

    async def restart(self) -> None:
        await self.stop()
        self._open()
        self.delivery.add(await self.pool.call(KEY, lambda mailbox: mailbox.open_items()))

    def heard(self) -> list[dict[str, object]]:
        """The system rows that the agent reads."""
        return [row for row in table(self.folder, "messages_in") if row["kind"] == "system"]


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    """What was logged. A traceback is not drawn: that takes the loop longer than the suite allows."""
    with structlog.testing.capture_logs() as events:
        yield events


@pytest.fixture
async def post(home: Home, clock: FakeClock) -> AsyncIterator[Post]:
    made = Post(home, clock)
    yield made
    await made.stop()
