"""Many mailboxes at once: one call at a time for each session, and no sandbox can hold up a write for good."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from host import mailbox_pool
from host.home import Home
from host.items import InboundHeld, SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, make_session, message, snapshot, table, take

DEADLINE = 20.0


async def nobody(key: SessionRef) -> None:
    raise AssertionError(f"nothing holds {key}")


def sessions(home: Home, *names: str) -> list[SessionRef]:
    keys = [SessionRef("ag-1", name) for name in names]
    for key in keys:
        make_session(home.session_folder(key.agent_group_id, key.session_id))
    return keys


@pytest.fixture
async def pool(home: Home, clock: FakeClock) -> AsyncIterator[MailboxPool]:
    made = MailboxPool(home, clock, nobody)
    yield made
    await made.close()


@pytest.mark.req("R026")
async def test_calls_to_one_session_run_one_at_a_time_in_order(pool: MailboxPool, home: Home) -> None:
    (key,) = sessions(home, "s-1")
    running, most = 0, 0
    order: list[int] = []

    def work(number: int) -> Callable[[Mailbox], None]:
        def run(_: Mailbox) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            order.append(number)
            running -= 1

        return run

    await asyncio.gather(*(pool.call(key, work(number)) for number in range(50)))
    assert most == 1
    assert order == list(range(50))


@pytest.mark.req("R026")
async def test_a_session_that_takes_long_holds_up_no_other(pool: MailboxPool, home: Home) -> None:
    slow, quick = sessions(home, "s-slow", "s-quick")
    let_go = threading.Event()
    held = asyncio.ensure_future(pool.call(slow, lambda _: let_go.wait(DEADLINE)))
    assert await pool.call(quick, lambda mailbox: mailbox.put([message()])) == 1
    assert not held.done()
    let_go.set()
    assert await held


@pytest.mark.req("R155")
@pytest.mark.fault(88)
async def test_a_session_without_its_file_fails_alone_and_by_name(pool: MailboxPool, home: Home) -> None:
    good, bad, other = sessions(home, "s-good", "s-bad", "s-other")
    (home.session_folder("ag-1", "s-bad") / "inbound" / "inbound.db").write_bytes(b"no database at all" * 500)
    calls = [pool.call(key, lambda mailbox: mailbox.put([message()])) for key in (good, bad, other)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[0] == results[2] == 1
    assert "not a database" in str(results[1])


@pytest.mark.fault(93)
async def test_fifty_sessions_with_many_writes_each_see_no_lock(pool: MailboxPool, home: Home) -> None:
    keys = sessions(home, *(f"s-{number}" for number in range(50)))

    def write(number: int) -> Callable[[Mailbox], int]:
        return lambda mailbox: mailbox.put([message(f"m-{number}")])

    writes = [pool.call(key, write(number)) for number in range(4) for key in keys]
    assert sum(await asyncio.gather(*writes)) == 200


async def test_the_least_recently_used_files_are_closed(
    pool: MailboxPool, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_pool, "KEPT_OPEN", 2)
    keys = sessions(home, "s-1", "s-2", "s-3", "s-4")
    seen: dict[str, Mailbox] = {}

    def look(mailbox: Mailbox) -> int:
        seen[mailbox.key.session_id] = mailbox
        return mailbox.floor

    for key in keys[:2]:
        await pool.call(key, look)
    first, second = seen["s-1"], seen["s-2"]
    await pool.call(keys[0], look)
    await pool.call(keys[2], look)
    await pool.call(keys[0], look)
    await pool.call(keys[1], look)
    assert seen["s-1"] is first
    assert seen["s-2"] is not second
    assert second._connection is None


async def test_a_forgotten_session_can_be_moved_and_is_opened_anew(pool: MailboxPool, home: Home) -> None:
    (key,) = sessions(home, "s-1")
    folder = home.session_folder("ag-1", "s-1")
    await pool.call(key, lambda mailbox: mailbox.put([message("m-1")]))
    await pool.forget(key)
    folder.rename(folder.with_name("moved"))
    make_session(folder)
    await pool.call(key, lambda mailbox: mailbox.put([message("m-2")]))
    assert [row["id"] for row in table(folder, "messages_in")] == ["m-2"]


async def test_forgetting_waits_for_the_calls_before_it_and_lets_those_behind_it_wait(
    pool: MailboxPool, home: Home
) -> None:
    (key,) = sessions(home, "s-1")
    let_go = threading.Event()
    order = []

    def first(_: Mailbox) -> None:
        let_go.wait(DEADLINE)
        order.append("first")

    calls = [asyncio.ensure_future(pool.call(key, first))]
    await asyncio.sleep(0)
    forgotten = asyncio.ensure_future(pool.forget(key))
    await asyncio.sleep(0)
    calls.append(asyncio.ensure_future(pool.call(key, lambda mailbox: order.append(str(mailbox.put([message()]))))))
    let_go.set()
    await asyncio.gather(*calls, forgotten)
    assert order == ["first", "1"]


@pytest.mark.req("R026")
async def test_a_call_that_is_cancelled_gives_the_mailbox_up_only_when_its_thread_is_done(
    pool: MailboxPool, home: Home
) -> None:
    (key,) = sessions(home, "s-1")
    started, let_go = threading.Event(), threading.Event()
    order = []

    def slow(mailbox: Mailbox) -> None:
        started.set()
        let_go.wait(DEADLINE)
        mailbox.put([message("m-1")])
        order.append("slow")

    cancelled = asyncio.ensure_future(pool.call(key, slow))
    assert await asyncio.to_thread(started.wait, DEADLINE)
    cancelled.cancel()
    behind = asyncio.ensure_future(pool.call(key, lambda _: order.append("behind")))
    for _ in range(20):
        await asyncio.sleep(0)
    assert order == []
    let_go.set()
    await behind
    assert order == ["slow", "behind"]
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert len(table(home.session_folder("ag-1", "s-1"), "messages_in")) == 1


class Sandbox:
    """A process that holds a read lock on inbound.db, as a hostile container can."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.evicted: list[SessionRef] = []

    async def start(self, what: str = "hold") -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.mailbox.children", what, str(self.folder),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        assert await self.process.stdout.readline() == b"held\n"

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def evict(self, key: SessionRef) -> None:
        self.evicted.append(key)
        await self.stop()


@pytest.fixture
async def sandbox(home: Home) -> AsyncIterator[Sandbox]:
    made = Sandbox(make_session(home.session_folder("ag-1", "s-1")))
    await made.start()
    yield made
    await made.stop()


@pytest.mark.req("R026")
async def test_a_sandbox_that_holds_the_lock_is_stopped_and_the_write_is_done(
    home: Home, clock: FakeClock, sandbox: Sandbox
) -> None:
    pool = MailboxPool(home, clock, sandbox.evict)
    assert await pool.call(KEY, lambda mailbox: mailbox.put([message()])) == 1
    taken = await pool.call(KEY, lambda mailbox: take(mailbox, snapshot()))
    assert taken.items == []
    assert sandbox.evicted == [KEY]
    assert len(table(sandbox.folder, "messages_in")) == 1
    await pool.close()


@pytest.mark.req("R026")
@pytest.mark.fault(88)
async def test_a_sandbox_that_keeps_the_host_from_rolling_its_own_journal_back_is_stopped_too(
    home: Home, clock: FakeClock
) -> None:
    held = Sandbox(make_session(home.session_folder("ag-1", "s-1")))
    dying = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.mailbox.children", "die_in_commit", str(held.folder)
    )
    assert await dying.wait() == -signal.SIGKILL
    journal = held.folder / "inbound" / "inbound.db-journal"
    assert journal.stat().st_size > 0
    await held.start("hold_bytes")
    pool = MailboxPool(home, clock, held.evict)
    assert await pool.call(KEY, lambda mailbox: mailbox.put([message()])) == 1
    assert held.evicted == [KEY]
    assert not journal.exists()
    assert table(held.folder, "destinations") == []
    await pool.close()


@pytest.mark.req("R026")
async def test_a_lock_that_stays_although_the_sandbox_was_stopped_is_said_and_nothing_is_written(
    home: Home, clock: FakeClock, sandbox: Sandbox
) -> None:
    asked: list[SessionRef] = []

    async def in_vain(key: SessionRef) -> None:
        asked.append(key)

    pool = MailboxPool(home, clock, in_vain)
    with pytest.raises(InboundHeld):
        await pool.call(KEY, lambda mailbox: mailbox.put([message()]))
    assert asked == [KEY, KEY]
    await sandbox.stop()
    assert await pool.call(KEY, lambda mailbox: mailbox.put([message()])) == 1
    await pool.close()


@pytest.mark.req("R026")
async def test_the_end_waits_for_the_call_that_runs_and_takes_no_more(pool: MailboxPool, home: Home) -> None:
    (key,) = sessions(home, "s-1")
    begun, go_on = threading.Event(), threading.Event()

    def write(mailbox: Mailbox) -> int:
        begun.set()
        assert go_on.wait(DEADLINE)
        return mailbox.put([message()])

    running = asyncio.create_task(pool.call(key, write))
    await asyncio.to_thread(begun.wait, DEADLINE)
    waiting = asyncio.create_task(pool.call(key, lambda mailbox: mailbox.next_due()))
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0)
    assert not closing.done()
    go_on.set()
    await closing
    assert await running == 1
    with pytest.raises(RuntimeError, match="closed"):
        await waiting
    with pytest.raises(RuntimeError, match="closed"):
        await pool.call(key, lambda mailbox: mailbox.next_due())
