"""Roles: owner (of the installation) and admin (of everything, or of one agent) (ledger R006, R007, R008)."""

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import CheckConstraint, Column, Connection, ForeignKey, Index, Table, Text, delete, func, select, text

from host.db.engine import upsert
from host.db.metadata import metadata

user_roles = Table(
    "user_roles",
    metadata,
    Column("user_id", Text, ForeignKey("users.id"), nullable=False),
    Column("role", Text, nullable=False),
    Column("agent_group_id", Text, ForeignKey("agent_groups.id")),
    Column("granted_by", Text),
    Column("granted_at", Text, nullable=False),
    CheckConstraint("role IN ('owner', 'admin')", name="user_roles_role"),
)
# The key: a PRIMARY KEY would let NULLs repeat (SQLite) or forbid them (PostgreSQL); a global role is one row.
Index(
    "user_roles_once",
    user_roles.c.user_id,
    user_roles.c.role,
    func.coalesce(user_roles.c.agent_group_id, text("''")),
    unique=True,
)


class Role(StrEnum):
    """What a person may do beyond talking."""

    OWNER = "owner"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class UserRole:
    """One grant; agent_group_id None = everywhere."""

    user_id: str
    role: str
    agent_group_id: str | None
    granted_by: str | None
    granted_at: str


def grant_role(
    connection: Connection,
    user_id: str,
    role: str,
    agent_group_id: str | None,
    now: str,
    granted_by: str | None = None,
) -> None:
    """Grants a role; granting it again changes nothing.

    Raises ValueError for an unknown role and for an owner of one agent, IntegrityError for an unknown user or agent.
    """
    granted = Role(role)
    if granted is Role.OWNER and agent_group_id is not None:
        raise ValueError("An owner owns the whole installation, not one agent. Make the person an admin of that agent.")
    row = {
        "user_id": user_id,
        "role": granted.value,
        "agent_group_id": agent_group_id,
        "granted_by": granted_by,
        "granted_at": now,
    }
    upsert(connection, user_roles, [row])


def revoke_role(connection: Connection, user_id: str, role: str, agent_group_id: str | None) -> None:
    """Takes a role back; where there is none nothing happens."""
    columns = user_roles.c
    connection.execute(
        delete(user_roles).where(
            columns.user_id == user_id,
            columns.role == role,
            columns.agent_group_id.is_not_distinct_from(agent_group_id),
        )
    )


def every(connection: Connection) -> list[UserRole]:
    """All grants."""
    return [UserRole(**row) for row in connection.execute(select(user_roles)).mappings()]
