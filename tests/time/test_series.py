"""A slot fires once: what follows an occurrence, and what a task outlives."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host import series
from host.items import TakeOver
from host.mailbox import Mailbox
from host.series import State
from host.timetable import At, Cron, Missed
from mailboxes import schema
from mailboxes.clock import to_text
from mailboxes.ids import derived_id
from mailboxes.layout import INBOUND_DB
from mailboxes.rows import ClaimState
from tests.fakes.clock import FakeClock
from tests.mailbox.made import CHAT, KEY, claim, message, row_of, said, snapshot, table, take
from tests.time.made import HOUR, NOW, add, fail, known, occurrences, run, task, waiting


@pytest.mark.req("R143", "R115")
def test_a_task_is_a_row_that_waits_for_its_time_in_the_mailbox(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task(), NOW + HOUR)
    row = waiting(folder)
    assert (row["kind"], row["process_after"], row["slot"]) == ("task", to_text(NOW + HOUR), to_text(NOW + HOUR))
    assert (row["platform_id"], row["recurrence"], row["series_id"]) == (CHAT.platform_id, "every 1h", "task-1")
    assert mailbox.next_due() == to_text(NOW + HOUR)
    assert not mailbox.has_open_rows()


@pytest.mark.req("R144")
async def test_the_next_occurrence_is_there_when_the_last_one_is_completed(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task())
    run(mailbox, folder, ClaimState.PROCESSING)
    assert occurrences(folder) == [("00:00", "processing")]
    run(mailbox, folder)
    assert occurrences(folder) == [("00:00", "completed"), ("01:00", "pending")]
    first, second = table(folder, "messages_in")
    same = ("kind", "content", "platform_id", "thread_id", "recurrence", "series_id", "principal")
    assert [first[name] for name in same] == [second[name] for name in same]


@pytest.mark.req("R145")
async def test_a_hundred_late_completions_leave_every_time_on_the_grid(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task())
    for minutes in range(100):
        clock.jump(60 * (minutes % 50))
        run(mailbox, folder)
    assert {row["slot"][14:] for row in table(folder, "messages_in")} == {"00:00.000Z"}


@pytest.mark.req("R146")
async def test_a_retried_occurrence_leaves_the_next_one_on_the_grid(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task(schedule=Cron("0 9 * * *", "Europe/Berlin")))
    clock.jump(8 * 3600)
    for _ in range(2):
        run(mailbox, folder, ClaimState.RELEASED, reason="overloaded")
        clock.jump(60)
    row = waiting(folder)
    assert (row["tries"], row["slot"]) == (2, "2026-01-01T08:00:00.000Z")
    assert row["process_after"] > row["slot"]
    run(mailbox, folder)
    assert waiting(folder)["slot"] == "2026-01-02T08:00:00.000Z"


@pytest.mark.req("R147")
@pytest.mark.fault(57)
async def test_a_slot_has_one_row_however_often_it_is_looked_at(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task())
    add(mailbox, task())
    for _ in range(5):
        series.mend(mailbox, TakeOver())
    assert occurrences(folder) == [("00:00", "pending")]
    assert waiting(folder)["id"] == derived_id("task-1 2026-01-01T00:00:00.000Z", "occurrence")


@pytest.mark.req("R147")
@pytest.mark.fault(57)
@pytest.mark.parametrize("point", ["before_take_over", "after_take_over"])
def test_a_host_killed_between_an_occurrence_and_the_next_fires_every_slot_once(
    folder: Path, clock: FakeClock, point: str
) -> None:
    with_task = Mailbox(KEY, folder, clock.now)
    add(with_task, task())
    with_task.close()
    killed = subprocess.run(
        [sys.executable, "-m", "tests.time.children", str(folder)], env={"INNKEEPER_CRASH_AT": point}, check=False
    )
    assert killed.returncode == -9
    after = Mailbox(KEY, folder, clock.now)
    series.mend(after, TakeOver())
    word = claim(derived_id("task-1 2026-01-01T00:00:00.000Z", "occurrence"), ClaimState.COMPLETED)
    take(after, snapshot(claims=[word]))
    after.close()
    assert occurrences(folder) == [("00:00", "completed"), ("01:00", "pending")]


@pytest.mark.req("R147")
def test_a_task_of_a_mailbox_from_a_copy_gets_its_next_occurrence_again(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task())
    mailbox.write(lambda db: db.execute("DELETE FROM messages_in") and None)
    series.mend(mailbox, TakeOver())
    assert occurrences(folder) == [("00:00", "pending")]


@pytest.mark.req("R148")
async def test_after_three_days_without_a_host_an_hourly_task_runs_once(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task())
    clock.jump(3 * 86400 + 1200)
    series.mend(mailbox, TakeOver())
    run(mailbox, folder)
    assert occurrences(folder) == [("00:00", "completed"), ("01:00", "pending")]
    assert waiting(folder)["slot"] == to_text(NOW + timedelta(days=3, hours=1))
    assert known(mailbox).missed_from == to_text(NOW + HOUR)
    assert known(mailbox).missed_until == to_text(clock.now())


@pytest.mark.req("R148")
async def test_a_task_that_skips_what_it_missed_waits_for_its_next_time(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task(missed=Missed.SKIP))
    clock.jump(50)
    series.mend(mailbox, TakeOver())
    assert occurrences(folder) == [("00:00", "pending")]
    clock.jump(1200)
    series.mend(mailbox, TakeOver())
    assert occurrences(folder) == [("00:00", "cancelled"), ("01:00", "pending")]
    assert known(mailbox).missed_from == to_text(NOW)
    clock.jump(5 * 3600)
    series.mend(mailbox, TakeOver())
    assert occurrences(folder)[-2:] == [("01:00", "cancelled"), ("06:00", "pending")]
    assert known(mailbox).missed_from == to_text(NOW + HOUR), "the first of all that were left out"


@pytest.mark.req("R148")
async def test_a_task_that_makes_up_for_all_it_missed_runs_each_in_order(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task(missed=Missed.ALL))
    clock.jump(3 * 3600 + 60)
    for _ in range(4):
        run(mailbox, folder)
    assert [slot for slot, status in occurrences(folder) if status == "completed"] == [
        "00:00",
        "01:00",
        "02:00",
        "03:00",
    ]
    assert waiting(folder)["slot"] == to_text(NOW + 4 * HOUR)
    assert known(mailbox).missed_from is None


@pytest.mark.fault(56)
async def test_a_run_that_lasts_longer_than_its_interval_is_not_run_twice_back_to_back(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task())
    run(mailbox, folder, ClaimState.PROCESSING)
    clock.jump(2 * 3600 + 600)
    run(mailbox, folder)
    assert waiting(folder)["slot"] == to_text(NOW + 3 * HOUR)


@pytest.mark.fault(58)
@pytest.mark.req("R239")
async def test_a_task_that_fails_keeps_its_series_and_is_paused_after_five_failures_with_one_notice(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task())
    notices = []
    with structlog.testing.capture_logs() as events:
        for count in range(1, 5):
            notices += fail(mailbox, folder).items
            assert (known(mailbox).failures, known(mailbox).state) == (count, State.ACTIVE)
            clock.jump(3600)
        assert notices == []
        (notice,) = fail(mailbox, folder).items
    runs = [event for event in events if event["event"] == "a task was run"]
    assert [(one["task"], one["status"], one["failures"]) for one in runs] == [
        ("task-1", "failed", count) for count in range(1, 6)
    ]
    assert "water" in notice.content
    assert "the model refused." in notice.content
    assert "host tasks resume task-1" in notice.content
    assert known(mailbox).state == State.PAUSED
    assert not [slot for slot, status in occurrences(folder) if status == "pending"]
    series.mend(mailbox, TakeOver())
    assert not [slot for slot, status in occurrences(folder) if status == "pending"]


@pytest.mark.req("R239")
async def test_a_success_begins_the_count_of_failures_anew(mailbox: Mailbox, folder: Path, clock: FakeClock) -> None:
    add(mailbox, task())
    for _ in range(3):
        for _ in range(4):
            fail(mailbox, folder)
            clock.jump(3600)
        run(mailbox, folder)
        clock.jump(3600)
        assert (known(mailbox).failures, known(mailbox).last_status) == (0, "completed")
    assert known(mailbox).state == State.ACTIVE


@pytest.mark.req("R238")
async def test_a_task_for_one_time_is_done_after_it_and_tells_when_it_fails(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task(schedule=At(NOW)))
    (notice,) = fail(mailbox, folder).items
    assert "failed: The sandbox says" not in notice.content
    assert "the model refused." in notice.content
    assert known(mailbox).state == State.DONE
    series.mend(mailbox, TakeOver())
    assert occurrences(folder) == [("00:00", "failed")]


@pytest.mark.req("R238")
async def test_a_task_that_is_to_go_when_it_is_done_goes(mailbox: Mailbox, folder: Path) -> None:
    add(mailbox, task(schedule=At(NOW), remove_when_done=True))
    run(mailbox, folder)
    assert table(folder, "series") == []
    assert occurrences(folder) == [("00:00", "completed")]


async def test_an_occurrence_that_broke_off_after_it_had_spoken_is_carried_on_and_the_next_one_waits(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task())
    row = waiting(folder)
    turn = {"turn_id": "t-9"}
    take(mailbox, snapshot([said("o-1", 1, turn_id="t-9", in_reply_to=row["id"])], [claim(row["id"], **turn)]))
    take(mailbox, snapshot(claims=[claim(row["id"], ClaimState.RELEASED, reason="it broke.", **turn)]))
    (carried,) = [row for row in table(folder, "messages_in") if row["kind"] == "system"]
    assert occurrences(folder) == [("00:00", "completed"), ("00:00", "pending"), ("01:00", "pending")]
    clock.jump(30)
    take(mailbox, snapshot(claims=[claim(carried["id"], ClaimState.COMPLETED, carried["tries"], turn_id="t-10")]))
    assert known(mailbox).last_status == "completed"
    assert occurrences(folder) == [("00:00", "completed"), ("00:00", "completed"), ("01:00", "pending")]


async def test_an_old_occurrence_that_is_tried_again_adds_no_second_next_one(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    add(mailbox, task(missed=Missed.ALL))
    fail(mailbox, folder)
    failed = next(row for row in table(folder, "messages_in") if row["status"] == "failed")
    clock.jump(5 * 3600)
    assert mailbox.retry_message(failed["id"])
    take(mailbox, snapshot(claims=[claim(failed["id"], ClaimState.COMPLETED, 1, turn_id="t-7")]))
    assert occurrences(folder) == [("00:00", "completed"), ("01:00", "pending")]


@pytest.mark.req("R238")
async def test_a_share_of_each_day_is_not_exceeded(mailbox: Mailbox, folder: Path, clock: FakeClock) -> None:
    add(mailbox, task(per_day=2, zone="UTC"))
    run(mailbox, folder)
    clock.jump(3600)
    run(mailbox, folder)
    assert waiting(folder)["slot"] == to_text(NOW + timedelta(days=1))


async def test_a_task_whose_next_time_cannot_be_reckoned_is_paused_and_holds_nothing_up(
    mailbox: Mailbox, folder: Path
) -> None:
    add(mailbox, task())
    lost = "UPDATE series SET zone='Atlantis/City', every_seconds=NULL, expression='0 9 * * *'"
    mailbox.write(lambda db: db.execute(lost) and None)
    (notice,) = run(mailbox, folder).items
    assert "Atlantis/City" in notice.content
    assert known(mailbox).state == State.PAUSED
    assert occurrences(folder) == [("00:00", "completed")]


def test_a_mailbox_of_the_first_version_is_brought_up_to_date_when_it_is_opened(folder: Path, clock: FakeClock) -> None:
    path = folder / "inbound" / INBOUND_DB
    old = schema.open_inbound(path)
    old.executescript(
        "DROP TABLE series; DROP INDEX messages_in_series; DROP INDEX deliveries_series;"
        "ALTER TABLE deliveries DROP COLUMN series_id; ALTER TABLE deliveries DROP COLUMN slot; PRAGMA user_version=1"
    )
    old.close()
    opened = Mailbox(KEY, folder, clock.now)
    opened.put([message("m-1")])
    add(opened, task())
    assert opened.db.execute("PRAGMA user_version").fetchone()[0] == schema.INBOUND_VERSION
    assert row_of(folder, "m-1")["status"] == "pending"
    opened.close()


def test_a_mailbox_of_a_later_version_is_refused(folder: Path, clock: FakeClock) -> None:
    path = folder / "inbound" / INBOUND_DB
    newer = schema.open_inbound(path)
    newer.execute("PRAGMA user_version=99")
    newer.close()
    with pytest.raises(schema.NewerMailbox, match="newer version"):
        Mailbox(KEY, folder, clock.now).next_due()


STEPS = st.lists(
    st.tuples(st.sampled_from(("complete", "fail", "retry", "stop", "mend", "restart")), st.integers(0, 20_000)),
    min_size=1, max_size=25,
)  # fmt: skip


@pytest.mark.req("R145", "R147", "R148")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, policy=st.sampled_from(Missed))
def test_whatever_happens_a_live_task_has_one_open_occurrence_and_no_slot_twice(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], policy: Missed
) -> None:
    from tests.mailbox.made import make_session

    folder, clock = make_session(tmp_path_factory.mktemp("session") / "s"), FakeClock()
    mailbox = Mailbox(KEY, folder, clock.now)
    add(mailbox, task(missed=policy))
    for what, seconds in steps:
        clock.jump(seconds)
        if known(mailbox).state == State.PAUSED:
            break
        if what == "restart":
            mailbox.close()
            mailbox = Mailbox(KEY, folder, clock.now)
            series.mend(mailbox, TakeOver())
        elif what == "mend":
            series.mend(mailbox, TakeOver())
        elif what == "complete":
            run(mailbox, folder)
        elif what == "fail":
            fail(mailbox, folder)
        else:
            row = waiting(folder)
            words = [claim(row["id"], ClaimState.RELEASED, row["tries"], reason="it broke.", turn_id=f"t-{seconds}")]
            take(mailbox, snapshot(claims=words), counted=what == "retry")
        rows = [row for row in table(folder, "messages_in") if row["slot"]]
        assert len({row["slot"] for row in rows}) == len(rows)
        assert all(row["slot"].endswith("00:00.000Z") for row in rows)
        live = [row for row in rows if row["status"] in ("pending", "processing")]
        assert len(live) == (known(mailbox).state == State.ACTIVE)
    mailbox.close()
