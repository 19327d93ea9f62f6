"""What the control socket serves of tasks."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from host import cron_file
from host.control import Call, ControlServer
from host.cron_file import CronFileRefused
from host.db import agent_groups, messaging_groups, sessions
from host.db.engine import CentralDatabase
from host.failure import Code, Failure
from host.items import SessionRef
from host.series_changes import Listed, NoSuchTask
from host.sessions import TERMINAL_USER
from host.task_desk import TaskDesk
from host.task_rows import Row, task_row
from host.timetable import ScheduleRefused
from mailboxes.rows import Address

T = TypeVar("T")
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TaskMethods:
    """A person's hand on tasks. Whoever may open this home is its owner, so what they schedule is caused by them."""

    def __init__(self, desk: TaskDesk, database: CentralDatabase) -> None:
        self._desk = desk
        self._database = database

    def register(self, server: ControlServer) -> None:
        """Adds every method to the server."""
        verbs: Mapping[str, Callable[[Call], Awaitable[object]]] = {
            "add": self._add,
            "import": self._import,
            "set": self._set,
            "remove": self._verb(self._desk.cancel),
            "pause": self._verb(self._desk.pause),
            "resume": self._verb(self._desk.resume),
            "run": self._run,
        }
        for name, handler in verbs.items():
            server.register(f"tasks.{name}", handler)

    async def _add(self, call: Call) -> object:
        key, address = await self._session(call)
        add = self._desk.add_heartbeat if call.flag("heartbeat") else self._desk.add
        made = await _said(add(key, _fields(call), address=address, principal=TERMINAL_USER))
        _log("task added", call, key, made.series.id)
        return _row(made, key)

    async def _import(self, call: Call) -> object:
        key, address = await self._session(call)
        try:
            jobs = cron_file.jobs_of(call.text("text"))
        except CronFileRefused as refused:
            raise Failure(Code.REFUSED, str(refused), "Nothing was taken in.") from None
        rows = []
        for job in jobs:
            taken = await self._desk.take_in(key, job, address=address, principal=TERMINAL_USER)
            task = None if taken.task is None else _row(taken.task, key)
            rows.append({"job": job.id, "outcome": taken.outcome, "reason": taken.reason, "task": task})
        _log("tasks taken in from a file", call, key, f"{len(jobs)} jobs")
        return rows

    async def _set(self, call: Call) -> object:
        key = _key(call)
        made = await _said(self._desk.update(key, call.text("id"), _fields(call), by_agent=False))
        _log("task changed", call, key, made.series.id)
        return _row(made, key)

    def _verb(self, change: Callable[[SessionRef, str], Awaitable[Listed]]) -> Callable[[Call], Awaitable[object]]:
        async def handler(call: Call) -> object:
            key = _key(call)
            made = await _said(change(key, call.text("id")))
            _log(f"{call.method} was asked for", call, key, made.series.id)
            return _row(made, key)

        return handler

    async def _run(self, call: Call) -> object:
        key = _key(call)
        message_id = await _said(self._desk.run(key, call.text("id")))
        _log("task run beside its schedule", call, key, call.text("id"))
        return {"id": call.text("id"), "message": message_id}

    async def _session(self, call: Call) -> tuple[SessionRef, Address | None]:
        """The session that is named, or the one of the agent that is named which was active last."""
        session_id, agent_id = call.params.get("session"), call.params.get("agent")

        def look(connection: Connection) -> tuple[SessionRef, Address | None]:
            found = [
                s
                for s in sessions.active(connection)
                if session_id == s.id or (not session_id and agent_id == s.agent_group_id)
            ]
            if not found:
                name = next((group.name for group in agent_groups.every(connection) if group.id == agent_id), agent_id)
                raise Failure(
                    Code.NOT_FOUND,
                    f"There is no session {session_id}." if session_id else f"{name} has no session yet.",
                    "A session begins with the first message: host chat",
                )
            session = max(found, key=lambda one: one.last_active or one.created_at)
            chat = session.messaging_group_id and messaging_groups.get(connection, session.messaging_group_id)
            address = chat and Address(chat.channel_type, chat.account_id, chat.platform_id, session.thread_id)
            return SessionRef(session.agent_group_id, session.id), address or None

        return await self._database.run(look)


def _key(call: Call) -> SessionRef:
    return SessionRef(call.text("agent_group_id"), call.text("session"))


def _fields(call: Call) -> Mapping[str, object]:
    said = call.params.get("task")
    if not isinstance(said, dict):
        raise Failure(Code.USAGE, f"{call.method} needs the object 'task'.")
    return said


def _row(task: Listed, key: SessionRef) -> Row:
    return {**task_row(task), "session": key.session_id, "agent_group_id": key.agent_group_id}


async def _said(answer: Awaitable[T]) -> T:
    """Its result; what is refused becomes what a person reads."""
    try:
        return await answer
    except ScheduleRefused as refused:
        raise Failure(Code.REFUSED, str(refused)) from None
    except NoSuchTask as missing:
        raise Failure(Code.NOT_FOUND, str(missing), "See: host tasks list") from None


def _log(event: str, call: Call, key: SessionRef, task: str) -> None:
    log.info(event, task=task, session=key.session_id, actor=call.actor.name)
