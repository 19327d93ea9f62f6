"""What an agent asks of its tasks: its own session's, once, within its limits, with sentences it can act on."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from host.actions.tasks import TASK_ACTIONS, Asking
from host.delivery import Delivery
from host.due import DueIndex
from host.home import Home
from host.items import SessionRef
from host.mailbox_pool import MailboxPool
from host.series_changes import NoSuchTask
from host.task_desk import TaskDesk
from host.timetable import ScheduleRefused
from mailboxes.clock import to_text
from mailboxes.rows import Address
from tests.delivery.conftest import Books, nobody
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, make_session, message, table
from tests.time.made import HOUR, NOW, occurrences, run, waiting

TOPIC = Address("telegram", "bot", "-100", "7")
OTHER = SessionRef("ag-1", "s-2")


@dataclass
class Scene:
    desk: TaskDesk
    pool: MailboxPool
    folder: Path
    due: DueIndex
    woken: list[SessionRef]

    async def ask(self, name: str, row: str = "o-1", key: SessionRef = KEY, **payload: object) -> Any:
        return await TASK_ACTIONS[name](self.desk, Asking(key, row, "m-1"), payload)


@pytest.fixture
async def scene(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Scene]:
    home = Home(tmp_path / "home", tmp_path / "run")
    folder, _ = (make_session(home.session_folder(key.agent_group_id, key.session_id)) for key in (KEY, OTHER))
    pool = MailboxPool(home, clock, nobody)
    delivery, due, woken = Delivery({}, Books(pool), clock), DueIndex(), list[SessionRef]()
    desk = TaskDesk(pool, delivery, due, clock, lambda: "Europe/Berlin", woken.append)
    first = message("m-1", address=TOPIC, principal="telegram:ann", status="completed")
    await pool.call(KEY, lambda mailbox: mailbox.put([first]))
    yield Scene(desk, pool, folder, due, woken)
    await delivery.close()
    await pool.close()


@pytest.mark.req("R115")
@pytest.mark.fault(61, 65)
async def test_a_task_of_an_agent_keeps_its_zone_its_topic_and_who_caused_it(scene: Scene) -> None:
    answer = await scene.ask("schedule_task", prompt="Water the plants", recurrence="0 9 * * *")
    assert (answer["task_id"], answer["zone"], answer["recurrence"]) == ("task-o-1", "Europe/Berlin", "0 9 * * *")
    assert answer["next"] == "2026-01-01 09:00 (Europe/Berlin)"
    row = waiting(scene.folder)
    assert (row["platform_id"], row["thread_id"], row["principal"]) == ("-100", "7", "telegram:ann")
    assert row["process_after"] == "2026-01-01T08:00:00.000Z"
    assert scene.due.take("2026-01-01T07:59:59.999Z") == []
    assert scene.due.take("2026-01-01T08:00:00.000Z") == [KEY]
    assert scene.woken == []


@pytest.mark.req("R115")
async def test_asking_twice_with_one_row_is_asking_once(scene: Scene) -> None:
    for _ in range(2):
        answer = await scene.ask("schedule_task", prompt="x", process_after=to_text(NOW + HOUR))
        assert answer["next"] == "2026-01-01 02:00 (Europe/Berlin)"
    assert occurrences(scene.folder) == [("01:00", "pending")]


@pytest.mark.req("R115")
@pytest.mark.parametrize(
    "payload",
    [
        {"prompt": "x", "recurrence": "61 * * * *"},
        {"prompt": "x", "recurrence": "every 10s"},
        {"prompt": "x", "process_after": "2025-01-01T00:00:00Z"},
        {"prompt": "x", "recurrence": "0 9 * * *", "address": {"platform_id": "other"}},
        {"prompt": "x", "recurrence": "0 9 * * *", "principal": "telegram:owner"},
    ],
)
async def test_what_it_may_not_schedule_is_refused_when_it_asks(scene: Scene, payload: dict[str, object]) -> None:
    with pytest.raises(ScheduleRefused):
        await scene.ask("schedule_task", **payload)
    assert table(scene.folder, "series") == []


@pytest.mark.req("R115")
async def test_a_time_of_seconds_away_is_a_minute_away(scene: Scene) -> None:
    await scene.ask("schedule_task", prompt="again", process_after=to_text(NOW + timedelta(seconds=2)))
    assert waiting(scene.folder)["slot"] == to_text(NOW + timedelta(seconds=60))


@pytest.mark.req("R116", "R117")
async def test_its_live_tasks_are_listed_with_ids_that_its_other_tools_take(scene: Scene, clock: FakeClock) -> None:
    await scene.ask("schedule_task", "o-1", prompt="x", recurrence="every 1h")
    await scene.ask("schedule_task", "o-2", message="The bins!", process_after=to_text(NOW + 5 * HOUR))
    clock.jump(3600)
    first = waiting(scene.folder)["id"]
    await scene.pool.call(KEY, lambda mailbox: run(mailbox, scene.folder))
    listed = (await scene.ask("list_tasks"))["tasks"]
    assert [(task["task_id"], task["kind"], task["next"][11:16]) for task in listed] == [
        ("task-o-1", "prompt", "03:00"),
        ("task-o-2", "message", "06:00"),
    ]
    assert (await scene.ask("pause_task", task_id=first))["state"] == "paused"
    assert (await scene.ask("resume_task", task_id=first))["state"] == "active"
    changed = await scene.ask("update_task", task_id="task-o-1", recurrence="every 2h", prompt="y")
    assert (changed["recurrence"], changed["prompt"], changed["next"][11:16]) == ("every 2h", "y", "04:00")
    assert (await scene.ask("cancel_task", task_id="task-o-2"))["state"] == "cancelled"
    assert [task["task_id"] for task in (await scene.ask("list_tasks"))["tasks"]] == ["task-o-1"]


@pytest.mark.req("R117")
async def test_a_task_of_another_session_is_none_for_it(scene: Scene) -> None:
    await scene.ask("schedule_task", prompt="x", recurrence="every 1h")
    for name in ("cancel_task", "pause_task", "resume_task", "update_task"):
        with pytest.raises(NoSuchTask, match="task-o-1"):
            await scene.ask(name, key=OTHER, task_id="task-o-1")
        with pytest.raises(ScheduleRefused, match="task_id"):
            await scene.ask(name)
    assert (await scene.ask("list_tasks", key=OTHER)) == {"tasks": []}


@pytest.mark.req("R240")
async def test_the_heartbeat_is_the_owners_alone(scene: Scene) -> None:
    beat = await scene.desk.add_heartbeat(KEY, {"hours": ""}, address=TOPIC, principal="terminal:cli-user")
    for name in ("cancel_task", "pause_task", "resume_task", "update_task"):
        with pytest.raises(ScheduleRefused, match="owner"):
            await scene.ask(name, task_id=beat.series.id)
    with pytest.raises(ScheduleRefused, match="intervals"):
        await scene.desk.update(KEY, beat.series.id, {"recurrence": "0 9 * * *"}, by_agent=False)
    faster = await scene.desk.update(KEY, beat.series.id, {"recurrence": "every 15m", "per_day": 4}, by_agent=False)
    assert (
        '"every_seconds": 900, "hours": null, "zone": "Europe/Berlin", "per_day": 4' in waiting(scene.folder)["content"]
    )
    assert faster.slot == to_text(NOW + timedelta(minutes=15))
    await scene.desk.cancel(KEY, beat.series.id)
    again = await scene.desk.add_heartbeat(KEY, {}, address=TOPIC, principal=None)
    assert again.series.hours is not None
