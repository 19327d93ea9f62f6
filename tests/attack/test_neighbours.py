"""What one session writes or rings costs that session: not the host's memory, threads or log, and no neighbour."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog

from host.channels.base import Capabilities
from host.delivery import Delivery
from host.due import DueIndex
from host.home import Home
from host.items import Item, SessionRef
from host.life import Life
from host.mailbox_pool import MailboxPool
from host.postmaster import MAX_HELD, DeliveryBooks, Postmaster
from host.presenting import split
from host.reader import Reader
from host.reader.budget import SHARE
from host.splitting import split_text
from host.untrusted import JournalActive, provision_outbound
from mailboxes import bell
from mailboxes.clock import SystemClock
from mailboxes.layout import OUTBOUND_DB
from mailboxes.rows import Address, RunnerState
from mailboxes.schema import open_outbound, transaction
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, make_session, table
from tests.untrusted.images import GOOD, insert_out

DEADLINE = 20.0
NOWHERE = Address("slack", "bot", "nobody-listens")


class Deaf:
    """host.postmaster.Listener and Wirings of somebody who does not care."""

    def waiting(self, key: SessionRef, address: Address, message_id: str) -> None: ...

    def state(self, key: SessionRef, state: RunnerState) -> None: ...

    def spoke(self, key: SessionRef, address: Address) -> None: ...

    def finished(self, key: SessionRef, message_id: str, *, completed: bool) -> None: ...

    def carried_on(self, message_id: str, by: str) -> None: ...

    def stopped(self, key: SessionRef) -> None: ...

    def is_wired(self, agent_group_id: str, address: Address) -> bool:
        return True


@dataclass
class Office:
    """A postmaster over one real session, whose runner's file the test writes."""

    postmaster: Postmaster
    delivery: Delivery
    folder: Path
    written: int = 0

    def write(self, *rows: dict[str, object]) -> None:
        """Adds rows as the runner does."""
        connection = open_outbound(self.folder / "outbound" / OUTBOUND_DB)
        with transaction(connection):
            for row in rows:
                insert_out(connection, {**GOOD, "id": f"o-{self.written}", "seq": 2 * self.written + 1, **row})
                self.written += 1
        connection.close()


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as events:
        yield events


@pytest.fixture
async def office(home: Home, clock: FakeClock) -> AsyncIterator[Office]:
    async def evict(key: SessionRef) -> None:
        raise AssertionError(f"nothing holds {key}")

    folder = make_session(home.session_folder(KEY.agent_group_id, KEY.session_id))
    provision_outbound(folder, None, None)
    pool = MailboxPool(home, clock, evict)
    delivery = Delivery({}, DeliveryBooks(pool, None), clock)  # type: ignore[arg-type]
    with Reader(workers=1) as reader:
        postmaster = Postmaster(home, pool, reader, delivery, Deaf(), Deaf(), clock, DueIndex())
        yield Office(postmaster, delivery, folder)
        await delivery.close()
        await pool.close()


async def test_what_nobody_takes_does_not_fill_the_hosts_memory(office: Office) -> None:
    waiting = Item("o-waiting", NOWHERE, "chat", "x" * (MAX_HELD + 1), KEY)
    office.delivery.add([waiting])
    office.write({"content": '{"text": "one more"}'})
    assert office.postmaster.is_full(KEY)
    assert await office.postmaster.pull(KEY) is None
    assert table(office.folder, "deliveries") == []
    assert await office.postmaster.pull(KEY, ended="it died") is not None, "an exit is judged all the same"
    assert not office.postmaster.is_full(SessionRef("ag-1", "s-2")), "a neighbour has room of its own"


async def test_whoever_rings_without_end_pays_for_each_look(office: Office) -> None:
    office.write({"content": '{"text": "hello"}'})
    pulled = await office.postmaster.pull(KEY)
    assert pulled is not None
    looks = 0
    while office.postmaster.rest(KEY) == 0:
        assert await office.postmaster.pull(KEY, known=pulled.counter) is None
        looks += 1
        assert looks < 5000, "looking costs it nothing"
    journal = office.folder / "outbound" / f"{OUTBOUND_DB}-journal"
    journal.write_bytes(b"\xd9busy")
    before = office.postmaster.rest(KEY)
    with pytest.raises(JournalActive):
        await office.postmaster.pull(KEY)
    assert office.postmaster.rest(KEY) > before + 0.001 / SHARE, "waiting for a journal holds a thread"


async def test_bad_rows_by_the_hundred_are_one_line_of_the_log(
    office: Office, logged: list[structlog.typing.EventDict]
) -> None:
    bad: list[dict[str, object]] = [{"kind": "\x1b[2J"} for _ in range(90)]
    office.write(*bad)
    await office.postmaster.pull(KEY)
    assert [(event["event"], event["others"]) for event in logged] == [("a row of a session was set aside", 89)]
    assert table(office.folder, "messages_in") == []


async def test_a_text_that_is_slow_to_split_does_not_hold_the_loop() -> None:
    # The suite fails a test in which the loop computes for long; this text takes 0.15 s.
    text = "```" + "\n" * 240_000 + "x"
    chunks = await split(text, Capabilities(max_text=4096, utf16=True))
    assert chunks == await asyncio.to_thread(split_text, text, 4096, utf16=True)


async def test_ringing_by_ever_new_connections_is_slowed_down_like_ringing_over_one(
    office: Office, tmp_path: Path
) -> None:
    path = tmp_path / "bell.sock"
    listener = bell.bind(path, 0o600)
    life = Life(KEY, None, office.postmaster, SystemClock())  # type: ignore[arg-type]
    answering = asyncio.create_task(life._answer_bell(listener))
    began = asyncio.get_running_loop().time()
    try:
        for _ in range(4):
            life._look.clear()
            line = await bell.connect(path)
            line.ring()
            await asyncio.wait_for(life._look.wait(), DEADLINE)
            line.close()
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        if life.line is not None:
            life.line.close()
        listener.close()
    assert asyncio.get_running_loop().time() - began >= 2 * bell.WINDOW_SECONDS
