"""CRON.json: a file of jobs that a person has the host take in as tasks. Nothing in it acts by lying there.

`{"jobs": [{"id", "name", "enabled", "schedule": {...}, "payload": {...}, "delete_after_run"}]}`, or the list alone.

schedule   {"kind": "at", "at": TIME, "tz"?} | {"kind": "every", "every_seconds": N, "anchor"?: TIME, "tz"?}
           | {"kind": "cron", "expr": five fields, "tz"?}
payload    {"kind": "agent_turn", "message": the prompt} | {"kind": "system_event", "text": sent as it is}
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from host import series_changes
from host.series import Series, State, forget, get
from host.series_changes import Done, Listed, listed
from host.task_draft import changed, new_series
from host.timetable import ScheduleRefused, moment
from mailboxes.ids import derived_id
from mailboxes.rows import Address

if TYPE_CHECKING:
    from host.mailbox import Mailbox

MAX_JOBS = 200


class CronFileRefused(ValueError):
    """The file as a whole is none; the text says where and why."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job: what it says of a task (host.task_draft.FIELDS), or why it cannot be one."""

    id: str
    name: str
    enabled: bool
    said: Mapping[str, object]
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a job: added, updated, unchanged, disabled, done (it ran in the past) or skipped, with the
    reason."""

    outcome: str
    reason: str | None = None
    task: Listed | None = None


class _Bad(Exception):
    """A job that is none."""


def jobs_of(text: str) -> list[Job]:
    """The jobs of a file, in order. Raises CronFileRefused."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CronFileRefused(f"This is no JSON: {error}.") from None
    jobs = data.get("jobs") if isinstance(data, dict) else data
    if not isinstance(jobs, list) or len(jobs) > MAX_JOBS:
        raise CronFileRefused(f"There is no list of at most {MAX_JOBS} jobs in it.")
    return [_job(job, number) for number, job in enumerate(jobs, start=1)]


def _job(job: object, number: int) -> Job:
    if not isinstance(job, dict):
        return Job(f"#{number}", "", enabled=False, said={}, refused="it is no object.")
    name = job.get("name") if isinstance(job.get("name"), str) else ""
    job_id = job.get("id") if isinstance(job.get("id"), str) and job["id"] else name or f"#{number}"
    enabled = job.get("enabled", True) is True
    try:
        said = {"name": str(name or job_id), **_schedule(job.get("schedule")), **_payload(job.get("payload"))}
    except _Bad as bad:
        return Job(str(job_id), str(name), enabled, {}, refused=str(bad))
    if job.get("delete_after_run") is True:
        said["remove_when_done"] = True
    return Job(str(job_id), str(name), enabled, said)


def _schedule(schedule: object) -> dict[str, object]:
    if not isinstance(schedule, dict):
        raise _Bad("it has no schedule.")
    kind, zone = schedule.get("kind"), schedule.get("tz")
    said: dict[str, object] = {} if zone is None else {"zone": zone}
    if kind == "at":
        return {**said, "process_after": _required(schedule, "at", str), "recurrence": ""}
    if kind == "cron":
        return {**said, "recurrence": _required(schedule, "expr", str)}
    if kind == "every":
        said |= {"recurrence": f"every {_required(schedule, 'every_seconds', int)}s"}
        return said if schedule.get("anchor") is None else {**said, "process_after": _required(schedule, "anchor", str)}
    raise _Bad(f"there is no schedule of the kind {str(kind)[:40]!r} (at, every, cron).")


def _payload(payload: object) -> dict[str, object]:
    if not isinstance(payload, dict):
        raise _Bad("it has no payload.")
    kind = payload.get("kind")
    if kind == "agent_turn":
        return {"prompt": _required(payload, "message", str)}
    if kind == "system_event":
        return {"message": _required(payload, "text", str)}
    raise _Bad(f"there is no payload of the kind {str(kind)[:40]!r} (agent_turn, system_event).")


def _required(values: Mapping[str, object], name: str, kind: type) -> object:
    value = values.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) or not value:
        raise _Bad(f"it has no {name}.")
    return value


def task_id_of(job_id: str) -> str:
    """The id of the task that a job becomes."""
    return f"cron-{derived_id(job_id, 'cron job')[:13]}"


def take_in(
    mailbox: "Mailbox", db: sqlite3.Connection, job: Job, address: Address | None, principal: str | None, zone: str,
    done: Done,
) -> Taken:  # fmt: skip
    """One job, inside a transaction of the mailbox."""
    if job.refused is not None:
        return Taken("skipped", job.refused)
    known = get(db, task_id_of(job.id))
    live = known is not None and known.state in {State.ACTIVE, State.PAUSED}
    if not job.enabled:
        if known is not None and live:
            series_changes.pause(mailbox, db, known, done)
        return Taken("disabled")
    if known is not None and known.state == State.DONE:
        return Taken("done", "it has run.", listed(db, known))
    try:
        if known is not None and live:
            return _again(mailbox, db, job, known, done)
        _refuse_past(job, mailbox, zone)
        made, start = new_series(
            job.said, series_id=task_id_of(job.id), address=address, principal=principal, zone=zone, now=mailbox.now()
        )
        if known is not None:
            forget(db, known.id)
        series_changes.add(mailbox, db, made, start, done)
        return Taken("added", None, listed(db, made))
    except ScheduleRefused as refused:
        return Taken("skipped", str(refused))


def _again(mailbox: "Mailbox", db: sqlite3.Connection, job: Job, known: Series, done: Done) -> Taken:
    after, start = changed(known, job.said, now=mailbox.now())
    if after == known:
        return Taken("unchanged", None, listed(db, known))
    series_changes.change(mailbox, db, known, after, start, done)
    return Taken("updated", None, listed(db, after))


def _refuse_past(job: Job, mailbox: "Mailbox", zone: str) -> None:
    """A single time that is over never runs, however short ago it was."""
    if job.said.get("recurrence") == "":
        at = moment(str(job.said["process_after"]), str(job.said.get("zone") or zone))
        if at < mailbox.now():
            raise ScheduleRefused("its time is over.")
