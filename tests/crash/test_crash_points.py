"""Each named crash point: the process dies right there, what comes after it goes on, and the answer comes exactly
once."""

import asyncio
from pathlib import Path

import pytest

from host.home import Home
from tests.whole.harness import Forge, HostProcess, Terminal, rows, running

SAYS = "(rehearsal, no model) "

HOST_POINTS = (
    "after_ingest",
    "after_put",
    "before_start",
    "after_start",
    "before_take_over",
    "after_take_over",
    "before_send",
    "after_send",
)
RUNNER_POINTS = ("after_claim", "before_commit", "after_commit", "after_transcript")


@pytest.mark.req("R024", "R031", "R140", "R241")
@pytest.mark.parametrize("point", HOST_POINTS)
async def test_a_host_that_dies_at_a_point_is_followed_by_one_that_goes_on(
    ready_home: Home, forge: Forge, point: str, tmp_path: Path
) -> None:
    host, terminal = HostProcess(ready_home, {"INNKEEPER_RUNTIME": "process"}, forge), Terminal(ready_home)
    await host.start(INNKEEPER_CRASH_AT=f"{point}:1", INNKEEPER_CRASH_DIR=str(tmp_path))
    await terminal.attach()
    sending = asyncio.create_task(terminal.send("hello"))
    try:
        assert await host.wait() == -9
        await host.start()
        key = await sending
        await terminal.until(lambda: key in terminal.settled)
        assert not terminal.settled[key]
        assert terminal.texts == [f"{SAYS}hello"]
        assert await terminal.ask("again") == [f"{SAYS}again"]
        assert {row["tries"] for row in rows(ready_home, "SELECT tries FROM messages_in")} == {0}
        assert await host.stop() == 0
    finally:
        await terminal.close()
        await host.kill()


@pytest.mark.req("R026", "R087", "R095", "R206")
@pytest.mark.parametrize("point", RUNNER_POINTS)
async def test_a_runner_that_dies_at_a_point_is_followed_by_one_that_goes_on(
    ready_home: Home, forge: Forge, point: str
) -> None:
    crash = {"INNKEEPER_RUNNER_CRASH_AT": f"{point}:1", "INNKEEPER_RUNNER_CRASH_DIR": "/workspace/state"}
    async with running(ready_home, {"INNKEEPER_RUNTIME": "process"} | crash, forge) as (_, terminal):
        assert await terminal.ask("hello") == [f"{SAYS}hello"]
        assert await terminal.ask("again") == [f"{SAYS}again"]
        [history] = await terminal.ask("/rehearse history")
        assert "2" in history


@pytest.mark.req("R156", "R157", "R158")
async def test_a_turn_that_has_said_something_is_gone_on_with_and_not_run_again(ready_home: Home, forge: Forge) -> None:
    crash = {"INNKEEPER_RUNNER_CRASH_AT": "after_send:1", "INNKEEPER_RUNNER_CRASH_DIR": "/workspace/state"}
    async with running(ready_home, {"INNKEEPER_RUNTIME": "process"} | crash, forge) as (_, terminal):
        await terminal.ask("/rehearse send first part")
        assert len([text for text in terminal.texts if "first part" in text]) == 1, terminal.texts
        ids = [row["id"] for row in rows(ready_home, "SELECT id FROM messages_in WHERE kind='system'")]
        assert len(ids) == 1
