"""Users: people as the platforms know them, by immutable platform ids and never by user names (ledger R005)."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Table, Text, select

from host.db.engine import upsert
from host.db.metadata import metadata

users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("display_name", Text),
    Column("created_at", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class User:
    """One person on one platform; `kind` is the platform, the part of `id` before its first colon."""

    id: str
    kind: str
    display_name: str | None
    created_at: str


def split(user_id: str) -> tuple[str, str]:
    """(platform, handle) of `<channel>:<handle>` or `<channel>:<realm>/<handle>`; a handle may hold colons.

    Raises ValueError for text that is no user id.
    """
    kind, _, handle = user_id.partition(":")
    if not kind or not handle:
        raise ValueError(f"{user_id!r} names no person. A person is written as platform:id, such as telegram:12345.")
    return kind, handle


def create_user(connection: Connection, user_id: str, now: str, display_name: str | None = None) -> User:
    """The user of this id, made if there was none; a display name refreshes the stored one. Raises ValueError."""
    create_users(connection, [(user_id, display_name)], now)
    user = get(connection, user_id)
    assert user is not None
    return user


def create_users(connection: Connection, people: Sequence[tuple[str, str | None]], now: str) -> None:
    """As `create_user` for many (user id, display name) at once."""
    for named in (True, False):
        rows = [
            {"id": user_id, "kind": split(user_id)[0], "display_name": name, "created_at": now}
            for user_id, name in people
            if (name is not None) == named
        ]
        upsert(connection, users, rows, ("id",), ("display_name",) if named else ())


def get(connection: Connection, user_id: str) -> User | None:
    """The user of this id."""
    row = connection.execute(select(users).where(users.c.id == user_id)).mappings().one_or_none()
    return User(**row) if row else None


def every(connection: Connection) -> list[User]:
    """All users."""
    return [User(**row) for row in connection.execute(select(users)).mappings()]
