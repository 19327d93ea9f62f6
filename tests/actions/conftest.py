"""A whole host whose sandboxes are the test: they ask for actions, and the test reads what they are answered."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from host.db import user_roles, users
from host.db.user_roles import Role
from mailboxes.clock import to_text
from mailboxes.ids import derived_id
from tests.fakes.runtime import ScriptedSandbox
from tests.fleet.conftest import fresh_database, hand, machine
from tests.fleet.house import House, Machine, until
from tests.mailbox.made import table

__all__ = ["fresh_database", "hand", "machine"]

OWN, OTHER, FOREIGN = "1", "2", "b/3"
"""Two chats of the agent main, and one of another agent. Ada writes in each of them; a session goes by its chat."""

ADA_USER = "telegram:1"


class Office:
    """The house and the words for actions."""

    def __init__(self, house: House) -> None:
        self.house = house

    async def become(self, role: Role | None, agent: str | None = None) -> None:
        """Ada gets a role: everywhere, or for the agent of a chat."""
        if role is None:
            return
        now, of = to_text(self.house.clock.now()), agent and self.house.keys[agent].agent_group_id
        database = self.house.host.database
        await database.run(lambda c: users.create_user(c, ADA_USER, now) and None)
        await database.run(lambda c: user_roles.grant_role(c, ADA_USER, role, of, now))
        await self.house.host.routing.refresh()

    def write(
        self, sandbox: ScriptedSandbox, row_id: str, action: str, in_reply_to: str | None, **payload: object
    ) -> None:
        """A tool of the open turn asks for an action."""
        content = json.dumps({"action": action, "payload": payload})
        values = [row_id, "t-1", in_reply_to, to_text(self.house.clock.now()), "system", content]
        shown = ", ".join("NULL" if value is None else f"'{value}'" for value in values)
        sandbox.write("UPDATE runner_state SET next_seq = next_seq + 2")
        sandbox.write(
            "INSERT INTO messages_out (seq, id, turn_id, in_reply_to, timestamp, kind, content) "
            f"SELECT next_seq - 2, {shown} FROM runner_state"
        )

    async def ask(self, action: str, row_id: str = "o-1", chat: str = OWN, **payload: object) -> dict[str, Any]:
        """The session that works on a message of Ada's asks; what it is answered."""
        sandbox = await self.house.sandbox(chat)
        [*_, row] = self.house.rows("processing", chat) or [{"id": None}]
        self.write(sandbox, row_id, action, row["id"], **payload)
        return await self.answer(row_id, chat)

    async def answer(self, row_id: str = "o-1", chat: str = OWN) -> dict[str, Any]:
        answer_id = derived_id(row_id, "result")
        await until(lambda: any(row["id"] == answer_id for row in self.house.rows(chat=chat)))
        content: dict[str, Any] = json.loads(self.house.row(answer_id, chat)["content"])
        return content

    def open(self, chat: str = OWN) -> list[str]:
        rows = table(self.house.folder(chat), "deliveries")
        return [row["id"] for row in rows if row["kind"] == "system" and row["state"] == "queued"]


@pytest.fixture
async def office(machine: Machine) -> AsyncIterator[Office]:
    async with machine.host(chats=[OWN, OTHER, FOREIGN]) as house:
        yield Office(house)
        await house.settle()
