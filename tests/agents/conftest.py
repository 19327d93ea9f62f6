"""Two agents of a whole host, each with a person's chat; their runners are played by the test."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from host.db import agent_destinations, sessions
from host.db.agent_destinations import Destination
from host.items import SessionRef
from mailboxes.clock import to_text
from tests.fakes.runtime import ScriptedSandbox
from tests.fleet.conftest import fresh_database, hand, machine
from tests.fleet.house import House, Machine, until
from tests.mailbox.made import table

__all__ = ["fresh_database", "hand", "machine"]

A, B = "a/1", "b/1"


class Village:
    """The house and the words for agents that talk to each other. A session goes by the name of its chat."""

    def __init__(self, house: House) -> None:
        self.house = house

    def agent(self, name: str) -> str:
        return self.house.keys[name].agent_group_id

    async def grant(self, one: str = A, other: str = B) -> None:
        now = to_text(self.house.clock.now())
        granted = Destination(self.agent(one), other, "agent_group", self.agent(other), now)
        await self.house.host.database.run(lambda c: agent_destinations.allow(c, granted))

    async def say(
        self, sandbox: ScriptedSandbox, row_id: str, to: str, *, thread: str | None = None,
        in_reply_to: str | None = None, turn: str = "t-1", **content: object,
    ) -> None:  # fmt: skip
        """A tool of the open turn sends a row to another agent, and the host has taken it over."""
        values = [row_id, turn, in_reply_to, to_text(self.house.clock.now()), "chat", "agent", "", to, thread]
        content = {"text": "hello"} | content
        shown = ", ".join("NULL" if value is None else f"'{value}'" for value in [*values, json.dumps(content)])
        sandbox.write("UPDATE runner_state SET next_seq = next_seq + 2")
        sandbox.write(
            "INSERT INTO messages_out (seq, id, turn_id, in_reply_to, timestamp, kind, channel_type, account_id, "
            f"platform_id, thread_id, content) SELECT next_seq - 2, {shown} FROM runner_state"
        )

    async def settled(self, name: str, row_id: str) -> str:
        """How a delivery of a session has ended."""
        await until(lambda: any(row["id"] == row_id and row["state"] in ("sent", "failed") for row in self.out(name)))
        return str(next(row["state"] for row in self.out(name) if row["id"] == row_id))

    def out(self, name: str) -> list[dict[str, Any]]:
        return table(self.house.folder(name), "deliveries")

    def heard(self, name: str) -> list[dict[str, Any]]:
        """The contents of the rows that came from agents, with their columns."""
        rows = [{**row, **json.loads(row["content"])} for row in self.house.rows(chat=name)]
        return [row for row in rows if "hops" in row]

    def told(self, name: str) -> list[dict[str, Any]]:
        """The system rows of a session."""
        rows = [json.loads(row["content"]) for row in self.house.rows(chat=name) if row["kind"] == "system"]
        return [row for row in rows if "hops" not in row]

    async def find(self, name: str, agent: str = B, sender: str = A) -> list[SessionRef]:
        """The sessions that an agent has with another; the first one goes by `name` from now on."""
        key = f"agent:{self.agent(sender)}"
        every = await self.house.host.database.run(sessions.active)
        found = [
            SessionRef(one.agent_group_id, one.id)
            for one in every
            if one.agent_group_id == self.agent(agent) and one.session_key == key
        ]
        if found:
            self.house.keys[name] = found[0]
        return found


@pytest.fixture
async def village(machine: Machine) -> AsyncIterator[Village]:
    async with machine.host(chats=[A, B]) as house:
        await house.host.open_channel(house.host.agent_mail)
        yield Village(house)
        await house.settle()  # whoever was woken last has started
