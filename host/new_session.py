"""A conversation that begins anew: another session in the place of one, which keeps its tasks and what waits."""

import asyncio
from collections.abc import Awaitable, Callable

from sqlalchemy import Connection

from host import sessions as session_folders
from host.db import agent_groups, sessions
from host.db.agent_groups import AgentGroup
from host.db.engine import CentralDatabase
from host.db.sessions import Session
from host.fleet import Fleet
from host.home import Home
from host.items import SessionRef
from mailboxes.clock import Clock, to_text


def resetter(
    home: Home,
    database: CentralDatabase,
    fleet: Fleet,
    clock: Clock,
    move: Callable[[SessionRef, SessionRef], Awaitable[None]],
) -> Callable[[SessionRef], Awaitable[None]]:
    """Begins a session anew: its tasks, and what waits in it, `move` over into the new one."""

    async def reset(key: SessionRef) -> None:
        now = to_text(clock.now())

        def exchange(connection: Connection) -> tuple[Session, AgentGroup] | None:
            old = sessions.get(connection, key.session_id)
            group = agent_groups.get(connection, key.agent_group_id)
            if old is None or group is None:
                return None
            sessions.close(connection, old.id)
            return sessions.find_or_create(connection, old.key, now, old.node), group

        made = await database.run(exchange)
        await fleet.stop(key, "a new conversation begins")
        if made is not None:
            session, group = made
            await asyncio.to_thread(session_folders.provision, home, session, group)
            fresh = SessionRef(session.agent_group_id, session.id)
            await move(key, fresh)

    return reset
