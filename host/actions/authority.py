"""Whether a session may have an action carried out: decided here, at the moment at which it is.

What a session writes about itself gives it no right. Its own id is the host's; whose turn it is, is read from the
messages that the host has down as being worked on, not from what the row names as its cause: else an old message of the
owner would do.
"""

from collections.abc import Mapping

from host.acting import ActionRefused, Handler
from host.actions.registry import ActionContext, Payload, Permission, RegisteredAction, Services
from host.db import sessions
from host.items import Action, SessionRef
from host.mailbox import Mailbox
from mailboxes.rows import Kind

_AT_WORK = "status='processing' AND status IN ('pending', 'processing') AND kind <> 'system'"
"""With the words of the index of open rows: a session may have 100,000 others."""


def people_of(mailbox: Mailbox) -> frozenset[str]:
    """Who wrote what a session is working on now; nobody where a task, another agent or a copy of old messages takes
    part in it."""
    rows = mailbox.rows(_AT_WORK)
    written = [
        row.principal
        for row in rows
        if row.kind in (Kind.CHAT, Kind.CHAT_SDK) and row.source_session is None and row.series_id is None
    ]
    users = frozenset(user for user in written if user is not None)
    return users if len(written) == len(rows) and None not in written else frozenset()


def handlers(actions: Mapping[str, RegisteredAction], services: Services) -> dict[str, Handler]:
    """The actions as host.acting calls them: each is asked for leave first."""
    return {name: _guarded(registered, services) for name, registered in actions.items()}


def _guarded(registered: RegisteredAction, services: Services) -> Handler:
    async def handler(key: SessionRef, asked: Action) -> object:
        return await registered.run(await authorise(key, asked, registered, services), asked.payload)

    return handler


async def authorise(key: SessionRef, asked: Action, registered: RegisteredAction, services: Services) -> ActionContext:
    """The context in which an action is carried out. Raises ActionRefused."""
    people = await services.pool.call(key, people_of)
    snapshot = services.routing.snapshot
    administers = bool(people) and all(snapshot.may_administer(user, key.agent_group_id) for user in people)
    target = key
    if registered.permission is Permission.OWNER and not (people and people <= snapshot.owners):
        raise ActionRefused(f"Only an owner's own message has {registered.name} done. {registered.by_hand}".strip())
    if registered.permission is Permission.OWN_AGENT:
        target = await _target(key, asked.payload, services)
        if target != key and not administers:
            raise ActionRefused(
                "Another conversation may be read or changed only when somebody who administers this agent asks for it "
                f"in this conversation. {registered.by_hand}".strip()
            )
    return ActionContext(key, asked.id, asked.in_reply_to, target, administers, services)


async def _target(key: SessionRef, payload: Payload, services: Services) -> SessionRef:
    session_id = payload.get("session_id")
    if session_id is None or session_id == key.session_id:
        return key
    if not isinstance(session_id, str):
        raise ActionRefused("session_id is the text that read_session gives.")
    found = await services.database.run(lambda connection: sessions.get(connection, session_id))
    if found is None or found.agent_group_id != key.agent_group_id:
        raise ActionRefused(f"This agent has no session {session_id}. read_session without session_id lists them.")
    return SessionRef(found.agent_group_id, found.id)
