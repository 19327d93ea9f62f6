"""What may be asked of a task: pause, resume, change, cancel, run now; and what moves with a session."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from host import series_changes
from host.channels.base import Channel
from host.delivery import Delivery
from host.home import Home
from host.items import Item, SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from host.moving import move_tasks
from host.series import Series, State, every
from host.series_changes import Done, NoSuchTask, cancel, listed, pause, resume, run_now, wanted
from host.task_draft import changed, new_series
from host.timetable import At, Cron, Every, ScheduleRefused
from mailboxes.clock import to_text
from mailboxes.rows import ClaimState
from tests.delivery.conftest import Books
from tests.fakes.clock import FakeClock
from tests.mailbox.made import CHAT, KEY, claim, make_session, message, row_of, snapshot, table, take
from tests.time.made import HOUR, NOW, add, do, known, occurrences, reminder, run, task, waiting

NEW = SessionRef("ag-1", "s-2")


def revise(mailbox: Mailbox, before: Series, **said: object) -> Series:
    after, start = changed(before, said, now=mailbox.now())
    mailbox.write(lambda db: series_changes.change(mailbox, db, before, after, start, Done()) and None)
    return after


@pytest.mark.req("R117")
async def test_a_paused_task_is_left_alone_and_goes_on_at_its_next_time(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task(), NOW + HOUR)
    do(mailbox, pause)
    assert mailbox.next_due() is None
    clock.jump(5 * 3600)
    do(mailbox, resume)
    assert occurrences(folder) == [("01:00", "cancelled"), ("06:00", "pending")]
    assert known(mailbox).state == State.ACTIVE


@pytest.mark.req("R117")
def test_a_task_that_is_resumed_before_its_time_keeps_it(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task(), NOW + HOUR)
    do(mailbox, pause)
    do(mailbox, resume)
    assert occurrences(folder) == [("01:00", "pending")]


@pytest.mark.req("R117")
async def test_a_task_for_one_time_that_was_paused_over_it_runs_when_it_is_resumed(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task(schedule=At(NOW + HOUR)))
    do(mailbox, pause)
    clock.jump(7200)
    do(mailbox, resume)
    assert occurrences(folder) == [("01:00", "pending")]
    assert mailbox.has_open_rows()


@pytest.mark.req("R117")
async def test_a_task_that_is_cancelled_while_it_runs_has_no_next_time(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task())
    run(mailbox, folder, ClaimState.PROCESSING)
    do(mailbox, cancel)
    assert occurrences(folder) == [("00:00", "processing")]
    run(mailbox, folder)
    assert occurrences(folder) == [("00:00", "completed")]
    assert every(mailbox.db) == []


@pytest.mark.fault(56)
def test_a_task_that_is_cancelled_before_its_turn_does_not_run(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task())
    do(mailbox, cancel)
    assert occurrences(folder) == [("00:00", "cancelled")]
    assert not mailbox.has_open_rows()
    with pytest.raises(NoSuchTask, match="cancelled"):
        wanted(mailbox.db, "task-1")


@pytest.mark.req("R116", "R117")
async def test_the_id_of_an_occurrence_that_is_over_still_means_the_live_task(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task())
    old = waiting(folder)["id"]
    run(mailbox, folder)
    do(mailbox, pause, old)
    assert occurrences(folder) == [("00:00", "completed"), ("01:00", "paused")]
    assert [listed(mailbox.db, one).slot for one in every(mailbox.db)] == [to_text(NOW + HOUR)]


@pytest.mark.fault(60)
@pytest.mark.req("R117")
def test_a_changed_cadence_moves_the_next_time(mailbox: Mailbox, folder: Path) -> None:
    weekly = task(schedule=Cron("0 9 * * 1", "Europe/Berlin"))
    add(mailbox, weekly)
    assert waiting(folder)["slot"] == "2026-01-05T08:00:00.000Z"
    daily = revise(mailbox, weekly, recurrence="0 9 * * *")
    assert waiting(folder)["slot"] == "2026-01-01T08:00:00.000Z"
    revise(mailbox, daily, zone="Asia/Shanghai", prompt="other words")
    assert waiting(folder)["slot"] == "2026-01-01T01:00:00.000Z"
    assert "other words" in waiting(folder)["content"]


@pytest.mark.req("R117")
def test_changed_words_are_those_of_the_occurrence_that_waits(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task(), NOW + HOUR)
    revise(mailbox, task(), prompt="feed the cat", quiet=True)
    row = waiting(folder)
    assert (row["content"], row["platform_id"], row["slot"]) == (
        '{"prompt": "feed the cat"}',
        None,
        to_text(NOW + HOUR),
    )


@pytest.mark.fault(62)
async def test_a_run_beside_the_schedule_leaves_the_next_time(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task(), NOW + HOUR)
    do(mailbox, run_now)
    (extra,) = [row for row in table(folder, "messages_in") if row["slot"] is None]
    assert (extra["process_after"], extra["content"]) == (None, task().content)
    take(mailbox, snapshot(claims=[claim(extra["id"], ClaimState.COMPLETED)]))
    assert occurrences(folder) == [("01:00", "pending")]
    assert known(mailbox).last_status == "completed"


@pytest.mark.req("R115")
def test_a_session_has_at_most_fifty_tasks(mailbox: Mailbox, folder: Path) -> None:
    for number in range(50):
        add(mailbox, task(id=f"task-{number}"))
    with pytest.raises(ScheduleRefused, match="50 tasks"):
        add(mailbox, task(id="task-51"))
    do(mailbox, cancel, "task-7")
    add(mailbox, task(id="task-51"))


@pytest.mark.req("R115")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "message": "y", "recurrence": "every 1h"}, "either"),
        ({"prompt": "x"}, "time"),
        ({"prompt": "x", "process_after": "soon"}, "soon"),
        ({"prompt": "x", "process_after": "2025-12-31T00:00Z"}, "past"),
        ({"prompt": "x", "recurrence": "every 5s"}, "60 s"),
        ({"prompt": "x", "recurrence": "* * *"}, "five fields"),
        ({"prompt": "x", "recurrence": "0 9 * * *", "zone": "Mars"}, "Mars"),
        ({"prompt": "x", "recurrence": "0 9 * * *", "missed": "never"}, "once, skip, all"),
        ({"prompt": "x", "recurrence": "0 9 * * *", "hours": "9"}, "9-22"),
        ({"prompt": "x", "recurrence": "0 9 * * *", "session": "s-9"}, "session"),
        ({"prompt": ["x"], "recurrence": "0 9 * * *"}, "text"),
        ({"message": "x", "script": "true", "recurrence": "0 9 * * *"}, "script"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_with_the_reason(said: dict[str, object], why: str) -> None:
    with pytest.raises(ScheduleRefused, match=why):
        new_series(said, series_id="t", address=CHAT, principal=None, zone="UTC", now=NOW)


@pytest.mark.req("R115")
def test_an_agents_single_time_is_put_off_to_a_minute_from_now() -> None:
    said = {"prompt": "x", "process_after": to_text(NOW + timedelta(seconds=5))}
    made, _ = new_series(
        said, series_id="t", address=CHAT, principal=None, zone="UTC", now=NOW, soonest=timedelta(seconds=60)
    )
    assert made.schedule == At(NOW + timedelta(seconds=60))


@pytest.mark.fault(64, 65)
def test_a_task_of_a_thread_answers_there_and_one_without_a_chat_says_so() -> None:
    topic = replace(CHAT, thread_id="7")
    made, _ = new_series(
        {"prompt": "x", "recurrence": "every 1h"}, series_id="t", address=topic, principal=None, zone="UTC", now=NOW
    )
    assert made.address == topic
    said = {"prompt": "x", "recurrence": "every 1h", "quiet": False}
    with pytest.raises(ScheduleRefused, match="no chat"):
        new_series(said, series_id="t", address=None, principal=None, zone="UTC", now=NOW)


async def nobody(key: SessionRef) -> None:
    raise AssertionError(f"nothing holds {key}")


@pytest.mark.req("R115", "R150")
@pytest.mark.parametrize("twice", [False, True])
async def test_tasks_and_what_waits_move_with_a_conversation_that_begins_anew(
    tmp_path: Path, clock: FakeClock, twice: bool
) -> None:
    home = Home(tmp_path / "home", tmp_path / "run")
    old, new = (make_session(home.session_folder(key.agent_group_id, key.session_id)) for key in (KEY, NEW))
    pool = MailboxPool(home, clock, nobody)
    channels: dict[tuple[str, str], Channel] = {}
    delivery = Delivery(channels, Books(pool), clock)

    def fill(mailbox: Mailbox) -> list[Item]:
        add(mailbox, task())
        run(mailbox, old)
        add(mailbox, task(id="task-2"), NOW + HOUR)
        do(mailbox, pause, "task-2")
        mailbox.put([message("m-later", process_after=to_text(NOW + 3 * HOUR)), message("m-now")])
        return add(mailbox, reminder(id="task-3"), NOW + HOUR).taken.items

    items = await pool.call(KEY, fill)
    delivery.add(items)
    said = items[0].id
    assert await move_tasks(pool, delivery, KEY, NEW) == 3 + 4 + 1
    if twice:
        again = "UPDATE series SET state='active'"  # the source was killed before it knew
        await pool.call(KEY, lambda mailbox: mailbox.write(lambda db: db.execute(again) and None))
        await move_tasks(pool, delivery, KEY, NEW)
    assert occurrences(new) == [("01:00", "paused"), ("01:00", "pending")]
    assert row_of(new, "m-later")["process_after"] == to_text(NOW + 3 * HOUR)
    assert row_of(new, said, "deliveries")["state"] == "queued"
    assert row_of(old, said, "deliveries")["state"] == "cancelled"
    assert {row["state"] for row in table(old, "series")} == {"moved"}
    assert [row["status"] for row in table(old, "messages_in")] == ["completed"] + ["cancelled"] * 4
    assert [row["state"] for row in table(new, "series")] == ["active", "paused", "active"]
    assert await pool.call(KEY, Mailbox.next_due) is None
    await delivery.close()
    await pool.close()


@pytest.mark.req("R115")
def test_an_interval_without_a_time_of_its_own_has_its_first_time_at_its_end(mailbox: Mailbox, folder: Path) -> None:
    said = {"prompt": "x", "recurrence": "every 30m"}
    made, start = new_series(said, series_id="t", address=CHAT, principal=None, zone="UTC", now=NOW)
    add(mailbox, made, start)
    assert waiting(folder)["slot"] == to_text(NOW + timedelta(minutes=30))


@pytest.mark.fault(60)
@pytest.mark.req("R117")
def test_a_cadence_that_is_changed_while_a_task_is_held_counts_when_it_goes_on(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task(), NOW + HOUR)
    do(mailbox, pause)
    revise(mailbox, known(mailbox), recurrence="every 3h", quiet=True)
    do(mailbox, resume)
    row = waiting(folder)
    assert (row["slot"], row["recurrence"], row["platform_id"]) == (to_text(NOW + 3 * HOUR), "every 3h", None)


@pytest.mark.req("R117")
def test_words_that_change_while_a_task_is_held_are_those_it_goes_on_with(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task(), NOW + HOUR)
    do(mailbox, pause)
    revise(mailbox, known(mailbox), prompt="feed the cat", quiet=True)
    do(mailbox, resume)
    row = waiting(folder)
    assert (row["content"], row["slot"]) == ('{"prompt": "feed the cat"}', to_text(NOW + HOUR))
    assert row["platform_id"] is None


@pytest.mark.req("R115")
def test_a_change_may_begin_later_stay_on_its_grid_or_be_refused(mailbox: Mailbox, folder: Path) -> None:
    grid = task(schedule=Every(3600, NOW - timedelta(minutes=20)))
    add(mailbox, grid)
    assert revise(mailbox, grid, recurrence="every 1h", name="same").schedule == grid.schedule
    later = revise(mailbox, grid, recurrence="0 9 * * *", process_after="2026-03-01T00:00")
    assert waiting(folder)["slot"] == "2026-03-01T08:00:00.000Z"
    with pytest.raises(ScheduleRefused, match="no time to come"):
        revise(mailbox, later, hours="10-12")
    assert waiting(folder)["slot"] == "2026-03-01T08:00:00.000Z"
    for zone in ("Mars/Base", "../UTC"):
        with pytest.raises(ScheduleRefused, match="time zone"):
            changed(later, {"zone": zone}, now=NOW)
