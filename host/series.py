"""Tasks: the table `series` of an inbound.db, and the occurrences that the host makes of it.

An occurrence is a row of messages_in (a prompt for the agent) or of deliveries (words that go out without waking it)
with the id uuid5(series, slot). A task has at most one open occurrence; the next one is written in the transaction in
which the last is judged finished, so a slot fires once, whenever the host is killed. What is asked of a task is in
host.series_changes. Everything here runs inside `Mailbox.write`, but for what only reads.
"""

import json
import logging
import sqlite3
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from host.items import Item, TakeOver
from host.judging import Interrupted, Verdict
from host.text import printable
from host.timetable import (
    At,
    Cron,
    Every,
    Hours,
    Missed,
    Schedule,
    ScheduleRefused,
    canonical,
    following,
    next_slot,
    shown,
    zone_of,
)
from mailboxes.clock import from_text, to_text
from mailboxes.ids import derived_id
from mailboxes.rows import HEARTBEAT, Address, DeliveryState, InStatus, MessageIn, MessageOut

if TYPE_CHECKING:
    from host.mailbox import Mailbox

MAX_FAILURES = 5
"""So many failures in a row pause a task (ledger R239)."""

LATE = timedelta(seconds=60)
"""An occurrence that nothing could run for so long was missed."""

_SHOWN_REASON = 300

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Direction(StrEnum):
    """Whether occurrences wake the agent or go out as they are."""

    IN = "in"
    OUT = "out"


class State(StrEnum):
    """`done`: nothing follows. `moved`: it goes on in another session."""

    ACTIVE = "active"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"
    MOVED = "moved"


LIVE = "state IN ('active', 'paused')"


@dataclass(frozen=True, slots=True)
class Series:
    """One task. `content` is what each occurrence carries, of `kind`; `address` is where results and notices go;
    `quiet`: results are kept and logged, and sent nowhere. `zone` is what its times mean, for a cron schedule too."""

    id: str
    name: str
    direction: Direction
    kind: str
    content: str
    address: Address | None
    schedule: Schedule
    zone: str
    created: str
    principal: str | None = None
    quiet: bool = False
    hours: Hours | None = None
    per_day: int | None = None
    missed: Missed = Missed.ONCE
    missed_from: str | None = None
    missed_until: str | None = None
    state: State = State.ACTIVE
    failures: int = 0
    last_run: str | None = None
    last_status: str | None = None
    last_error: str | None = None
    remove_when_done: bool = False
    moved_to: str | None = None

    @property
    def recurs(self) -> bool:
        """Whether there is more than one occurrence."""
        return not isinstance(self.schedule, At)

    @property
    def is_heartbeat(self) -> bool:
        """See MessageIn.is_heartbeat."""
        return self.id.startswith(HEARTBEAT)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An open one."""

    id: str
    slot: str
    status: str
    due: str | None


# -- the table

_COLUMNS = (
    "id", "name", "direction", "kind", "content", "channel_type", "account_id", "platform_id", "thread_id", "quiet",
    "expression", "every_seconds", "anchor", "zone", "first_hour", "end_hour", "per_day", "missed", "missed_from",
    "missed_until", "state", "failures", "last_run", "last_status", "last_error", "remove_when_done", "principal",
    "created", "moved_to",
)  # fmt: skip


def _values(series: Series) -> tuple[object, ...]:
    schedule, hours, address = series.schedule, series.hours, series.address
    anchor = schedule.moment if isinstance(schedule, At) else getattr(schedule, "anchor", None)
    return (
        series.id, series.name, series.direction, series.kind, series.content,
        address and address.channel_type, address and address.account_id, address and address.platform_id,
        address and address.thread_id, int(series.quiet),
        schedule.expression if isinstance(schedule, Cron) else None,
        schedule.seconds if isinstance(schedule, Every) else None,
        canonical(anchor), series.zone, hours and hours.first, hours and hours.end, series.per_day, series.missed,
        series.missed_from, series.missed_until, series.state, series.failures, series.last_run, series.last_status,
        series.last_error, int(series.remove_when_done), series.principal, series.created, series.moved_to,
    )  # fmt: skip


def series_of(row: sqlite3.Row) -> Series:
    """A task from a row with all columns."""
    zone = row["zone"]
    schedule: Schedule
    if row["expression"] is not None:
        schedule = Cron(row["expression"], zone)
    elif row["every_seconds"] is not None:
        schedule = Every(row["every_seconds"], from_text(row["anchor"]))
    else:
        schedule = At(from_text(row["anchor"]))
    address = None
    if row["channel_type"] is not None:
        address = Address(row["channel_type"], row["account_id"], row["platform_id"], row["thread_id"])
    return Series(
        row["id"], row["name"], Direction(row["direction"]), row["kind"], row["content"], address, schedule, zone,
        row["created"], row["principal"], bool(row["quiet"]),
        None if row["first_hour"] is None else Hours(row["first_hour"], row["end_hour"], zone),
        row["per_day"], Missed(row["missed"]), row["missed_from"], row["missed_until"], State(row["state"]),
        row["failures"], row["last_run"], row["last_status"], row["last_error"], bool(row["remove_when_done"]),
        row["moved_to"],
    )  # fmt: skip


def store(db: sqlite3.Connection, series: Series) -> None:
    """Writes a task, new or changed."""
    marks = ",".join("?" * len(_COLUMNS))
    same = ",".join(f"{name}=excluded.{name}" for name in _COLUMNS[1:])
    db.execute(
        f"INSERT INTO series ({', '.join(_COLUMNS)}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {same}",  # noqa: S608  our words
        _values(series),
    )


def forget(db: sqlite3.Connection, series_id: str) -> None:
    """Forgets a task; what it brought about stays."""
    db.execute("DELETE FROM series WHERE id=?", (series_id,))


def get(db: sqlite3.Connection, series_id: str) -> Series | None:
    """The task of this id."""
    row = db.execute("SELECT * FROM series WHERE id=?", (series_id,)).fetchone()
    return series_of(row) if row else None


def find(db: sqlite3.Connection, wanted: str) -> Series | None:
    """The task of this id, or that of an occurrence with this id, however long ago it was."""
    for table in ("messages_in", "deliveries"):
        row = db.execute(f"SELECT series_id FROM {table} WHERE id=?", (wanted,)).fetchone()  # noqa: S608  our words
        if row is not None and row["series_id"] is not None:
            return get(db, row["series_id"])
    return get(db, wanted)


def every(db: sqlite3.Connection, condition: str = LIVE) -> list[Series]:
    """The tasks for which an SQL condition of ours holds, in order of their making."""
    rows = db.execute(f"SELECT * FROM series WHERE {condition} ORDER BY created, rowid")  # noqa: S608  our words
    return [series_of(row) for row in rows]


def open_occurrence(db: sqlite3.Connection, series: Series) -> Occurrence | None:
    """The occurrence that waits, is being worked on, or is paused. What carries a broken-off one on is none."""
    if series.direction is Direction.IN:
        statement = (
            "SELECT id, slot, status, process_after AS due FROM messages_in WHERE series_id=? AND slot IS NOT NULL "
            "AND kind <> 'system' AND status IN ('pending', 'processing', 'paused') ORDER BY slot"
        )
    else:
        statement = (
            "SELECT id, slot, state AS status, deliver_after AS due FROM deliveries WHERE series_id=? "
            "AND slot IS NOT NULL AND state IN ('queued', 'sending', 'unknown') ORDER BY slot"
        )
    row = db.execute(statement, (series.id,)).fetchone()
    return None if row is None else Occurrence(row["id"], row["slot"], row["status"], row["due"])


# -- occurrences


def occurrence_id(series: Series, slot: str) -> str:
    """The id of the occurrence of a slot: inserting it twice is inserting it once."""
    return derived_id(f"{series.id} {slot}", "occurrence")


def place(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, slot: datetime, taken: TakeOver) -> None:
    """Writes the occurrence of a slot. One that was called off before it began is taken up again."""
    text = to_text(slot)
    if series.direction is Direction.IN:
        _place_in(mailbox, db, series, text)
        taken.written_in = taken.written_in or slot <= mailbox.now()
    else:
        _place_out(mailbox, db, series, text, taken)


def content_of(series: Series) -> str:
    """What an occurrence carries; a beat also what was decided of it, which the runner holds to."""
    if not isinstance(series.schedule, Every) or not series.is_heartbeat:
        return series.content
    decided = {
        "every_seconds": series.schedule.seconds,
        "hours": None if series.hours is None else [series.hours.first, series.hours.end],
        "zone": series.zone,
        "per_day": series.per_day,
    }
    return json.dumps({**json.loads(series.content), "heartbeat": decided}, ensure_ascii=False)


def row_for(series: Series, row_id: str, slot: str | None, now: str) -> MessageIn:
    """A row of messages_in that has the agent do a task: at `slot`, or at once and beside its schedule."""
    return MessageIn(
        row_id, series.kind, slot or now, content_of(series), None if series.quiet else series.address,
        process_after=slot, recurrence=None if isinstance(series.schedule, At) else str(series.schedule),
        series_id=series.id, slot=slot, principal=series.principal,
    )  # fmt: skip


def _place_in(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, slot: str) -> None:
    row = row_for(series, occurrence_id(series, slot), slot, mailbox.stamp())
    if not mailbox.insert(db, [row]):
        rewrite(db, row)
        db.execute(
            "UPDATE messages_in SET status='pending', status_changed=?, process_after=? "
            "WHERE id=? AND status IN ('paused', 'cancelled')",
            (mailbox.stamp(), slot, row.id),
        )


def rewrite(db: sqlite3.Connection, row: MessageIn) -> None:
    """Gives an occurrence that has not begun the words and the address of `row`."""
    address = row.address
    db.execute(
        "UPDATE messages_in SET content=?, recurrence=?, channel_type=?, account_id=?, platform_id=?, thread_id=? "
        "WHERE id=? AND status IN ('pending', 'paused', 'cancelled')",
        (
            row.content, row.recurrence, address and address.channel_type, address and address.account_id,
            address and address.platform_id, address and address.thread_id, row.id,
        ),
    )  # fmt: skip


def _place_out(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, slot: str, taken: TakeOver) -> None:
    recurs = None if isinstance(series.schedule, At) else str(series.schedule)
    row_id = occurrence_id(series, slot)
    row = MessageOut(row_id, 0, None, None, slot, series.kind, series.content, series.address, slot, recurs)
    known = db.execute("SELECT state FROM deliveries WHERE id=?", (row_id,)).fetchone()
    if known is None:
        mailbox.insert_delivery(db, row, DeliveryState.QUEUED, None, series_id=series.id, slot=slot)
    elif known["state"] == DeliveryState.CANCELLED:
        db.execute("UPDATE deliveries SET state='queued', content=? WHERE id=?", (row.content, row_id))
    else:
        return
    assert row.address is not None
    taken.items.append(Item(row_id, row.address, row.kind, row.content, mailbox.key, due=slot))


def begin(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, first: datetime, taken: TakeOver) -> None:
    """A new task with its first occurrence."""
    store(db, series)
    place(mailbox, db, series, first, taken)


def first_slot(series: Series, start: datetime) -> datetime | None:
    """The first slot from `start` on."""
    if isinstance(series.schedule, At):
        return series.schedule.moment
    return next_slot(series.schedule, start - timedelta(milliseconds=1), series.hours)


# -- what follows


def finished(
    mailbox: "Mailbox", db: sqlite3.Connection, row: MessageIn, outcome: InStatus | None, reason: str, taken: TakeOver
) -> None:
    """A row of a task is done with; None where it goes on as another row. The next occurrence is written here."""
    series = get(db, row.series_id) if row.series_id is not None else None
    if series is None:
        return
    if outcome is not None:
        counted = row.slot is not None
        series = _count(mailbox, db, series, outcome, reason, row.id, taken, counted=counted)
    if row.slot is not None and series.state == State.ACTIVE:
        _advance(mailbox, db, series, row.slot, taken)


def judged(mailbox: "Mailbox", db: sqlite3.Connection, turn: Interrupted, verdict: Verdict, taken: TakeOver) -> None:
    """`finished` for the rows of a turn that broke off."""
    outcomes = {InStatus.FAILED: InStatus.FAILED, InStatus.COMPLETED: None}  # what is completed here is carried on
    changes = {update.message_id: update.status for update in verdict.updates}
    for row in turn.rows:
        if row.series_id is not None and changes[row.id] in outcomes:
            finished(mailbox, db, row, outcomes[changes[row.id]], turn.reason, taken)


def delivered(mailbox: "Mailbox", db: sqlite3.Connection, item_id: str, state: DeliveryState, taken: TakeOver) -> None:
    """The same for an occurrence that went out, or never will."""
    row = db.execute("SELECT series_id, slot, last_error FROM deliveries WHERE id=?", (item_id,)).fetchone()
    series = get(db, row["series_id"]) if row is not None and row["series_id"] is not None else None
    if series is None:
        return
    outcome = InStatus.COMPLETED if state == DeliveryState.SENT else InStatus.FAILED
    counted = row["slot"] is not None
    series = _count(mailbox, db, series, outcome, row["last_error"] or "", item_id, taken, counted=counted)
    if counted and series.state == State.ACTIVE:
        _advance(mailbox, db, series, row["slot"], taken)


def _count(
    mailbox: "Mailbox", db: sqlite3.Connection, series: Series, outcome: InStatus, reason: str, row_id: str,
    taken: TakeOver, *, counted: bool,
) -> Series:  # fmt: skip
    """Notes how a run ended; MAX_FAILURES in a row pause the task, with one notice."""
    failed = outcome == InStatus.FAILED
    failures = series.failures + 1 if failed else 0
    if not counted and failed:
        failures = series.failures
    state = series.state
    if state == State.ACTIVE and series.recurs and failures >= MAX_FAILURES:
        state = State.PAUSED
    reason = printable(reason)[:_SHOWN_REASON]
    series = replace(
        series, failures=failures, state=state, last_run=mailbox.stamp(), last_status=outcome.value,
        last_error=reason if failed else None,
    )  # fmt: skip
    store(db, series)
    log.log(
        logging.WARNING if failed else logging.INFO, "a task was run", session=mailbox.key.session_id,
        task=series.id, row=row_id, status=outcome.value, failures=failures, reason=series.last_error,
    )  # fmt: skip
    if failed and (state == State.PAUSED or not series.recurs):
        _tell(mailbox, db, series, row_id, taken)
    return series


def _tell(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, row_id: str, taken: TakeOver) -> None:
    if series.state == State.PAUSED:
        often = f"failed {series.failures} times in a row and is" if series.failures else "is"
        text = (
            f"The task “{series.name}” {often} paused. The last time: {series.last_error or 'no reason was given.'} "
            f"Run `host tasks resume {series.id}` when it may go on."
        )
    else:
        text = f"The task “{series.name}” failed: {series.last_error or 'no reason was given.'}"
    if series.address is not None:
        notice = mailbox.put_notice(db, series.address, row_id, f"task {series.id}", text)
        taken.items += [notice] if notice is not None else []


def _advance(
    mailbox: "Mailbox", db: sqlite3.Connection, series: Series, slot: str, taken: TakeOver, missed: str | None = None
) -> None:
    """Writes what follows a slot, unless something of the task is open already (an old occurrence was tried again).
    `missed`: the first slot that was left out before this."""
    if open_occurrence(db, series) is not None:
        return
    now = mailbox.now()
    try:
        then = following(series.schedule, from_text(slot), now, series.missed, series.hours)
        following_slot = _within_the_day(db, series, then.slot)
    except ValueError as error:  # what was read when it was made is read no more: its zone is gone, say
        series = replace(series, state=State.PAUSED, last_error=f"Its next time cannot be reckoned: {error}")
        store(db, series)
        _tell(mailbox, db, series, occurrence_id(series, slot), taken)
        return
    if (missed := missed or canonical(then.missed_from)) is not None:
        series = replace(series, missed_from=missed, missed_until=to_text(now))
        store(db, series)
    if following_slot is not None:
        place(mailbox, db, series, following_slot, taken)
    elif series.remove_when_done:
        forget(db, series.id)
    else:
        store(db, replace(series, state=State.DONE))


def _within_the_day(db: sqlite3.Connection, series: Series, slot: datetime | None) -> datetime | None:
    """The slot, or where the task has had its share of that day, the first of the next day."""
    if slot is None or series.per_day is None or series.is_heartbeat:  # most beats cost nothing: the runner counts
        return slot
    midnight = slot.astimezone(zone_of(series.zone)).replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow = midnight + timedelta(days=1)
    had = db.execute(
        "SELECT count(*) FROM messages_in WHERE series_id=? AND slot >= ? AND slot < ? AND status='completed'",
        (series.id, to_text(midnight), to_text(tomorrow)),
    ).fetchone()[0]
    return slot if had < series.per_day else first_slot(series, tomorrow)


# -- after a time without a host


def mend(mailbox: "Mailbox", taken: TakeOver) -> None:
    """At the start, and when the machine has slept: leaves out what was missed under the policy `skip`, and gives an
    active task without an open occurrence its next one (a mailbox from a copy). Reads, and writes only where needed."""
    wanting = [series for series in every(mailbox.db, "state='active'") if _wants_mending(mailbox, series)]
    if not wanting:
        return

    def work(db: sqlite3.Connection) -> None:
        for series in wanting:
            _mend(mailbox, db, series, taken)

    mailbox.write(work)


def _wants_mending(mailbox: "Mailbox", series: Series) -> bool:
    waits = open_occurrence(mailbox.db, series)
    return waits is None or _was_missed(mailbox, series, waits)


def _was_missed(mailbox: "Mailbox", series: Series, waits: Occurrence) -> bool:
    untouched = waits.status in {InStatus.PENDING, DeliveryState.QUEUED} and waits.due == waits.slot
    return series.missed is Missed.SKIP and untouched and from_text(waits.slot) + LATE < mailbox.now()


def _mend(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, taken: TakeOver) -> None:
    waits = open_occurrence(db, series)
    if waits is not None:
        call_off(mailbox, db, series, waits)
        log.info("an occurrence was missed and is left out", session=mailbox.key.session_id, task=series.id)
        _advance(mailbox, db, series, waits.slot, taken, missed=waits.slot)
        return
    table = "messages_in" if series.direction is Direction.IN else "deliveries"
    last = db.execute(f"SELECT max(slot) FROM {table} WHERE series_id=?", (series.id,)).fetchone()[0]  # noqa: S608  our words
    if last is not None:
        _advance(mailbox, db, series, last, taken)
    elif (first := first_slot(series, from_text(series.created))) is not None:
        place(mailbox, db, series, first, taken)


def call_off(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, waits: Occurrence) -> bool:
    """Cancels an occurrence that has not begun; False where it has."""
    if series.direction is Direction.IN:
        statement = "UPDATE messages_in SET status='cancelled', status_changed=? WHERE id=? AND status<>'processing'"
    else:
        statement = "UPDATE deliveries SET state='cancelled', state_changed=? WHERE id=? AND state='queued'"
    return db.execute(statement, (mailbox.stamp(), waits.id)).rowcount > 0


def when(series: Series, waits: Occurrence | None) -> str | None:
    """When it is next, as a person or an agent reads it."""
    if waits is None:
        return None
    try:
        return shown(from_text(waits.slot), series.zone)
    except ScheduleRefused:  # a zone that is no more: the list is shown all the same
        return shown(from_text(waits.slot), "UTC")
