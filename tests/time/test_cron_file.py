"""CRON.json is taken in by a person's command: each job becomes a task, or is reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from host.cron_file import CronFileRefused, Taken, jobs_of, take_in, task_id_of
from host.mailbox import Mailbox
from host.series import Direction, State, get
from host.series_changes import Done
from mailboxes.rows import Address
from tests.fakes.clock import FakeClock
from tests.mailbox.made import CHAT
from tests.time.made import known, occurrences, run

JOBS: list[dict[str, Any]] = [
    {
        "id": "briefing", "name": "Briefing", "schedule": {"kind": "cron", "expr": "0 9 * * *", "tz": "Asia/Shanghai"},
        "payload": {"kind": "agent_turn", "message": "Brief me."},
    },
    {
        "id": "grid", "name": "Grid", "payload": {"kind": "agent_turn", "message": "Look."},
        "schedule": {"kind": "every", "every_seconds": 3600, "anchor": "2025-12-30T00:20:00Z"},
    },
    {
        "id": "future", "payload": {"kind": "agent_turn", "message": "Look later."},
        "schedule": {"kind": "every", "every_seconds": 3600, "anchor": "2026-02-01T00:20:00Z"},
    },
    {
        "id": "once", "delete_after_run": True, "payload": {"kind": "system_event", "text": "The bins!"},
        "schedule": {"kind": "at", "at": "2026-01-02T07:30", "tz": "Europe/Berlin"},
    },
    {
        "id": "over", "payload": {"kind": "agent_turn", "message": "x"},
        "schedule": {"kind": "at", "at": "2025-12-31T23:59:59Z"},
    },
    {
        "id": "off", "enabled": False, "payload": {"kind": "agent_turn", "message": "x"},
        "schedule": {"kind": "cron", "expr": "* * * * *"},
    },
    {"id": "tide", "payload": {"kind": "agent_turn", "message": "x"}, "schedule": {"kind": "tide"}},
    {"id": "bad", "payload": {"kind": "agent_turn", "message": "x"}, "schedule": {"kind": "cron", "expr": "0 9 * *"}},
    {"id": "song", "payload": {"kind": "song"}, "schedule": {"kind": "cron", "expr": "0 9 * * *"}},
]  # fmt: skip


def bring(mailbox: Mailbox, jobs: object, address: Address | None = CHAT) -> dict[str, Taken]:
    taken: dict[str, Taken] = {}

    def work(db: Any) -> None:
        for job in jobs_of(json.dumps(jobs)):
            taken[job.id] = take_in(mailbox, db, job, address, "terminal:cli-user", "UTC", Done())

    mailbox.write(work)
    return taken


@pytest.mark.req("R237", "R238", "R240")
def test_each_kind_of_job_becomes_a_task_with_its_next_time(mailbox: Mailbox) -> None:
    taken = bring(mailbox, {"jobs": JOBS})
    assert {job: one.outcome for job, one in taken.items()} == {
        "briefing": "added", "grid": "added", "future": "added", "once": "added", "over": "skipped",
        "off": "disabled", "tide": "skipped", "bad": "skipped", "song": "skipped",
    }  # fmt: skip
    assert {job: one.task.slot for job, one in taken.items() if one.task is not None} == {
        "briefing": "2026-01-01T01:00:00.000Z",
        "grid": "2026-01-01T00:20:00.000Z",
        "future": "2026-02-01T00:20:00.000Z",
        "once": "2026-01-02T06:30:00.000Z",
    }
    assert [taken[job].reason for job in ("over", "tide", "song")] == [
        "its time is over.",
        "there is no schedule of the kind 'tide' (at, every, cron).",
        "there is no payload of the kind 'song' (agent_turn, system_event).",
    ]
    assert "five fields" in (taken["bad"].reason or "")
    once = known(mailbox, task_id_of("once"))
    assert (once.direction, once.content, once.remove_when_done) == (Direction.OUT, '{"text": "The bins!"}', True)


@pytest.mark.req("R237")
async def test_a_file_that_is_taken_in_again_changes_what_it_changed_and_nothing_else(mailbox: Mailbox) -> None:
    bring(mailbox, JOBS)
    changed = [{**JOBS[0], "schedule": {**JOBS[0]["schedule"], "expr": "0 10 * * *"}}, {**JOBS[1], "enabled": False}]
    taken = bring(mailbox, [*changed, JOBS[2]])
    assert [taken[job].outcome for job in ("briefing", "grid", "future")] == ["updated", "disabled", "unchanged"]
    assert taken["briefing"].task is not None
    assert taken["briefing"].task.slot == "2026-01-01T02:00:00.000Z"
    assert known(mailbox, task_id_of("grid")).state == State.PAUSED


@pytest.mark.req("R238")
async def test_a_single_time_that_has_run_does_not_run_again_by_a_second_take_in(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    job = {
        "id": "at", "payload": {"kind": "agent_turn", "message": "x"},
        "schedule": {"kind": "at", "at": "2026-01-01T00:10Z"},
    }  # fmt: skip
    gone = {**job, "id": "gone", "delete_after_run": True}
    bring(mailbox, [job])
    clock.jump(900)
    run(mailbox, folder)
    bring(mailbox, [gone])
    taken = bring(mailbox, [job, gone])
    assert [taken[name].outcome for name in ("at", "gone")] == ["done", "skipped"]
    assert occurrences(folder) == [("00:10", "completed")]
    assert get(mailbox.db, task_id_of("gone")) is None


@pytest.mark.req("R237")
@pytest.mark.parametrize("text", ["", "{", "17", '{"jobs": 3}', "[" * 100_000, json.dumps([{}] * 201)])
def test_a_malformed_file_is_reported_as_a_whole(text: str) -> None:
    with pytest.raises(CronFileRefused):
        jobs_of(text)


@pytest.mark.req("R237")
@pytest.mark.parametrize(
    "job", [3, None, {}, {"id": 5}, {"schedule": [], "payload": 1}, {"schedule": {"kind": ["at"]}}]
)
def test_a_malformed_job_is_reported_and_the_others_are_taken_in(mailbox: Mailbox, job: object) -> None:
    taken = bring(mailbox, [job, JOBS[0]])
    assert [one.outcome for one in taken.values()] == ["skipped", "added"]


@pytest.mark.req("R237")
def test_words_for_a_session_without_a_chat_are_reported(mailbox: Mailbox) -> None:
    taken = bring(mailbox, [JOBS[3]], None)
    assert (taken["once"].outcome, "chat" in (taken["once"].reason or "")) == ("skipped", True)
