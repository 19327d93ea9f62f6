"""What tools may do with the mailbox while a turn runs: say something, and ask the host for something and wait."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from agent_runner.mailbox import Output, TurnFull
from mailboxes.ids import derived_id
from mailboxes.rows import Kind

if TYPE_CHECKING:
    from agent_runner.turn import Turn

ANSWER_SECONDS = 60.0
"""How long a tool waits for the host. An answer that comes later is an ordinary message for the agent."""

_MAX_PAYLOAD = 100_000


class DeskError(Exception):
    """It cannot be done; the text is a sentence for the model."""


Post = Callable[["Turn", Output, Callable[[str], None]], Awaitable[int]]
"""Commits one row of the open turn; its id is told just before. Returns its number."""


class Desk:
    """One session's. The loop says which turn runs, and hands over what tools wait for."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self.turn: Turn | None = None
        self.waiting: dict[str, asyncio.Future[str]] = {}
        """The ids of rows to come, which are no prompt while somebody waits for them here."""

    async def say(self, text: str) -> int:
        """Sends a text to the chat of the running turn. Returns the message's number. Raises DeskError."""
        return await self.put(Kind.CHAT, {"text": text})

    async def put(self, kind: Kind, content: Mapping[str, object]) -> int:
        """Sends one row to the chat of the running turn. Returns its number. Raises DeskError."""
        turn = self._turn()
        if turn.address is None:
            raise DeskError("these messages come from no chat: there is nobody to send to")
        text = content.get("text")
        key = ("text",) if isinstance(text, str) else ()
        output = Output(kind, dict(content), turn.address, turn.in_reply_to, key)
        try:
            number = await self._post(turn, output, lambda _row_id: None)
        except TurnFull as full:
            raise DeskError(str(full)) from None
        if isinstance(text, str) and "operation" not in content:
            turn.heard(text)  # only now: what was not sent must not be left out of the answer
        return number

    async def request(self, action: str, payload: Mapping[str, object]) -> object:
        """Has the host do something; its result. Raises DeskError with the host's own sentence."""
        if len(json.dumps(payload)) > _MAX_PAYLOAD:
            raise DeskError(f"that is too much: all arguments together may have {_MAX_PAYLOAD} characters")
        turn = self._turn()
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        expected = ""

        def named(row_id: str) -> None:
            nonlocal expected
            expected = derived_id(row_id, "result")
            self.waiting[expected] = answer

        asked = Output(Kind.SYSTEM, {"action": action, "payload": dict(payload)}, None, turn.in_reply_to, ())
        try:
            await self._post(turn, asked, named)
            async with asyncio.timeout(ANSWER_SECONDS):
                content = json.loads(await answer)
        except TimeoutError:
            raise DeskError(
                f"the host has not answered within {ANSWER_SECONDS:g} seconds; its answer will come as a message"
            ) from None
        finally:
            self.waiting.pop(expected, None)
        if content.get("status") != "success":
            raise DeskError(str(content.get("result")))
        return content.get("result")

    def hand(self, row_id: str, content: str) -> None:
        """Gives a tool the row that it waits for."""
        answer = self.waiting.get(row_id)
        if answer is not None and not answer.done():
            answer.set_result(content)

    def _turn(self) -> "Turn":
        if self.turn is None or self.turn.closed:
            raise DeskError("this turn is over")
        return self.turn
