"""Saying something before the answer is finished."""

from typing import Annotated

from agent_runner.tools.registry import ToolContext, desk_of, tool
from mailboxes.rows import Kind


@tool(speaks=True)
async def send_message(context: ToolContext, text: Annotated[str, "What to say, in Markdown."]) -> str:
    """Sends a message to the chat at once, while you go on working. Your final text is sent anyway: do not repeat
    it."""
    return f"Sent as message {await desk_of(context).say(text)}."


@tool(speaks=True)
async def edit_message(
    context: ToolContext,
    message_id: Annotated[int, "The number of a message that you sent."],
    text: Annotated[str, "The whole new text."],
) -> str:
    """Replaces the text of a message that you sent before."""
    await desk_of(context).put(Kind.CHAT_SDK, {"operation": "edit", "messageId": message_id, "text": text})
    return f"Message {message_id} is changed."


@tool(speaks=True)
async def add_reaction(
    context: ToolContext,
    message_id: Annotated[int, "The number of a message."],
    emoji: Annotated[str, "One emoji."],
) -> str:
    """Reacts to a message with an emoji."""
    await desk_of(context).put(Kind.CHAT_SDK, {"operation": "reaction", "messageId": message_id, "emoji": emoji})
    return f"Your reaction to message {message_id} is on its way."
