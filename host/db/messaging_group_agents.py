"""Wirings: which agent answers in which chat, to what, and in which session (ledger R011)."""

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import (
    Column,
    Connection,
    ForeignKey,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    delete,
    insert,
    select,
    update,
)

from host.db.metadata import metadata

messaging_group_agents = Table(
    "messaging_group_agents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("messaging_group_id", Text, ForeignKey("messaging_groups.id"), nullable=False),
    Column("agent_group_id", Text, ForeignKey("agent_groups.id"), nullable=False),
    Column("trigger_rules", Text),
    Column("response_scope", Text, nullable=False, server_default="all"),
    Column("session_mode", Text, nullable=False, server_default="shared"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("created_at", Text, nullable=False),
    Column("busy", Text, nullable=False, server_default="steer"),
    UniqueConstraint("messaging_group_id", "agent_group_id"),
)


class ResponseScope(StrEnum):
    """Which messages of a chat an agent answers."""

    ALL = "all"
    TRIGGERED = "triggered"
    ALLOWLISTED = "allowlisted"


class SessionMode(StrEnum):
    """Whether the threads of a chat share a session."""

    SHARED = "shared"
    PER_THREAD = "per-thread"


class BusyMode(StrEnum):
    """What becomes of a message that comes while the agent works on others of its chat."""

    STEER = "steer"
    """The running turn gets it."""
    QUEUE = "queue"
    """It waits for a turn of its own."""
    INTERRUPT = "interrupt"
    """The running turn is given up, and a new one has both."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """One agent in one chat; trigger_rules is JSON text, or None for no rule."""

    id: str
    messaging_group_id: str
    agent_group_id: str
    trigger_rules: str | None
    response_scope: str
    session_mode: str
    priority: int
    created_at: str
    busy: str = BusyMode.STEER


def create(
    connection: Connection,
    id: str,  # noqa: A002  the column's name
    messaging_group_id: str,
    agent_group_id: str,
    now: str,
    *,
    trigger_rules: str | None = None,
    response_scope: str = ResponseScope.ALL,
    session_mode: str = SessionMode.SHARED,
    priority: int = 0,
) -> Wiring:
    """A new wiring. Raises ValueError for an unknown scope or mode, IntegrityError for a pair that is wired."""
    wiring = Wiring(
        id,
        messaging_group_id,
        agent_group_id,
        trigger_rules,
        ResponseScope(response_scope).value,
        SessionMode(session_mode).value,
        priority,
        now,
    )
    connection.execute(
        insert(messaging_group_agents).values(**{field: getattr(wiring, field) for field in Wiring.__slots__})
    )
    return wiring


def set_busy(connection: Connection, messaging_group_id: str, busy: str) -> int:
    """What every agent of a chat does with messages that come during a turn; how many agents answer there.

    Raises ValueError for a mode that there is not.
    """
    mode = BusyMode(busy)
    changed = update(messaging_group_agents).where(messaging_group_agents.c.messaging_group_id == messaging_group_id)
    return connection.execute(changed.values(busy=mode.value)).rowcount


def remove(connection: Connection, messaging_group_id: str, agent_group_id: str) -> None:
    """Has an agent answer in a chat no longer; its sessions stay."""
    columns = messaging_group_agents.c
    connection.execute(
        delete(messaging_group_agents).where(
            columns.messaging_group_id == messaging_group_id, columns.agent_group_id == agent_group_id
        )
    )


def every(connection: Connection) -> list[Wiring]:
    """All wirings in the order in which they are tried: priority descending, then the older one."""
    columns = messaging_group_agents.c
    rows = connection.execute(
        select(messaging_group_agents).order_by(columns.priority.desc(), columns.created_at, columns.id)
    )
    return [Wiring(**row) for row in rows.mappings()]
