"""Where an agent may send besides the chat it answers in: named chats and agents, granted by a person."""

from dataclasses import dataclass

from sqlalchemy import Column, Connection, ForeignKey, Table, Text, delete, select

from host.db.engine import upsert
from host.db.metadata import metadata

agent_destinations = Table(
    "agent_destinations",
    metadata,
    Column("agent_group_id", Text, ForeignKey("agent_groups.id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("target_type", Text, nullable=False),
    Column("target_id", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)

TARGET_TYPES = ("messaging_group", "agent_group")


@dataclass(frozen=True, slots=True)
class Destination:
    """One name that an agent may send to; target_type is messaging_group or agent_group."""

    agent_group_id: str
    name: str
    target_type: str
    target_id: str
    created_at: str


def allow(connection: Connection, destination: Destination) -> None:
    """Grants a destination, or points its name elsewhere. Raises ValueError for a kind of target that there is not."""
    if destination.target_type not in TARGET_TYPES:
        raise ValueError(
            f"{destination.target_type!r} is no kind of destination; it is one of {', '.join(TARGET_TYPES)}."
        )
    row = {name: getattr(destination, name) for name in Destination.__slots__}
    upsert(connection, agent_destinations, [row], ("agent_group_id", "name"), ("target_type", "target_id"))


def forbid(connection: Connection, agent_group_id: str, name: str) -> None:
    """Takes a destination back."""
    columns = agent_destinations.c
    connection.execute(delete(agent_destinations).where(columns.agent_group_id == agent_group_id, columns.name == name))


def is_granted(connection: Connection, agent_group_id: str, target_group_id: str) -> bool:
    """Whether an agent may write to another."""
    columns = agent_destinations.c
    found = connection.execute(
        select(columns.name).where(
            columns.agent_group_id == agent_group_id,
            columns.target_type == "agent_group",
            columns.target_id == target_group_id,
        )
    )
    return found.first() is not None


def of_agent(connection: Connection, agent_group_id: str) -> list[Destination]:
    """An agent's destinations, by name."""
    columns = agent_destinations.c
    rows = connection.execute(
        select(agent_destinations).where(columns.agent_group_id == agent_group_id).order_by(columns.name)
    )
    return [Destination(**row) for row in rows.mappings()]
