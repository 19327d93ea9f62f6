"""What a person decides about a chat, by a command, in force with the next message."""

import structlog

from host.control import Call, ControlServer
from host.db import messaging_group_agents, messaging_groups
from host.db.engine import CentralDatabase
from host.db.messaging_group_agents import BusyMode
from host.db.snapshot import Routing
from host.failure import Code, Failure

OFFERED = (BusyMode.STEER, BusyMode.QUEUE)
"""What a person may choose. No runner carries INTERRUPT out yet."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Chats:
    """See the module."""

    def __init__(self, database: CentralDatabase, routing: Routing) -> None:
        self._database = database
        self._routing = routing

    def register(self, server: ControlServer) -> None:
        """Adds ``chats.set {id, busy}``, which answers with ``{id, busy}``."""
        server.register("chats.set", self._set)

    async def _set(self, call: Call) -> object:
        chat_id, busy = call.text("id"), call.text("busy")
        if busy not in OFFERED:
            raise Failure(Code.USAGE, f"A chat has no mode {busy!r}.", f"It is one of {', '.join(OFFERED)}.")
        if await self._database.run(lambda connection: messaging_groups.get(connection, chat_id)) is None:
            raise Failure(Code.NOT_FOUND, f"There is no chat {chat_id}.", "See `host chats list`.")
        agents = await self._database.run(lambda c: messaging_group_agents.set_busy(c, chat_id, busy))
        if not agents:
            raise Failure(Code.REFUSED, "No agent answers in that chat.", "See `host chats list`.")
        await self._routing.refresh()
        log.info("a chat was changed", chat=chat_id, busy=busy, actor=call.actor.name)
        return {"id": chat_id, "busy": busy}
