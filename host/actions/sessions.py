"""What an agent may ask of sessions: to begin one anew, to have old messages worked on again, to read what was said,
and to be given it as context. For its own session always; for others of its agent as host.actions.authority says."""

import asyncio
import sqlite3
from dataclasses import asdict

from sqlalchemy import Connection

from host import series, views
from host import sessions as session_folders
from host.acting import ActionRefused
from host.actions.registry import ActionContext, Payload, Permission, Services, action
from host.copying import MOST, as_context, history, replay, to_replay
from host.db import agent_groups, sessions
from host.db.agent_groups import AgentGroup
from host.db.engine import query_on
from host.db.sessions import Session
from host.items import SessionRef, TakeOver
from host.mailbox import Mailbox
from mailboxes.clock import from_text, to_text
from mailboxes.rows import InStatus, MessageIn

MAX_LISTED = 100
"""Sessions that read_session lists."""

MAX_READ = 60_000
"""Characters of messages that one answer holds: the newest go first."""

_BY_HAND = "The owner can look with: host messages list --session SESSION"


@action("reset_session", permission=Permission.OWN_AGENT)
async def reset_session(context: ActionContext, payload: Payload) -> object:
    """Begins a session anew, its own unless `session_id` names another: {"session_id", "new_session_id"}. What the
    asking turn works on counts as done, else the next session would ask for the same."""
    del payload
    services, key = context.services, context.target
    if key == context.key:
        taken, due = await services.pool.call(key, _end_turn)
        services.post.cancelled(key, taken, due)
    await services.reset(key)
    fresh = await _in_place_of(services, key)
    return {"session_id": key.session_id, "new_session_id": fresh[0].id}


@action("replay_session", permission=Permission.OWN_AGENT)
async def replay_session(context: ActionContext, payload: Payload) -> object:
    """Has what came into a session (`session_id`, else its own; the `last` so many, else all) worked on once more, in
    order, in the session that is in its place now. What was said stays where it is: {"session_id", "messages"}."""
    services, last = context.services, _number(payload, "last", MOST)
    session, group = await _in_place_of(services, context.target)
    old = await services.pool.call(context.target, lambda mailbox: to_replay(mailbox, last))
    key = SessionRef(group.id, session.id)

    def provision() -> None:
        session_folders.provision(services.home, session, group)

    await asyncio.to_thread(provision)
    copies = await services.pool.call(key, lambda mailbox: replay(mailbox, old, context.id))
    await services.post.put(key, copies, provision)
    return {"session_id": session.id, "messages": len(copies)}


@action("read_session", permission=Permission.OWN_AGENT, by_hand=_BY_HAND)
async def read_session(context: ActionContext, payload: Payload) -> object:
    """What people and the agent said in the session `session_id` (`since`: from that time on; `limit`), oldest first.
    Without `session_id` the sessions that this one may read."""
    services = context.services
    if payload.get("session_id") is None:
        agent = context.key.agent_group_id
        every = await services.database.run(lambda connection: views.sessions(query_on(connection), closed=True))
        own = context.key.session_id
        shown = [
            row for row in every if row["agent_group_id"] == agent and (context.reaches_others or row["id"] == own)
        ]
        return {"sessions": shown[:MAX_LISTED], "more": len(shown) > MAX_LISTED}
    since, limit = _time(payload, "since"), _number(payload, "limit", 50)
    said, more = await services.pool.call(context.target, lambda box: history(box, since=since, limit=limit))
    kept, room = [], MAX_READ
    for one in reversed(said):
        room -= len(one.text)
        if room < 0:
            more = True
            break
        kept.append(asdict(one))
    return {"session_id": context.target.session_id, "messages": kept[::-1], "more": more}


@action("copy_context", permission=Permission.OWN_AGENT, by_hand=_BY_HAND)
async def copy_context(context: ActionContext, payload: Payload) -> object:
    """Gives this session what was said in the session `session_id` as context, which nobody answers; that session sees
    nothing of it: {"session_id", "messages"}."""
    if context.target == context.key:
        raise ActionRefused("Say which other session: session_id is the text that read_session gives.")
    services, source = context.services, context.target.session_id
    since, limit = _time(payload, "since"), _number(payload, "limit", 50)
    said, _ = await services.pool.call(context.target, lambda box: history(box, since=since, limit=limit))
    group = await services.database.run(lambda connection: agent_groups.get(connection, context.key.agent_group_id))
    name = group.name if group is not None else "agent"

    def write(mailbox: Mailbox) -> int:
        asking = mailbox.rows("id = ?", [context.in_reply_to or ""])
        address = asking[0].address if asking else None
        rows: list[MessageIn] = as_context(said, source, name, address, context.id)
        mailbox.put(rows)
        return len(rows)

    return {"session_id": source, "messages": await services.pool.call(context.key, write)}


ACTIONS = (reset_session, replay_session, read_session, copy_context)


def _end_turn(mailbox: Mailbox) -> tuple[TakeOver, str | None]:
    """What is being worked on is done."""
    taken, rows = TakeOver(), mailbox.rows("status='processing' AND status IN ('pending', 'processing')")

    def work(db: sqlite3.Connection) -> None:
        for row in rows:
            changed = (InStatus.COMPLETED, mailbox.stamp(), row.id)
            db.execute("UPDATE messages_in SET status=?, status_changed=? WHERE id=?", changed)
            series.finished(mailbox, db, row, InStatus.COMPLETED, "", taken)

    if rows:
        mailbox.write(work)
    taken.finished += [(row.id, True) for row in rows]
    return taken, mailbox.next_due()


async def _in_place_of(services: Services, key: SessionRef) -> tuple[Session, AgentGroup]:
    """The session itself while it is open, else the one in its place, made where there is none."""
    now = to_text(services.clock.now())

    def look(connection: Connection) -> tuple[Session, AgentGroup]:
        session, group = sessions.get(connection, key.session_id), agent_groups.get(connection, key.agent_group_id)
        if session is None or group is None:
            raise ActionRefused(f"This agent has no session {key.session_id}.")
        return sessions.find_or_create(connection, session.key, now, session.node), group

    return await services.database.run(look)


def _number(payload: Payload, name: str, otherwise: int) -> int:
    value = payload.get(name, otherwise)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise ActionRefused(f"{name} is a number from 1 to {MOST}.")
    return value


def _time(payload: Payload, name: str) -> str:
    value = payload.get(name, "")
    try:
        return to_text(from_text(value)) if isinstance(value, str) and value else ""
    except ValueError:
        raise ActionRefused(f"{name} is a time such as 2026-01-31T09:00:00.000Z.") from None
