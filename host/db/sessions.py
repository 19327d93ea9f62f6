"""Sessions: one agent's work in one chat, thread or with one person (ledger R012, R013, R039, R040, R046).

The row here is the point of serialisation: whoever gets to insert it made the session, and everybody else finds it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Column, Connection, ForeignKey, Index, Table, Text, bindparam, func, select, text, update

from host.db.agent_groups import AgentGroup
from host.db.engine import upsert
from host.db.metadata import metadata
from host.db.quick import quickly
from mailboxes.ids import new_id

sessions = Table(
    "sessions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("agent_group_id", Text, ForeignKey("agent_groups.id"), nullable=False),
    Column("messaging_group_id", Text, ForeignKey("messaging_groups.id")),
    Column("thread_id", Text),
    Column("agent_provider", Text),
    Column("status", Text, nullable=False, server_default="active"),
    Column("container_status", Text, nullable=False, server_default="stopped"),
    Column("last_active", Text),
    Column("created_at", Text, nullable=False),
    Column("node", Text),
    Column("session_key", Text, nullable=False, server_default=""),
)
Index("idx_sessions_agent_group", sessions.c.agent_group_id)
Index("idx_sessions_lookup", sessions.c.messaging_group_id, sessions.c.thread_id)
Index(
    "sessions_one_active",
    sessions.c.agent_group_id,
    func.coalesce(sessions.c.messaging_group_id, text("''")),
    func.coalesce(sessions.c.thread_id, text("''")),
    sessions.c.session_key,
    unique=True,
    sqlite_where=text("status = 'active'"),
    postgresql_where=text("status = 'active'"),
)


class ContainerStatus(StrEnum):
    """What the fleet says about a session's sandbox."""

    RUNNING = "running"
    IDLE = "idle"
    STOPPED = "stopped"


class SessionKey(NamedTuple):
    """What a session is found by. `session_key` parts what chat and thread do not (a DM scope), else it is ""."""

    agent_group_id: str
    messaging_group_id: str | None = None
    thread_id: str | None = None
    session_key: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """One session. `status` is active or closed; `node` names the host that keeps its folder, None = the only one."""

    id: str
    agent_group_id: str
    messaging_group_id: str | None
    thread_id: str | None
    agent_provider: str | None
    status: str
    container_status: str
    last_active: str | None
    created_at: str
    node: str | None
    session_key: str

    @property
    def key(self) -> SessionKey:
        """What this session is found by while it is active."""
        return SessionKey(self.agent_group_id, self.messaging_group_id, self.thread_id, self.session_key)


def effective_provider(session: str | None, agent_group: str | None, default: str) -> str:
    """The provider that answers: the session's own, else its agent's, else the installation's."""
    return session or agent_group or default


def provider_of(session: Session, group: AgentGroup, default: str) -> str:
    """`effective_provider` of rows."""
    return effective_provider(session.agent_provider, group.agent_provider, default)


# NULL and "" are one here, as they are in the unique index. The plain comparisons come first: they can use an index.
_FIND = select(sessions).where(
    sessions.c.agent_group_id == bindparam("agent_group_id"),
    func.coalesce(sessions.c.messaging_group_id, text("''")) == bindparam("chat"),
    func.coalesce(sessions.c.thread_id, text("''")) == bindparam("thread"),
    sessions.c.session_key == bindparam("session_key"),
    text("status = 'active'"),
)
_COLUMNS = [sessions.c[name] for name in Session.__slots__]
_GET = select(*_COLUMNS).where(sessions.c.id == bindparam("session_id"))
_GET_MANY = select(*_COLUMNS).where(sessions.c.id.in_(bindparam("ids", expanding=True)))
_TOUCH = update(sessions).where(sessions.c.id == bindparam("session_id")).values(last_active=bindparam("now"))


def find(connection: Connection, key: SessionKey) -> Session | None:
    """The active session of this key."""
    row = (
        connection.execute(
            _FIND,
            {
                "agent_group_id": key.agent_group_id,
                "chat": key.messaging_group_id or "",
                "thread": key.thread_id or "",
                "session_key": key.session_key,
            },
        )
        .mappings()
        .one_or_none()
    )
    return Session(**row) if row else None


def find_or_create(connection: Connection, key: SessionKey, now: str, node: str | None = None) -> Session:
    """The active session of this key, made if there is none: one, however many threads and processes ask at once.

    Raises IntegrityError when its agent or chat is gone.
    """
    found = find(connection, key)
    if found is not None:
        return found
    row = {"id": new_id("s"), "created_at": now, "node": node, **key._asdict()}
    upsert(connection, sessions, [row])
    made = find(connection, key)
    assert made is not None
    return made


def get(connection: Connection, session_id: str) -> Session | None:
    """The session of this id."""
    return get_many(connection, [session_id]).get(session_id)


def in_place_of(connection: Connection, session_id: str) -> Session | None:
    """The session of this id while it is active, else the active one that has taken its place."""
    session = get(connection, session_id)
    return session if session is None or session.status == "active" else find(connection, session.key)


def get_many(connection: Connection, session_ids: Sequence[str]) -> dict[str, Session]:
    """The sessions of these ids, by id."""
    if not session_ids:
        return {}
    if len(session_ids) == 1:  # a list is put into the statement's text anew each time
        return {row[0]: Session(*row) for row in quickly(connection, _GET, [{"session_id": session_ids[0]}])}
    return {row[0]: Session(*row) for row in connection.execute(_GET_MANY, {"ids": list(session_ids)})}


def active(connection: Connection) -> list[Session]:
    """All active sessions."""
    return [Session(**row) for row in connection.execute(select(sessions).where(text("status = 'active'"))).mappings()]


def closed(connection: Connection) -> list[Session]:
    """All sessions that are over."""
    return [Session(**row) for row in connection.execute(select(sessions).where(text("status = 'closed'"))).mappings()]


def touch(connection: Connection, session_ids: Iterable[str], now: str) -> None:
    """Sets last_active."""
    quickly(connection, _TOUCH, [{"session_id": session_id, "now": now} for session_id in session_ids])


def set_container_status(connection: Connection, session_id: str, status: str) -> None:
    """Sets container_status. Raises ValueError for one that there is not."""
    known = ContainerStatus(status)
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(container_status=known.value))


def close(connection: Connection, session_id: str) -> None:
    """Ends a session: the next message of its chat makes a new one. Its folder stays."""
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(status="closed"))
