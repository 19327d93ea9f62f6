"""What is asked of tasks while the host runs, by agents and by people: one transaction of the mailbox each, then
delivery and the sweep are told."""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TypeVar

from host import cron_file, series, series_changes
from host.cron_file import Job, Taken
from host.delivery import Delivery
from host.due import DueIndex
from host.items import SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from host.moving import move_tasks
from host.series import Series
from host.series_changes import Done, Listed, listed
from host.task_draft import changed, new_series
from host.timetable import MIN_SECONDS, ScheduleRefused
from mailboxes.clock import Clock, to_text
from mailboxes.ids import new_id
from mailboxes.rows import HEARTBEAT, Address

T = TypeVar("T")

SOONEST = timedelta(seconds=MIN_SECONDS)
"""An agent's single time is at least so far away: a task that schedules the next one must not spin."""

_BEATS: Mapping[str, object] = {"recurrence": "every 30m", "hours": "9-22", "missed": "skip"}

Change = Callable[[Mailbox, sqlite3.Connection, Series, Done], object]


class TaskDesk:
    """All methods run on the event loop. They raise ScheduleRefused and NoSuchTask, whose texts are sentences."""

    def __init__(
        self,
        pool: MailboxPool,
        delivery: Delivery,
        due: DueIndex,
        clock: Clock,
        zone: Callable[[], str],
        notify: Callable[[SessionRef], None],
    ) -> None:
        self._pool = pool
        self._delivery = delivery
        self._due = due
        self._clock = clock
        self._zone = zone
        self._notify = notify

    async def add(
        self,
        key: SessionRef,
        said: Mapping[str, object],
        *,
        address: Address | None,
        principal: str | None,
        by_agent: bool = False,
        series_id: str | None = None,
        cause: str | None = None,
    ) -> Listed:
        """A new task (host.task_draft.FIELDS). `cause`: the id of what asked for it, so that asking twice is asking
        once."""
        task_id = series_id or (f"task-{cause}" if cause else new_id("task"))
        zone, now, soonest = self._zone(), self._clock.now(), SOONEST if by_agent else timedelta(0)
        made, start = await asyncio.to_thread(  # the first expression imports what reads it
            new_series,
            said,
            series_id=task_id,
            address=address,
            principal=principal,
            zone=zone,
            now=now,
            soonest=soonest,
        )
        return await self._write(
            key, lambda mailbox, db, done: listed(db, series_changes.add(mailbox, db, made, start, done))
        )

    async def add_heartbeat(
        self, key: SessionRef, said: Mapping[str, object], *, address: Address | None, principal: str | None
    ) -> Listed:
        """Has the agent look after what its HEARTBEAT.md names: every half hour from 9 to 22, unless something else is
        said. A session has one."""
        heartbeat_id = f"{HEARTBEAT}{key.session_id}"
        if any(one.series.id == heartbeat_id for one in await self.tasks(key)):
            raise ScheduleRefused("This session has a heartbeat already. Change it: host tasks set heartbeat")
        await self._write(key, lambda _, db, __: series.forget(db, heartbeat_id))  # of an earlier one that was removed
        full = {**_BEATS, **said, "prompt": "HEARTBEAT.md", "name": "heartbeat"}
        return await self.add(key, full, address=address, principal=principal, series_id=heartbeat_id)

    async def take_in(self, key: SessionRef, job: Job, *, address: Address | None, principal: str | None) -> Taken:
        """A job of a CRON.json becomes a task; one that was taken in before is brought up to what the file says."""
        zone = self._zone()

        def work(mailbox: Mailbox, db: sqlite3.Connection, done: Done) -> Taken:
            return cron_file.take_in(mailbox, db, job, address, principal, zone, done)

        return await self._write(key, work)

    async def origin(self, key: SessionRef, in_reply_to: str | None) -> tuple[Address | None, str | None]:
        """Where the answer to a message goes, and who caused it; without one, of the last message that came in."""

        def look(mailbox: Mailbox) -> tuple[Address | None, str | None]:
            last = "(SELECT max(seq) FROM messages_in WHERE platform_id IS NOT NULL)"
            found = mailbox.rows("id=?", [in_reply_to or ""]) or mailbox.rows(f"seq={last}")
            if not found:
                return None, None
            row = found[0]
            of_task = series.get(mailbox.db, row.series_id) if row.series_id is not None else None
            return row.address or (of_task.address if of_task is not None else None), row.principal

        return await self._pool.call(key, look)

    async def tasks(self, key: SessionRef) -> list[Listed]:
        """The live tasks of a session."""
        return await self._pool.call(key, lambda mailbox: [listed(mailbox.db, one) for one in series.every(mailbox.db)])

    async def update(self, key: SessionRef, task_id: str, said: Mapping[str, object], *, by_agent: bool) -> Listed:
        """Changes what is said of a task; the rest stays."""
        soonest = SOONEST if by_agent else timedelta(0)

        def work(mailbox: Mailbox, db: sqlite3.Connection, done: Done) -> Listed:
            before = series_changes.wanted(db, task_id, by_agent=by_agent)
            after, start = changed(before, said, now=mailbox.now(), soonest=soonest)
            return listed(db, series_changes.change(mailbox, db, before, after, start, done))

        return await self._write(key, work)

    async def cancel(self, key: SessionRef, task_id: str, *, by_agent: bool = False) -> Listed:
        """Ends a task; what runs now runs to its end."""
        return await self._change(key, task_id, series_changes.cancel, by_agent=by_agent)

    async def pause(self, key: SessionRef, task_id: str, *, by_agent: bool = False) -> Listed:
        """Holds a task."""
        return await self._change(key, task_id, series_changes.pause, by_agent=by_agent)

    async def resume(self, key: SessionRef, task_id: str, *, by_agent: bool = False) -> Listed:
        """Lets a paused task go on."""
        return await self._change(key, task_id, series_changes.resume, by_agent=by_agent)

    async def run(self, key: SessionRef, task_id: str) -> str:
        """Runs a task once more, now; its schedule stays. Returns the id of the message."""
        return await self._write(
            key,
            lambda mailbox, db, done: series_changes.run_now(mailbox, db, series_changes.wanted(db, task_id), done),
        )

    async def move(self, source: SessionRef, target: SessionRef) -> None:
        """Takes all that waits in one session over into another of its agent (host.moving)."""
        if not await move_tasks(self._pool, self._delivery, source, target):
            return
        for key in (source, target):
            due = await self._pool.call(key, Mailbox.next_due)
            self._due.set(key, due)
        if due is not None and due <= to_text(self._clock.now()):
            self._notify(target)

    async def _change(self, key: SessionRef, task_id: str, change: Change, *, by_agent: bool) -> Listed:
        def work(mailbox: Mailbox, db: sqlite3.Connection, done: Done) -> Listed:
            wanted = series_changes.wanted(db, task_id, by_agent=by_agent)
            change(mailbox, db, wanted, done)
            return listed(db, series.get(db, wanted.id) or wanted)

        return await self._write(key, work)

    async def _write(self, key: SessionRef, work: Callable[[Mailbox, sqlite3.Connection, Done], T]) -> T:
        def write(mailbox: Mailbox) -> tuple[T, Done, str | None]:
            answers: list[tuple[T, Done]] = []

            def attempt(db: sqlite3.Connection) -> None:
                done = Done()
                answers.append((work(mailbox, db, done), done))

            mailbox.write(attempt)
            return *answers[-1], mailbox.next_due()

        answer, done, due = await self._pool.call(key, write)
        self._delivery.withdraw(done.withdrawn)
        self._delivery.add(done.taken.items)
        self._due.set(key, due)
        if due is not None and due <= to_text(self._clock.now()):
            self._notify(key)  # else nobody is woken: the sweep knows when
        return answer
