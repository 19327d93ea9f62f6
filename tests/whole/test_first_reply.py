"""The whole path, real: a line typed in a terminal, a host, a sandbox, and the answer back."""

import os
import signal
import sqlite3

import pytest

from host.home import Home
from tests.whole.harness import HostProcess, Terminal, rows, running, wait_until

SAYS = "(rehearsal, no model) "


def environment(runtime: str) -> dict[str, str]:
    return {"INNKEEPER_RUNTIME": runtime}


@pytest.mark.req("R043", "R086", "R094")
async def test_a_line_is_answered_and_a_burst_comes_back_in_order(home: Home, runtime: str) -> None:
    async with running(home, environment(runtime)) as (_, terminal):
        assert await terminal.ask("hello") == [f"{SAYS}hello"]
        lines = [f"line {number}" for number in range(30)]
        keys = [await terminal.send(line) for line in lines]
        await terminal.until(lambda: all(key in terminal.settled for key in keys))
        assert terminal.texts[1:] == [f"{SAYS}{line}" for line in lines]


@pytest.mark.req("R101")
async def test_a_message_that_comes_during_a_turn_is_pushed_into_it(home: Home, runtime: str) -> None:
    async with running(home, environment(runtime)) as (host, terminal):
        await terminal.ask("warm up")
        slow = await terminal.send("/rehearse slow 2")
        quick = await terminal.send("and this")
        await terminal.until(lambda: {slow, quick} <= terminal.settled.keys())
        turns = [row["turn_id"] for row in rows(home, "SELECT turn_id FROM deliveries ORDER BY rowid")]
        assert len(terminal.texts) == 3
        assert len(host.events("a sandbox is live")) == 1
        assert len(turns) == 3


@pytest.mark.req("R045", "R082", "R125")
async def test_a_conversation_goes_on_after_the_sandbox_and_the_host_were_new(home: Home, runtime: str) -> None:
    async with running(home, environment(runtime)) as (_, terminal):
        await terminal.ask("remember me")
    async with running(home, environment(runtime)) as (_, terminal):
        [told] = await terminal.ask("/rehearse history")
        assert "1" in told


@pytest.mark.req("R022", "R087", "R153")
async def test_a_killed_runner_costs_one_try_and_the_message_runs_again(home: Home) -> None:
    async with running(home, environment("process")) as (host, terminal):
        await terminal.ask("warm up")
        key = await terminal.send("/rehearse slow 1")
        runner = await _runner_at_work(host, home)
        os.kill(runner, signal.SIGKILL)
        await terminal.until(lambda: key in terminal.settled)
        assert len(terminal.texts) == 2
        [row] = rows(home, "SELECT tries, status FROM messages_in WHERE content LIKE '%slow%'")
        assert (row["tries"], row["status"]) == (1, "completed")


async def _runner_at_work(host: HostProcess, home: Home) -> int:
    """The innermost process of the only sandbox, once it has claimed something (the host polls each second)."""
    await wait_until(lambda: rows(home, "SELECT 1 FROM messages_in WHERE status='processing'"))
    return max(await host.runner_pids())


@pytest.mark.req("R156", "R157", "R158")
async def test_a_turn_that_has_said_something_is_gone_on_with_and_not_run_again(home: Home) -> None:
    crash = {"INNKEEPER_RUNNER_CRASH_AT": "mid_turn:1", "INNKEEPER_RUNNER_CRASH_DIR": "/workspace/state"}
    async with running(home, environment("process") | crash) as (_, terminal):
        key = await terminal.send("/rehearse send first part")
        await terminal.until(lambda: key in terminal.settled)
        said = [text for text in terminal.texts if "first part" in text]
        assert len(said) == 1, terminal.texts


@pytest.mark.req("R274", "R111")
async def test_an_orderly_stop_during_turns_loses_nothing_and_doubles_nothing(home: Home, runtime: str) -> None:
    host, terminal = HostProcess(home, environment(runtime)), Terminal(home)
    await host.start()
    await terminal.attach()
    await terminal.ask("warm up")
    keys = [await terminal.send("/rehearse slow 1"), await terminal.send("during"), await terminal.send("more")]
    assert await host.stop() == 0, host.output()
    await host.start()
    await terminal.until(lambda: set(keys) <= terminal.settled.keys())
    assert sorted(text for text in terminal.texts if "during" in text or "more" in text) == [
        f"{SAYS}during",
        f"{SAYS}more",
    ]
    assert len(terminal.texts) == 4
    assert {row["tries"] for row in rows(home, "SELECT tries FROM messages_in")} == {0}
    await host.stop()
    await terminal.close()


async def test_a_second_host_on_one_home_is_refused(home: Home) -> None:
    async with running(home, environment("process")) as (_, terminal):
        await terminal.ask("hello")
        second = HostProcess(home, environment("process"))
        await second.start()
        assert await second.wait() == 4
        assert "already runs" in second.output()


@pytest.mark.req("R124")
async def test_an_unknown_provider_is_retried_then_failed_with_its_reason(home: Home) -> None:
    async with running(home, environment("process") | {"INNKEEPER_PROVIDER": "zzz"}) as (_, terminal):
        key = await terminal.send("hello")
        await wait_until(lambda: rows(home, "SELECT 1 FROM messages_in WHERE tries > 0"))
        connection = sqlite3.connect(next(home.sessions.glob("*/*/inbound/inbound.db")), timeout=5)
        connection.execute("UPDATE messages_in SET tries=4, process_after=NULL")  # the other tries take 75 s
        connection.commit()
        connection.close()
        await terminal.until(lambda: key in terminal.settled)
        assert terminal.settled[key]
        [notice] = terminal.notices
        assert "zzz" in notice
        assert "rehearsal" in notice
