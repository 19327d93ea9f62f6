"""Who may write to whom among agents: the owner's grants, given and taken by a command, in force at once.

The decision itself is made over the table (host.agent_mail). What an agent sees of it is a copy in its sessions'
mailboxes, the table `destinations`: by it a tool knows names, and no right comes from it.
"""

import asyncio
import sqlite3
from collections.abc import Sequence

import structlog
from sqlalchemy import Connection

from host.control import Call, ControlServer
from host.db import agent_destinations, agent_groups, sessions
from host.db.agent_destinations import Destination
from host.db.engine import CentralDatabase
from host.failure import Code, Failure
from host.items import InboundHeld, SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from mailboxes.clock import to_text

_AGENT_GROUP = "agent_group"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class AgentGrants:
    """Keeps every agent's destinations in memory for the mailboxes; `load` comes first."""

    def __init__(self, database: CentralDatabase, pool: MailboxPool) -> None:
        self._database = database
        self._pool = pool
        self._known: dict[str, tuple[Destination, ...]] = {}
        self._changing = asyncio.Lock()

    async def load(self) -> None:
        """Reads them all."""

        def read(connection: Connection) -> dict[str, tuple[Destination, ...]]:
            groups = agent_groups.every(connection)
            return {group.id: tuple(agent_destinations.of_agent(connection, group.id)) for group in groups}

        self._known = await self._database.run(read)

    def of(self, agent_group_id: str) -> Sequence[Destination]:
        """What an agent may write to besides its chats, by name. Any thread may ask."""
        return self._known.get(agent_group_id, ())

    def register(self, server: ControlServer) -> None:
        """Adds ``agents.connect {agent, other, name?}`` and ``agents.disconnect {agent, other}``, both by ids; each
        answers with ``{agent, other, name, connected}``."""
        server.register("agents.connect", self._connect)
        server.register("agents.disconnect", self._disconnect)

    async def _connect(self, call: Call) -> object:
        agent, other, name = call.text("agent"), call.text("other"), call.text("name", "")

        def grant(connection: Connection) -> str:
            one, two = agent_groups.get(connection, agent), agent_groups.get(connection, other)
            if one is None or two is None:
                raise Failure(Code.NOT_FOUND, "There is no such agent.", "See `host agents list`.")
            known = agent_destinations.of_agent(connection, agent)
            shown = name or next((d.name for d in known if d.target_id == other), "") or two.folder
            if any(d.name == shown and d.target_id != other for d in known):
                raise Failure(
                    Code.USAGE, f"{one.name} calls somebody else {shown!r} already.", "Give another name with --name."
                )
            _forget(connection, agent, other)
            now = to_text(self._database.clock.now())
            agent_destinations.allow(connection, Destination(agent, shown, _AGENT_GROUP, other, now))
            return shown

        async with self._changing:
            shown = await self._database.run(grant)
            await self._changed(agent)
        log.info("an agent may write to another", agent_group=agent, other=other, actor=call.actor.name)
        return {"agent": agent, "other": other, "name": shown, "connected": True}

    async def _disconnect(self, call: Call) -> object:
        agent, other = call.text("agent"), call.text("other")
        async with self._changing:
            names = await self._database.run(lambda connection: _forget(connection, agent, other))
            if not names:
                raise Failure(
                    Code.NOT_FOUND, "That agent may not write to the other one anyway.", "See `host agents show AGENT`."
                )
            await self._changed(agent)
        log.info("an agent may not write to another any more", agent_group=agent, other=other, actor=call.actor.name)
        return {"agent": agent, "other": other, "name": names[0], "connected": False}

    async def _changed(self, agent: str) -> None:
        """Shows the agent's open sessions what it may do now."""
        self._known[agent] = tuple(
            await self._database.run(lambda connection: agent_destinations.of_agent(connection, agent))
        )
        every = await self._database.run(sessions.active)
        for key in [SessionRef(agent, one.id) for one in every if one.agent_group_id == agent]:
            try:
                await self._pool.call(key, self._show)
            except (InboundHeld, OSError, sqlite3.Error) as error:
                # It is shown with the session's next message; what counts is the table of the database.
                log.warning("a session does not see its new grants yet", session=key.session_id, reason=str(error))

    def _show(self, mailbox: Mailbox) -> None:
        if mailbox.exists():
            mailbox.show_destinations(self.of(mailbox.key.agent_group_id))


def _forget(connection: Connection, agent: str, other: str) -> list[str]:
    """Takes back every name that an agent has for another; the names."""
    known = agent_destinations.of_agent(connection, agent)
    names = [d.name for d in known if (d.target_type, d.target_id) == (_AGENT_GROUP, other)]
    for name in names:
        agent_destinations.forbid(connection, agent, name)
    return names
