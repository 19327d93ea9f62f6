"""Tasks in a whole host, with real sandboxes of either kind: by command, by file, over kills, and the heartbeat."""

import asyncio
import contextlib
import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from host.failure import Code, Failure
from mailboxes.clock import to_text
from tests.fire.scene import SAYS, House, house
from tests.whole.harness import Forge, rows, wait_until

BOTH = pytest.mark.parametrize("runtime", ["process", pytest.param("docker", marks=pytest.mark.docker)])


def soon(seconds: float = 1.0) -> str:
    return to_text(datetime.now(UTC) + timedelta(seconds=seconds))


def image(runtime: str, request: pytest.FixtureRequest) -> None:
    if runtime == "docker":
        request.getfixturevalue("agent_image")


async def add(made: House, agent: str, **task: object) -> Any:
    """A task for the agent's session."""
    session = await made.session(agent)
    return await made.call("tasks.add", session=session, task=task)


async def tasks(made: House, **params: object) -> list[dict[str, Any]]:
    found = await made.call("tasks.list", **params)
    assert isinstance(found, list)
    return found


@BOTH
@pytest.mark.req("R115", "R143", "R144", "R145", "R150")
async def test_a_task_wakes_its_agent_a_reminder_does_not_and_both_go_on_by_their_grid(
    forge: Forge, runtime: str, request: pytest.FixtureRequest
) -> None:
    image(runtime, request)
    async with house(forge, runtime) as made:
        ann = await made.agent("ann")
        await ann.ask("hello")
        anchor = to_text(datetime.now(UTC) - timedelta(seconds=58))
        await add(made, "ann", prompt="water the plants", recurrence="every 60s", process_after=anchor)
        await ann.until(lambda: f"{SAYS}I got a scheduled task." in ann.texts)
        await add(made, "ann", message="stand up", process_after=soon())
        await ann.until(lambda: "stand up" in ann.texts)
        await wait_until(lambda: rows(made.home, "SELECT 1 FROM series WHERE state='done'"))
        (task,) = await tasks(made)
        assert (task["state"], task["last_status"], task["failures"]) == ("active", "completed", 0)
        assert task["next"][17:] == anchor[17:]
        there = [dict(row) for row in rows(made.home, "SELECT * FROM messages_in WHERE series_id IS NOT NULL")]
    statuses = [row["status"] for row in sorted(there, key=lambda row: str(row["slot"]))]
    assert (statuses[0], statuses[-1]) == ("completed", "pending")
    assert len({row["slot"] for row in there}) == len(there)
    assert not any("stand up" in row["content"] for row in there)


@BOTH
@pytest.mark.req("R144", "R147", "R148")
@pytest.mark.fault(57)
async def test_a_host_that_is_killed_around_a_task_runs_each_slot_once(
    forge: Forge, runtime: str, request: pytest.FixtureRequest
) -> None:
    image(runtime, request)
    async with house(forge, runtime) as made:
        ann = await made.agent("ann")
        await ann.ask("hello")
        await add(made, "ann", prompt="/look", process_after=soon(1.5), recurrence="every 1h", name="look")
        await made.host.kill()
        await asyncio.to_thread(lambda: None)
        await wait_until(lambda: rows(made.home, f"SELECT 1 FROM messages_in WHERE slot < '{soon(0)}'"))
        await made.host.start(INNKEEPER_CRASH_AT="after_take_over:1", INNKEEPER_CRASH_DIR=str(made.home.root))
        await made.host.wait()
        await made.host.start()
        await ann.until(lambda: f"{SAYS}I got a scheduled task." in ann.texts)

        async def goes_on() -> bool:
            (task,) = await tasks(made)
            return bool(task["last_status"] == "completed" and task["next"] > soon(60))

        async with asyncio.timeout(30):
            while not await goes_on():
                await asyncio.sleep(0.05)
        done = rows(made.home, "SELECT status FROM messages_in WHERE series_id IS NOT NULL ORDER BY slot")
        assert [row["status"] for row in done] == ["completed", "pending"]
    assert ann.texts.count(f"{SAYS}I got a scheduled task.") == 1


@BOTH
@pytest.mark.req("R142", "R115")
@pytest.mark.fault(64)
async def test_a_quiet_task_is_logged_and_said_to_nobody_also_during_a_conversation(
    forge: Forge, runtime: str, request: pytest.FixtureRequest
) -> None:
    image(runtime, request)
    async with house(forge, runtime) as made:
        ann = await made.agent("ann")
        await ann.ask("hello")
        slow = await ann.send("/rehearse slow 2")
        await made.works_on("ann")
        await add(made, "ann", prompt="count the sheep", process_after=soon(0.2), quiet=True)
        await add(made, "ann", prompt="say good night", process_after=soon(0.2))
        await ann.until(lambda: slow in ann.settled and f"{SAYS}I got a scheduled task." in ann.texts)
        await wait_until(lambda: len(rows(made.home, "SELECT 1 FROM series WHERE state='done'")) == 2)
        assert len(await made.log("ann", "a task was run")) == 2
        assert await tasks(made) == []
        quiet = rows(made.home, "SELECT content, state FROM deliveries WHERE kind='task'")
        assert [(row["state"], "scheduled task" in row["content"]) for row in quiet] == [("sent", True)]
    assert ann.texts.count(f"{SAYS}I got a scheduled task.") == 1


@BOTH
@pytest.mark.req("R234", "R236", "R240")
async def test_a_heartbeat_with_nothing_to_look_at_costs_nothing_and_says_nothing(
    forge: Forge, runtime: str, request: pytest.FixtureRequest
) -> None:
    image(runtime, request)
    async with house(forge, runtime) as made:
        ann = await made.agent("ann")
        await ann.ask("hello")
        session = await made.session("ann")
        beat = await made.call("tasks.add", session=session, heartbeat=True, task={"hours": ""})
        with pytest.raises(Failure) as refused:
            await made.call("tasks.add", session=session, heartbeat=True, task={})
        assert refused.value.code is Code.REFUSED
        key = {name: beat[name] for name in ("id", "session", "agent_group_id")}
        await made.call("tasks.run", **key)
        beats = f"SELECT 1 FROM messages_in WHERE series_id='{beat['id']}' AND status='completed'"
        await wait_until(lambda: len(rows(made.home, beats)) == 1)
        (made.home.groups / "ann" / "HEARTBEAT.md").write_text("Is the oven on?\n")
        await made.call("tasks.run", **key)
        await ann.until(lambda: any("Is the oven on?" in text for text in ann.texts))
        said = len(ann.texts)
        await made.call("tasks.run", **key)
        await wait_until(lambda: len(rows(made.home, beats)) == 3)
        assert len(ann.texts) == said
        assert (await tasks(made))[0]["next"] > to_text(datetime.now(UTC))


@pytest.mark.req("R117", "R237", "R238")
async def test_a_person_lists_changes_holds_and_removes_tasks(forge: Forge, tmp_path: Path) -> None:
    async with house(forge, "process") as made:
        ann = await made.agent("ann")
        await ann.ask("hello")
        task = await add(made, "ann", prompt="weekly", recurrence="0 9 * * 1", zone="Asia/Shanghai")
        assert task["next"][11:16] == "01:00"
        key = {name: task[name] for name in ("id", "session", "agent_group_id")}
        changed = await made.call("tasks.set", **key, task={"recurrence": "0 9 * * *"})
        assert changed["next"] < to_text(datetime.now(UTC) + timedelta(hours=24, minutes=1))
        assert (await made.call("tasks.pause", **key))["state"] == "paused"
        assert (await made.call("tasks.resume", **key))["state"] == "active"
        for wrong in ({"recurrence": "* * *"}, {"zone": "Mars"}, {"nonsense": 1}, {"process_after": "soon"}):
            with pytest.raises(Failure) as refused:
                await made.call("tasks.set", **key, task=wrong)
            assert refused.value.code is Code.REFUSED
        schedule, payload = {"kind": "cron", "expr": "0 9 * * *"}, {"kind": "agent_turn", "message": "x"}
        jobs = [{"id": "j", "schedule": schedule, "payload": payload}, 3]
        taken = await made.call("tasks.import", session=task["session"], text=json.dumps(jobs))
        assert [row["outcome"] for row in taken] == ["added", "skipped"]
        assert (await made.call("tasks.remove", **key))["state"] == "cancelled"
        assert [row["name"] for row in await tasks(made)] == ["j"]
        with pytest.raises(Failure) as missing:
            await made.call("tasks.pause", **key)
        assert missing.value.code is Code.NOT_FOUND


@pytest.mark.req("R115")
async def test_tasks_go_over_into_the_next_session_also_when_the_host_is_killed_in_between(forge: Forge) -> None:
    async with house(forge, "process") as made:
        ann = await made.agent("ann")
        await ann.ask("hello")
        task = await add(made, "ann", prompt="look", recurrence="every 1h")
        await made.host.stop()
        with contextlib.closing(sqlite3.connect(made.home.database)) as database:
            database.execute("UPDATE sessions SET status='closed' WHERE id=?", (task["session"],))
            database.commit()
        await made.host.start()
        await ann.ask("hello again")
        await made.host.kill()
        await made.host.start()
        await wait_until(lambda: rows(made.home, "SELECT 1 FROM series WHERE state='moved'"))
        (moved,) = await tasks(made)
        assert (moved["id"], moved["next"]) == (task["id"], task["next"])
        assert moved["session"] != task["session"]
