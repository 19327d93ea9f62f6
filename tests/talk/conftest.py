"""A whole host with one chat on a platform whose abilities a test chooses; the runner is played by the test."""

import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from host.channels.base import Button, Capabilities, InboundEvent, Sender
from host.db import pending_questions
from host.db.pending_questions import Pending
from mailboxes.rows import Address
from tests.fakes.runtime import ScriptedSandbox
from tests.fleet.conftest import fresh_database, hand, machine
from tests.fleet.house import ADA, House, Machine, until

__all__ = ["fresh_database", "hand", "machine"]

HERE = Address("telegram", "bot", "42")
RICH = Capabilities(buttons=True, edit=True, delete=True, reactions=True, typing=True)
COLOURS = [{"label": "Red", "value": "r"}, {"label": "Blue", "value": "b", "selectedLabel": "Blue it is"}]

_numbers = itertools.count()


class Talk:
    """The house and the words for what a person and an agent do in a chat."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.channel = house.channel

    async def ask(self, sandbox: ScriptedSandbox, row_id: str, question: str = "Which?", **content: object) -> None:
        """The agent asks; returns when the question can be answered."""
        self.say_question(sandbox, row_id, question, **content)
        await until(lambda: any(one.message_out_id == row_id for one in self.open()))

    def say_question(self, sandbox: ScriptedSandbox, row_id: str, question: str = "Which?", **content: object) -> None:
        """The agent's runner writes the row."""
        values = {"operation": "ask_question", "title": "Paint", "question": question, "options": COLOURS, **content}
        text = json.dumps(values).replace("'", "''")
        sandbox.write(
            "INSERT INTO messages_out (id, seq, turn_id, timestamp, kind, channel_type, account_id, platform_id, "
            f"content) VALUES ('{row_id}', (SELECT next_seq FROM runner_state), 't-1', '2026-01-01T00:00:00.000Z', "
            f"'chat-sdk', 'telegram', 'bot', '42', '{text}')"
        )
        sandbox.write("UPDATE runner_state SET next_seq = next_seq + 2")
        sandbox.ring()

    async def click(self, data: str, sender: Sender = ADA, chat: str = "42") -> None:
        """Somebody presses a button; returns when what it brought about is written and said."""
        await self.take(InboundEvent(f"click:{next(_numbers)}", Address("telegram", "bot", chat), sender, click=data))

    async def write(self, text: str, sender: Sender = ADA, chat: str = "42", **more: Any) -> None:
        """Somebody writes; the same."""
        event = InboundEvent(f"m:{next(_numbers)}", Address("telegram", "bot", chat), sender, text, **more)
        await self.take(event)

    async def take(self, event: InboundEvent) -> None:
        """An event of the platform."""
        assert self.channel.accept is not None
        await self.channel.accept([event], None)
        await self.house.host.reception.intake.idle()
        await until(lambda: not self.house.host.reception.commands._running)
        await until(lambda: not self.house.host.reception.errands._running)
        await until(lambda: not self.house.host.delivery._lanes)
        await self.house.settle()

    def open(self) -> list[Pending]:
        """The questions that can be answered."""
        return self.house.host.reception.questions.open()

    async def pending(self) -> list[Pending]:
        """The rows of the table."""
        return await self.house.host.database.run(pending_questions.every)

    def buttons(self, row_id: str) -> tuple[Button, ...]:
        """Those of the card of a question."""
        return next(out.buttons for _, out in self.channel.taken if out.delivery_id == row_id and out.last)

    def answers(self) -> list[dict[str, Any]]:
        """The rows that answer questions, in order."""
        found = [json.loads(row["content"]) for row in self.house.rows() if row["kind"] == "system"]
        return [content for content in found if "questionId" in content]

    def heard(self) -> list[str]:
        """What people wrote that reached the agent."""
        return [json.loads(row["content"])["text"] for row in self.house.rows() if row["kind"] == "chat"]


@pytest.fixture
async def talk(machine: Machine) -> AsyncIterator[Talk]:
    """A chat, called 42, on a platform that can do everything; another is called 43."""
    async with machine.host(("42", "43")) as house:
        house.channel.capabilities = RICH
        yield Talk(house)
