"""Members: who may talk to an agent. Owners and admins of it are members without a row (ledger R009)."""

from dataclasses import dataclass

from sqlalchemy import Column, Connection, ForeignKey, Table, Text, delete, or_, select

from host.db.engine import upsert
from host.db.metadata import metadata
from host.db.user_roles import user_roles

agent_group_members = Table(
    "agent_group_members",
    metadata,
    Column("user_id", Text, ForeignKey("users.id"), primary_key=True),
    Column("agent_group_id", Text, ForeignKey("agent_groups.id"), primary_key=True),
    Column("added_by", Text),
    Column("added_at", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Member:
    """One person who may talk to one agent."""

    user_id: str
    agent_group_id: str
    added_by: str | None
    added_at: str


def add(connection: Connection, user_id: str, agent_group_id: str, now: str, added_by: str | None = None) -> None:
    """Makes a person a member; adding again changes nothing. Raises IntegrityError for an unknown user or agent."""
    row = {"user_id": user_id, "agent_group_id": agent_group_id, "added_by": added_by, "added_at": now}
    upsert(connection, agent_group_members, [row])


def remove(connection: Connection, user_id: str, agent_group_id: str) -> None:
    """Takes a membership back; where there is none nothing happens."""
    columns = agent_group_members.c
    connection.execute(
        delete(agent_group_members).where(columns.user_id == user_id, columns.agent_group_id == agent_group_id)
    )


def is_member(connection: Connection, user_id: str, agent_group_id: str) -> bool:
    """Whether a person may talk to an agent: by a row, as its admin, as a global admin or as an owner."""
    members, roles = agent_group_members.c, user_roles.c
    row = select(members.user_id).where(members.user_id == user_id, members.agent_group_id == agent_group_id)
    # A role counts here if it is for everywhere or for this very agent.
    role = select(roles.user_id).where(
        roles.user_id == user_id, or_(roles.agent_group_id.is_(None), roles.agent_group_id == agent_group_id)
    )
    return connection.execute(row.union_all(role).limit(1)).first() is not None


def every(connection: Connection) -> list[Member]:
    """All memberships."""
    return [Member(**row) for row in connection.execute(select(agent_group_members)).mappings()]
