"""Tasks: what the agent wants to do, or to say, at a time. The host keeps them, and checks what is asked."""

from typing import Annotated

from agent_runner.tools.registry import ToolContext, asked, tool


@tool()
async def schedule_task(
    context: ToolContext,
    prompt: Annotated[str, "What you are to do then, as a message to yourself. Leave it empty for a message."] = "",
    message: Annotated[str, "A text that is sent to this chat then, without waking you."] = "",
    process_after: Annotated[str, "The first time, ISO 8601, in `zone` unless it has an offset."] = "",
    recurrence: Annotated[str, "Cron with five fields, or `every 30m` (s, m, h, d)."] = "",
    zone: Annotated[str, "An IANA time zone; the installation's by default."] = "",
    name: Annotated[str, "A short name for lists."] = "",
) -> str:
    """Makes a task for this conversation: once (process_after), again and again (recurrence), or both. Returns its id
    and when it comes next."""
    return await asked(
        context, "schedule_task", prompt=prompt, message=message, process_after=process_after, recurrence=recurrence,
        zone=zone, name=name,
    )  # fmt: skip


@tool()
async def list_tasks(context: ToolContext) -> str:
    """The tasks of this conversation that are still to come, with their ids."""
    return await asked(context, "list_tasks")


@tool()
async def update_task(
    context: ToolContext,
    task_id: Annotated[str, "The task's id."],
    prompt: Annotated[str, "A new prompt."] = "",
    process_after: Annotated[str, "A new next time, ISO 8601."] = "",
    recurrence: Annotated[str, "A new cron expression or interval."] = "",
    zone: Annotated[str, "A new time zone."] = "",
) -> str:
    """Changes a task. A changed time counts at once."""
    return await asked(
        context, "update_task", task_id=task_id, prompt=prompt, process_after=process_after, recurrence=recurrence,
        zone=zone,
    )  # fmt: skip


@tool()
async def cancel_task(context: ToolContext, task_id: Annotated[str, "The task's id."]) -> str:
    """Ends a task for good."""
    return await asked(context, "cancel_task", task_id=task_id)


@tool()
async def pause_task(context: ToolContext, task_id: Annotated[str, "The task's id."]) -> str:
    """Holds a task until it is resumed."""
    return await asked(context, "pause_task", task_id=task_id)


@tool()
async def resume_task(context: ToolContext, task_id: Annotated[str, "The task's id."]) -> str:
    """Lets a paused task go on at its next time."""
    return await asked(context, "resume_task", task_id=task_id)
