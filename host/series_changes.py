"""What may be asked of a task: to begin, change, pause, go on, end, run now. Inside `Mailbox.write`."""

import sqlite3
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from host.items import Item, TakeOver
from host.outbound_series import MAX_SERIES, TOO_MANY
from host.series import (
    Direction,
    Occurrence,
    Series,
    State,
    begin,
    call_off,
    content_of,
    every,
    find,
    first_slot,
    get,
    open_occurrence,
    place,
    rewrite,
    row_for,
    store,
    when,
)
from host.timetable import Every, ScheduleRefused
from mailboxes.clock import from_text
from mailboxes.ids import new_id
from mailboxes.rows import DeliveryState, InStatus, MessageOut

if TYPE_CHECKING:
    from host.mailbox import Mailbox


A_MOMENT = timedelta(milliseconds=1)
"""From now on, but not now."""

_NO_TIME = "This schedule has no time to come."
_OWNERS = "The heartbeat is your owner's decision. Ask them: `host tasks set heartbeat`."


class NoSuchTask(LookupError):
    """There is no such task; the text is a sentence."""


@dataclass(slots=True)
class Done:
    """What a change brought about beside the record: what to deliver, and what to deliver no more."""

    taken: TakeOver = field(default_factory=TakeOver)
    withdrawn: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Listed:
    """A task as it is shown: `slot` is its next time, canonical, None where none waits; `next` the same in its zone."""

    series: Series
    slot: str | None
    next: str | None
    running: bool


def listed(db: sqlite3.Connection, series: Series) -> Listed:
    """A task with its next time."""
    waits = open_occurrence(db, series)
    running = waits is not None and waits.status == InStatus.PROCESSING
    return Listed(series, None if waits is None else waits.slot, when(series, waits), running)


def wanted(db: sqlite3.Connection, task_id: str, *, by_agent: bool = False) -> Series:
    """The live task of this id (its own or an occurrence's). Raises NoSuchTask, and ScheduleRefused for what is not
    the agent's to change."""
    series = find(db, task_id)
    if series is None or series.state not in {State.ACTIVE, State.PAUSED}:
        ended = "" if series is None else f" It is {series.state}."
        raise NoSuchTask(f"There is no task {task_id[:64]!r} in this session.{ended}")
    if by_agent and series.is_heartbeat:
        raise ScheduleRefused(_OWNERS)
    return series


def add(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, start: datetime, done: Done) -> Series:
    """A new task, whose times are looked for from `start` on. One whose id is known is left as it is. Raises
    ScheduleRefused."""
    known = get(db, series.id)
    if known is not None:
        return known
    _check_beat(series)
    if len(every(db)) >= MAX_SERIES:
        raise ScheduleRefused(TOO_MANY)
    first = first_slot(series, start)
    if first is None:
        raise ScheduleRefused(_NO_TIME)
    begin(mailbox, db, series, first, done.taken)
    return series


def _check_beat(series: Series) -> None:
    if series.is_heartbeat and not isinstance(series.schedule, Every):
        raise ScheduleRefused("A heartbeat comes at intervals, such as every 30m.")


def change(
    mailbox: "Mailbox", db: sqlite3.Connection, before: Series, after: Series, start: datetime, done: Done
) -> Series:
    """Replaces what a task is. A changed schedule moves the next time at once, to the first from `start` on; what runs
    now runs to its end. Raises ScheduleRefused."""
    _check_beat(after)
    store(db, after)
    moved = (before.schedule, before.hours, before.zone) != (after.schedule, after.hours, after.zone)
    waits = open_occurrence(db, before)
    if waits is not None and waits.status == InStatus.PROCESSING:
        return after
    if after.state == State.PAUSED:
        if moved and waits is not None:
            call_off(mailbox, db, after, waits)  # its time is that of the old schedule
    elif moved or waits is None:
        _set_next(mailbox, db, after, waits, start, done)
    elif (content_of(before), before.quiet) != (content_of(after), after.quiet):
        _rewrite(mailbox, db, after, waits, done)
    return after


def _set_next(
    mailbox: "Mailbox", db: sqlite3.Connection, series: Series, waits: Occurrence | None, start: datetime, done: Done
) -> None:
    """Puts the first time from `start` on in the place of what waits."""
    if waits is not None and not _withdraw(mailbox, db, series, waits, done):
        return
    slot = first_slot(series, start)
    if slot is None:
        raise ScheduleRefused(_NO_TIME)
    place(mailbox, db, series, slot, done.taken)


def _withdraw(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, waits: Occurrence, done: Done) -> bool:
    done.withdrawn.append(waits.id)
    return call_off(mailbox, db, series, waits)


def _rewrite(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, waits: Occurrence, done: Done) -> None:
    if series.direction is Direction.IN:
        rewrite(db, row_for(series, waits.id, waits.slot, mailbox.stamp()))
    elif _withdraw(mailbox, db, series, waits, done):
        place(mailbox, db, series, from_text(waits.slot), done.taken)


def cancel(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, done: Done) -> Series:
    """Ends a task. What runs now runs to its end, and nothing follows it."""
    waits = open_occurrence(db, series)
    if waits is not None:
        _withdraw(mailbox, db, series, waits, done)
    ended = replace(series, state=State.CANCELLED)
    store(db, ended)
    return ended


def pause(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, done: Done) -> Series:
    """Holds a task until `resume`."""
    waits = open_occurrence(db, series)
    if waits is not None and series.direction is Direction.OUT:
        _withdraw(mailbox, db, series, waits, done)
    elif waits is not None:
        db.execute(
            "UPDATE messages_in SET status='paused', status_changed=? WHERE id=? AND status='pending'",
            (mailbox.stamp(), waits.id),
        )
    paused = replace(series, state=State.PAUSED)
    store(db, paused)
    return paused


def resume(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, done: Done) -> Series:
    """Lets a paused task go on, at its next time from now on; one that was to run once, and is late, runs now."""
    active = replace(series, state=State.ACTIVE, failures=0)
    store(db, active)
    waits = open_occurrence(db, series)
    if waits is not None and waits.status == InStatus.PROCESSING:
        return active
    if waits is not None and from_text(waits.slot) > mailbox.now():
        place(mailbox, db, active, from_text(waits.slot), done.taken)
    else:
        _set_next(mailbox, db, active, waits, mailbox.now() + A_MOMENT, done)
    return active


def run_now(mailbox: "Mailbox", db: sqlite3.Connection, series: Series, done: Done) -> str:
    """Runs a task once more, at once and beside its schedule, which stays. Returns the id of the row."""
    if series.direction is Direction.IN:
        row = row_for(series, new_id("m"), None, mailbox.stamp())
        mailbox.insert(db, [row])
        done.taken.written_in = True
        return row.id
    assert series.address is not None
    out = MessageOut(new_id("m"), 0, None, None, mailbox.stamp(), series.kind, series.content, series.address)
    mailbox.insert_delivery(db, out, DeliveryState.QUEUED, None, series_id=series.id)
    done.taken.items.append(Item(out.id, series.address, out.kind, out.content, mailbox.key))
    return out.id
