"""Conversations: begun anew, worked on once more, read, and taken along. The host decides what may be done."""

from typing import Annotated

from agent_runner.tools.registry import ToolContext, asked, tool


@tool()
async def reset_session(
    context: ToolContext, session_id: Annotated[str, "Another session of yours; empty for this one."] = ""
) -> str:
    """Begins a conversation anew. Tasks and what waits go along; what was said is no longer remembered."""
    return await asked(context, "reset_session", session_id=session_id)


@tool()
async def replay_session(
    context: ToolContext,
    session_id: Annotated[str, "Another session of yours; empty for this one."] = "",
    last: Annotated[int, "Only the last so many messages; 0 for all."] = 0,
) -> str:
    """Has old messages worked on once more, in order. What was answered to them stays."""
    return await asked(context, "replay_session", session_id=session_id, last=last)


@tool()
async def read_session(
    context: ToolContext,
    session_id: Annotated[str, "The session to read; empty for a list of your sessions."] = "",
    since: Annotated[str, "Only what came since then, ISO 8601."] = "",
) -> str:
    """What was said in another of your conversations, or which ones there are."""
    return await asked(context, "read_session", session_id=session_id, since=since)


@tool()
async def copy_context(context: ToolContext, session_id: Annotated[str, "The session to take it from."]) -> str:
    """Brings what was said in another of your conversations into this one, as something to know."""
    return await asked(context, "copy_context", session_id=session_id)
