"""What a host finds when it starts, and what nobody knows any more."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Connection

from host import sessions as session_folders
from host.db import agent_groups, sessions
from host.life import Life
from host.runtime.base import Found, RuntimeUnavailable
from mailboxes.clock import to_text
from mailboxes.rows import Address
from tests.fakes.runtime import ScriptedSandbox
from tests.fleet.house import Machine, until

ASKS = {
    "kind": "system", "address": None, "in_reply_to": None, "content": {"action": "list_tasks", "payload": {}},
}  # fmt: skip


@pytest.mark.req("R088")
async def test_a_session_that_ran_when_the_host_was_killed_is_stopped_and_its_message_wakes_it(
    machine: Machine,
) -> None:
    async with machine.host() as house:
        sandbox = await house.turn()
        await house.die()
    sandbox.exit(137)  # with its machine
    async with machine.host() as house:
        await house.settle()
        assert house.rows()[0]["tries"] == 0, "the host's own death is no try of the message"
        await house.pass_time(1)
        again = await house.sandbox(after=sandbox)
        assert len(again.claim("t-2")) == 1
        again.answer("after all", "t-2")
        await until(lambda: house.channel.texts() == ["after all"])


@pytest.mark.req("R088")
async def test_a_session_without_work_is_stopped_by_its_row_after_a_restart(machine: Machine) -> None:
    async with machine.host() as house:
        sandbox = await house.answered()
        await house.pass_time(1)
        assert await house.status() == "idle"
        await house.die()
    sandbox.exit(137)
    async with machine.host() as house:
        assert await house.status() == "stopped"
        await house.pass_time(5)
    assert machine.process.asked == 1


@pytest.mark.req("R088")
async def test_a_sandbox_that_would_start_the_same_today_is_adopted_in_the_middle_of_its_turn(machine: Machine) -> None:
    async with machine.host() as house:
        sandbox = await house.turn()
        await house.die()
    async with machine.host() as house:
        await until(lambda: house.life().sandbox is sandbox)
        await sandbox.connect()
        sandbox.answer("in one go")
        await until(lambda: house.channel.texts() == ["in one go"])
        assert house.rows("completed")
        assert sandbox.signals == []
    assert machine.process.asked == 1


@pytest.mark.req("R088")
async def test_a_session_that_is_to_wake_before_its_sandbox_was_adopted_gets_no_second_one(machine: Machine) -> None:
    async with machine.host() as house:
        sandbox = await house.turn()
        sandbox._do("send", output=ASKS, turn="t-1", now=sandbox._now())
        await house.fleet.tick()
        await house.settle()
        await house.die()
    with sqlite3.connect(house.folder() / "inbound" / "inbound.db") as mailbox:  # it died before it had answered
        mailbox.execute("UPDATE deliveries SET state='queued' WHERE kind='system'")
        mailbox.execute("DELETE FROM messages_in WHERE kind='system'")
    mailbox.close()
    async with machine.host() as house:
        await until(lambda: house.rows()[1:])
        await house.settle()
        assert house.life().sandbox is sandbox
        await sandbox.connect()
        await house.pass_time(70)
        assert sandbox.signals == []
        sandbox.answer("done")
        await until(lambda: house.channel.texts() == ["done"])
    assert machine.process.asked == 1


@pytest.mark.req("R088", "R148")
async def test_what_a_runner_did_while_there_was_no_host_does_not_count_as_missed(machine: Machine) -> None:
    said = {"prompt": "look", "recurrence": "every 1h", "missed": "skip"}
    async with machine.host() as house:
        desk, chat = house.host.tasks._desk, Address("telegram", "bot", "42")
        await desk.add(house.keys["42"], said, address=chat, principal=None, series_id="task-1")
        await house.pass_time(3601, 1801)
        sandbox = await house.sandbox()
        await house.die()
    assert sandbox.claim()
    await machine.clock.advance(120)
    async with machine.host() as house:
        sandbox.answer("I have looked")
        await sandbox.connect()
        await until(lambda: house.channel.texts() == ["I have looked"])
        assert [row["status"] for row in house.rows()] == ["completed", "pending"]


@pytest.mark.req("R088", "R180")
async def test_what_was_said_in_a_conversation_that_begins_anew_goes_out_although_the_host_was_killed(
    machine: Machine,
) -> None:
    async with machine.host() as house:
        sandbox = await house.turn()
        old, now = house.keys["42"], to_text(house.clock.now())

        def begin_anew(connection: Connection) -> None:
            known = sessions.get(connection, old.session_id)
            assert known is not None
            sessions.close(connection, old.session_id)
            made = sessions.find_or_create(connection, known.key, now)
            group = agent_groups.get(connection, made.agent_group_id)
            assert group is not None
            session_folders.provision(machine.home, made, group)

        await house.host.database.run(begin_anew)
        await house.die()
    sandbox._do("answer", text="my last word", turn="t-1", now=sandbox._now())
    sandbox.exit(137)
    async with machine.host() as house:
        await house.host.finish_moves()
        await until(lambda: house.channel.texts() == ["my last word"])
        house.keys["new"], house.keys["42"] = house.keys["42"], old
        assert await house.status() == "stopped"
        assert [row["status"] for row in house.rows()] == ["completed"]
        assert house.rows(chat="new") == []


@pytest.mark.req("R088")
async def test_a_sandbox_of_other_options_is_removed_and_its_turn_runs_again_without_a_try(machine: Machine) -> None:
    async with machine.host() as house:
        sandbox = await house.turn()
        await house.die()
    machine.process.image = "tomorrow's"
    async with machine.host() as house:
        assert sandbox.signals == ["stop"]
        assert house.rows()[0]["tries"] == 0
        await house.pass_time(1)
        again = await house.sandbox(after=sandbox)
        assert len(again.claim("t-2")) == 1


@pytest.mark.req("R088")
async def test_a_sandbox_of_no_session_is_removed_at_the_start(machine: Machine) -> None:
    async with machine.host(["1"]) as house:
        sandbox = await house.answered("1")
        await house.die()
    sandbox.session_id = "s-nobody"
    async with machine.host(["1"]):
        assert sandbox.signals == ["stop"]


@pytest.mark.req("R088")
async def test_an_exit_that_cannot_be_judged_at_the_start_is_judged_before_the_next_sandbox_starts(
    machine: Machine,
) -> None:
    async with machine.host(INNKEEPER_RUNTIME="docker") as house:
        house.host.images._moves.image_ready = True
        sandbox = await house.turn()
        await house.die()
    sandbox.exit(137)
    machine.docker.away = RuntimeUnavailable("No answer from the engine.")
    async with machine.host(INNKEEPER_RUNTIME="docker") as house:
        assert await house.status() == "stopped"
        machine.docker.away = None
        house.host.images._moves.image_ready = True
        await house.pass_time(5)
        again = await house.sandbox(after=sandbox)
        assert len(again.claim("t-2")) == 1, "it is not stuck in processing"


async def test_a_sandbox_that_cannot_be_removed_does_not_keep_the_host_from_starting(machine: Machine) -> None:
    async with machine.host() as house:
        sandbox = await house.turn()
        await house.die()
    machine.process.image, sandbox.unstoppable = "tomorrow's", 1
    async with machine.host() as house:
        assert machine.process.live() == [sandbox]
        await house.pass_time(90)
        assert sandbox.signals == ["stop", "stop"], "the sweep ends it"
        again = await house.sandbox(after=sandbox)
        assert len(again.claim("t-2")) == 1
    assert machine.process.most_at_once == 1


@pytest.mark.fault(76, 77)
@pytest.mark.req("R088")
async def test_the_sweep_ends_sandboxes_of_ours_that_nobody_knows_and_no_other(machine: Machine) -> None:
    async with machine.host(["1", "2"]) as house:
        stopped = await house.answered("1")
        await house.fleet.stop(house.keys["1"], "the test")
        kept = await house.turn("2")
        lost = machine.process.run(stopped.spec)
        others = machine.process.run(kept.spec)  # another installation's: `find_ours` does not tell of it
        ours = machine.process.find_ours

        async def found() -> list[Found]:
            return [one for one in await ours() if one.sandbox is not others]

        machine.process.find_ours = found  # type: ignore[method-assign]
        await house.pass_time(61)
        assert (lost.alive, kept.alive, others.alive) == (False, True, True)
        others.exit(0)


@pytest.mark.req("R155")
async def test_one_damaged_session_among_three_holds_up_neither_a_start_nor_the_others(machine: Machine) -> None:
    chats = ["1", "2", "3"]
    async with machine.host(chats) as house:
        for chat in chats:
            await house.turn(chat, f"t-{chat}")
        broken = house.folder("2") / "inbound" / "inbound.db"
        await house.die()
    for sandbox in machine.process.live():
        sandbox.exit(137)
    broken.write_bytes(b"no database at all" * 1000)
    async with machine.host(chats) as house:
        await house.pass_time(5)
        for chat in ("1", "3"):
            sandbox = await house.sandbox(chat)
            assert len(sandbox.claim("t-9")) == 1
            sandbox.answer("done", "t-9")
            await until(lambda chat=chat: house.channel.texts(chat) == ["done"])  # type: ignore[misc]
        assert house.keys["2"] in house.fleet.problems


@pytest.mark.req("R155")
async def test_a_mailbox_that_is_damaged_while_its_session_is_idle_does_not_stop_the_sweep_of_the_others(
    machine: Machine,
) -> None:
    async with machine.host(["1", "2"]) as house:
        first, second = await house.answered("1"), await house.answered("2")
        await house.host.postmaster._pool.forget(house.keys["1"])
        (house.folder("1") / "inbound" / "inbound.db").write_bytes(b"no database at all" * 1000)
        await house.pass_time(30 * 60 + 10, step=5)
        assert second.signals == ["stop"]
        assert not first.alive


async def test_an_orderly_end_stops_every_sandbox_and_says_so_in_the_rows(machine: Machine) -> None:
    async with machine.host(["1", "2"]) as house:
        sandboxes = [await house.turn("1"), await house.answered("2")]
        await house.fleet.close(0.0)
        assert [one.signals for one in sandboxes] == [["stop"], ["stop"]]
        assert [await house.status(chat) for chat in ("1", "2")] == ["stopped", "stopped"]
        await house.send("too late", chat="1")
        await house.settle()
        assert machine.process.asked == 2


async def test_an_orderly_end_lets_a_running_turn_finish(machine: Machine) -> None:
    async with machine.host() as house:
        sandbox = await house.turn()
        closing = asyncio.create_task(house.fleet.close(20.0))
        await asyncio.sleep(0)
        assert sandbox.alive
        sandbox.answer("just in time")
        await closing
        await until(lambda: house.channel.texts() == ["just in time"])


async def test_an_end_does_not_wait_for_ever_for_an_engine_that_is_away(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.fleet.END_SECONDS", 0.05)
    async with machine.host() as house:
        sandbox = await house.turn()
        sandbox.unstoppable = 9
        life: Life = house.life()
        await house.fleet.close(0.0)
        assert life.stopping == "the host stops"
        assert await house.status() == "running", "the next host looks for it"
    sandbox.exit(0)


@pytest.mark.req("R088", "R155")
@pytest.mark.fault(110)
async def test_a_live_sandbox_with_a_spoiled_mailbox_is_ended_before_its_mailbox_is_set_aside_and_told_of(
    machine: Machine,
) -> None:
    sandbox, folder = await _die_in_a_turn(machine)
    (folder / "outbound" / "outbound.db").write_bytes(b"spoiled" * 4096)
    sandbox.beats = False
    async with machine.host() as house:
        await until(lambda: house.life().sandbox is sandbox)
        assert not list(folder.glob("outbound.bad-*")), "its runner may still write there"
        await house.pass_time(1)
        await until(lambda: not sandbox.alive)
        await until(house.channel.notices)
        assert sandbox.signals == ["kill"]
        assert len(list(folder.glob("outbound.bad-*"))) == 1
        assert ["damaged" in notice for notice in house.channel.notices()] == [True]
        assert "damaged" in house.fleet.incidents[house.keys["42"]]


@pytest.mark.req("R155")
async def test_a_mailbox_that_was_spoiled_in_a_turn_is_told_of_also_when_the_host_died_with_it(
    machine: Machine,
) -> None:
    sandbox, folder = await _die_in_a_turn(machine)
    sandbox.exit(137)
    (folder / "outbound" / "outbound.db").write_bytes(b"spoiled" * 4096)
    async with machine.host() as house:
        await until(house.channel.notices)
        assert ["damaged" in notice for notice in house.channel.notices()] == [True]
        assert len(list(folder.glob("outbound.bad-*"))) == 1


async def _die_in_a_turn(machine: Machine) -> tuple[ScriptedSandbox, Path]:
    async with machine.host() as house:
        sandbox = await house.turn()
        folder: Path = house.folder()
        await house.die()
    return sandbox, folder
