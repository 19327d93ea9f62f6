"""What an agent may ask of its tasks: those of its own session, and of no other.

A single time lies at least a minute ahead and an interval is at least as long, a session has at most 50 tasks, and the
heartbeat is the owner's alone. What is refused is a sentence that the agent can act on.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from host.acting import ActionRefused
from host.actions.registry import ActionContext, Payload, Permission, Run, action
from host.items import SessionRef
from host.series_changes import Listed, NoSuchTask
from host.task_desk import TaskDesk
from host.task_rows import Row, for_agent
from host.timetable import ScheduleRefused


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks: the session, the id of the row that asks, and of the message that the row answers."""

    key: SessionRef
    id: str
    in_reply_to: str | None


Handler = Callable[[TaskDesk, Asking, Payload], Awaitable[object]]
"""Returns what the agent is answered. Raises ScheduleRefused and NoSuchTask."""


async def schedule_task(desk: TaskDesk, asking: Asking, payload: Payload) -> Row:
    """A new task (host.task_draft.FIELDS); its results go where the asking message came from. Asking twice with one row
    is asking once."""
    address, principal = await desk.origin(asking.key, asking.in_reply_to)
    made = await desk.add(asking.key, payload, address=address, principal=principal, by_agent=True, cause=asking.id)
    return for_agent(made)


async def list_tasks(desk: TaskDesk, asking: Asking, payload: Payload) -> Row:
    """The live tasks."""
    del payload
    return {"tasks": [for_agent(task) for task in await desk.tasks(asking.key)]}


async def update_task(desk: TaskDesk, asking: Asking, payload: Payload) -> Row:
    """Changes what is named beside `task_id`; a changed time counts at once."""
    said = {name: value for name, value in payload.items() if name != "task_id"}
    return for_agent(await desk.update(asking.key, _task_id(payload), said, by_agent=True))


def _verb(change: Callable[[TaskDesk], Callable[..., Awaitable[Listed]]]) -> Handler:
    async def handler(desk: TaskDesk, asking: Asking, payload: Payload) -> Row:
        return for_agent(await change(desk)(asking.key, _task_id(payload), by_agent=True))

    return handler


def _task_id(payload: Payload) -> str:
    task_id = payload.get("task_id")
    if not isinstance(task_id, str) or not task_id:
        raise ScheduleRefused("Say which task: task_id is the text that list_tasks gives.")
    return task_id


TASK_ACTIONS: Mapping[str, Handler] = {
    "schedule_task": schedule_task,
    "list_tasks": list_tasks,
    "update_task": update_task,
    "cancel_task": _verb(lambda desk: desk.cancel),
    "pause_task": _verb(lambda desk: desk.pause),
    "resume_task": _verb(lambda desk: desk.resume),
}
"""By the name of the action. The id of an occurrence, however old, means its live task."""


def _asked(handler: Handler) -> Run:
    async def run(context: ActionContext, payload: Payload) -> object:
        asking = Asking(context.key, context.id, context.in_reply_to)
        try:
            return await handler(context.services.tasks, asking, payload)
        except (ScheduleRefused, NoSuchTask) as refused:
            raise ActionRefused(str(refused)) from None

    return run


ACTIONS = [action(name, permission=Permission.OWN_SESSION)(_asked(handler)) for name, handler in TASK_ACTIONS.items()]
