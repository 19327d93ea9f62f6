"""A start opens the mailboxes that need it and no others, and forgets nothing of those it does not open."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from host import mailbox_pool
from host.mailbox import Mailbox
from host.recovery import leave
from tests.fleet.house import House, Machine, until
from tests.fleet.test_times import put_for_later, say_later_and_stop


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sessions whose mailbox the pool opened."""
    found: list[str] = []

    class Noted(Mailbox):
        def _connect(self) -> sqlite3.Connection:
            found.append(self.key.session_id)
            return super()._connect()

    monkeypatch.setattr(mailbox_pool, "Mailbox", Noted)
    return found


async def stop_in_order(house: House) -> None:
    """What an orderly stop leaves; the mailboxes were written long ago."""
    await house.fleet.close(0.0)
    for key in house.keys.values():
        await house.host.postmaster._pool.forget(key)
    for chat in house.keys:
        os.utime(mailbox_of(house, chat), (1_700_000_000,) * 2)
    await leave(house.host.database, house.host.index)


def mailbox_of(house: House, chat: str) -> Path:
    return Path(house.folder(chat)) / "inbound" / "inbound.db"


@contextlib.contextmanager
def hot_journal(path: Path) -> Iterator[None]:
    """A write to a copy is broken off behind its first sync; its journal is put beside the original."""
    work = path.with_name("work.db")
    work.write_bytes(path.read_bytes())
    with contextlib.closing(sqlite3.connect(work, isolation_level=None)) as writing:
        writing.execute("PRAGMA cache_size=1")
        writing.execute("BEGIN IMMEDIATE")
        writing.execute("UPDATE messages_in SET content = zeroblob(200000)")
        path.with_name("inbound.db-journal").write_bytes(work.with_name("work.db-journal").read_bytes())
        path.write_bytes(work.read_bytes())
        writing.execute("ROLLBACK")
    work.unlink()
    yield
    assert not path.with_name("inbound.db-journal").exists(), "it was rolled back"


@pytest.mark.parametrize("orderly", [True, False])
async def test_stopped_sessions_without_work_are_not_opened_at_a_start(
    machine: Machine, opened: list[str], orderly: bool
) -> None:
    async with machine.host(("42", "43")) as house:
        await house.answered()
        await house.fleet.stop(house.keys["42"], "the test")
        if orderly:
            await stop_in_order(house)
        else:
            await house.die()
    opened.clear()
    async with machine.host(("42", "43")) as house:
        assert opened == []
        await house.pass_time(5)
    assert machine.process.asked == 1


@pytest.mark.parametrize("orderly", [True, False])
async def test_what_is_due_later_is_done_on_time_although_no_start_has_opened_its_mailbox(
    machine: Machine, orderly: bool
) -> None:
    async with machine.host() as house:
        sandbox = await house.answered()
        await house.fleet.stop(house.keys["42"], "the test")
        await put_for_later(house, 30)
        if orderly:
            await stop_in_order(house)
        else:
            await house.die()
    async with machine.host() as house:
        await house.pass_time(29)
        assert machine.process.asked == 1
        await house.pass_time(2)
        assert (await house.sandbox(after=sandbox)).claim("t-2") == ["m-late"]


@pytest.mark.parametrize("orderly", [True, False])
async def test_what_a_stopped_session_has_still_to_say_is_taken_up(machine: Machine, orderly: bool) -> None:
    async with machine.host() as house:
        await say_later_and_stop(house, 90)
        if orderly:
            await stop_in_order(house)
        else:
            await house.die()
    async with machine.host() as house:
        await house.pass_time(91)
        await until(lambda: house.channel.texts() == ["in a while"])


async def test_a_journal_of_a_stopped_session_is_rolled_back_at_the_start(machine: Machine) -> None:
    async with machine.host() as house:
        await house.answered()
        await stop_in_order(house)
        path = mailbox_of(house, "42")
    with hot_journal(path):
        async with machine.host() as house:
            [row] = house.rows()
            assert row["status"] == "completed"
            assert "hello" in row["content"]
