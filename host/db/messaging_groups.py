"""Messaging groups: one row is one chat of one channel account (ledger R003, R004)."""

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Column, Connection, Integer, Table, Text, UniqueConstraint, insert, select, update

from host.db.metadata import metadata

messaging_groups = Table(
    "messaging_groups",
    metadata,
    Column("id", Text, primary_key=True),
    Column("channel_type", Text, nullable=False),
    Column("account_id", Text, nullable=False, server_default=""),
    Column("platform_id", Text, nullable=False),
    Column("name", Text),
    Column("is_group", Integer, nullable=False, server_default="0"),
    Column("unknown_sender_policy", Text, nullable=False, server_default="strict"),
    Column("created_at", Text, nullable=False),
    UniqueConstraint("channel_type", "account_id", "platform_id"),
)


class UnknownSenderPolicy(StrEnum):
    """What happens to a message of somebody who is no member of the agent that would get it."""

    STRICT = "strict"
    REQUEST_APPROVAL = "request_approval"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class MessagingGroup:
    """One chat."""

    id: str
    channel_type: str
    account_id: str
    platform_id: str
    name: str | None
    is_group: int
    unknown_sender_policy: str
    created_at: str


def create(
    connection: Connection,
    id: str,  # noqa: A002  the column's name
    channel_type: str,
    account_id: str,
    platform_id: str,
    now: str,
    *,
    name: str | None = None,
    is_group: bool = False,
    unknown_sender_policy: str = UnknownSenderPolicy.STRICT,
) -> MessagingGroup:
    """A new chat. Raises ValueError for a policy that there is not, IntegrityError for a chat that is known."""
    policy = UnknownSenderPolicy(unknown_sender_policy)
    group = MessagingGroup(id, channel_type, account_id, platform_id, name, int(is_group), policy.value, now)
    connection.execute(
        insert(messaging_groups).values(**{field: getattr(group, field) for field in MessagingGroup.__slots__})
    )
    return group


def set_policy(connection: Connection, id: str, unknown_sender_policy: str) -> None:  # noqa: A002
    """Sets the policy. Raises ValueError for one that there is not."""
    policy = UnknownSenderPolicy(unknown_sender_policy)
    connection.execute(
        update(messaging_groups).where(messaging_groups.c.id == id).values(unknown_sender_policy=policy.value)
    )


def get(connection: Connection, id: str) -> MessagingGroup | None:  # noqa: A002
    """The chat of this id."""
    row = connection.execute(select(messaging_groups).where(messaging_groups.c.id == id)).mappings().one_or_none()
    return MessagingGroup(**row) if row else None


def at(connection: Connection, channel_type: str, account_id: str, platform_id: str) -> MessagingGroup | None:
    """The chat of this address."""
    columns = messaging_groups.c
    row = (
        connection.execute(
            select(messaging_groups).where(
                columns.channel_type == channel_type,
                columns.account_id == account_id,
                columns.platform_id == platform_id,
            )
        )
        .mappings()
        .one_or_none()
    )
    return MessagingGroup(**row) if row else None


def every(connection: Connection) -> list[MessagingGroup]:
    """All chats."""
    return [MessagingGroup(**row) for row in connection.execute(select(messaging_groups)).mappings()]
