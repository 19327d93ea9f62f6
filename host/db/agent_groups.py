"""Agent groups: one row is one agent with its folder groups/<folder>/ (ledger R001, R002)."""

import json
import re
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Integer, Table, Text, delete, insert, select, update

from host.db.metadata import metadata
from mailboxes.ids import is_row_id

FIRST_UID = 2_000_000_000
"""Above every uid that a distribution gives to people, services or subordinate ranges."""

agent_groups = Table(
    "agent_groups",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("folder", Text, nullable=False, unique=True),
    Column("agent_provider", Text),
    Column("container_config", Text),
    Column("created_at", Text, nullable=False),
    Column("uid", Integer, nullable=False, unique=True),
    Column("model", Text),
    Column("paused", Integer, nullable=False, server_default="0"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Integer, nullable=False),
)
"""Numbers that are given once and outlive the rows that got them."""

_FOLDER = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


class AgentGroupRefused(ValueError):
    """An agent cannot be as asked; the text names it, the reason and the next step."""


@dataclass(frozen=True, slots=True)
class AgentGroup:
    """One agent. `uid`: the user and group id of its sandboxes under a root host; provider, model None = inherit."""

    id: str
    name: str
    folder: str
    agent_provider: str | None
    container_config: str | None
    created_at: str
    uid: int
    model: str | None
    paused: int


@dataclass(frozen=True, slots=True)
class ContainerConfig:
    """What container_config says: mounts as the allow-list in code checks them later; `timeout` in seconds."""

    additional_mounts: tuple[dict[str, object], ...] = ()
    timeout: float | None = None


def container_config(group: AgentGroup) -> ContainerConfig:
    """The parsed container_config. Raises AgentGroupRefused, which names the agent."""
    return parse_container_config(group.name, group.container_config)


def parse_container_config(name: str, raw: str | None) -> ContainerConfig:
    """The JSON text `{additionalMounts, timeout}`; None is all defaults. Raises AgentGroupRefused."""
    if raw is None:
        return ContainerConfig()
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise _bad_config(name, f"is no JSON ({error})") from None
    if not isinstance(value, dict) or not value.keys() <= {"additionalMounts", "timeout"}:
        raise _bad_config(name, "takes additionalMounts and timeout, and nothing else")
    mounts, timeout = value.get("additionalMounts", []), value.get("timeout")
    if not isinstance(mounts, list) or not all(isinstance(mount, dict) for mount in mounts):
        raise _bad_config(name, "has additionalMounts that are no list of objects")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0):
        raise _bad_config(name, "has a timeout that is no number of seconds above 0")
    return ContainerConfig(tuple(mounts), timeout)


def _bad_config(name: str, reason: str) -> AgentGroupRefused:
    return AgentGroupRefused(
        f"The sandbox configuration of the agent {name} {reason}. "
        "Correct its container_config in the host's database, then run: host restart"
    )


def check_folder(folder: str) -> str:
    """The folder's name if it may be one. Raises AgentGroupRefused."""
    if _FOLDER.fullmatch(folder) is None:
        raise AgentGroupRefused(
            f"{folder!r} cannot name an agent's folder. "
            "Use small letters, digits, - and _, at most 64, a letter or digit first."
        )
    return folder


def _next_uid(connection: Connection) -> int:
    given = connection.execute(
        update(counters).where(counters.c.name == "uid").values(value=counters.c.value + 1).returning(counters.c.value)
    ).scalar()
    if given is None:
        connection.execute(insert(counters).values(name="uid", value=FIRST_UID))
        return FIRST_UID
    return int(given)


def create(
    connection: Connection,
    id: str,  # noqa: A002  the column's name
    name: str,
    folder: str,
    now: str,
    *,
    agent_provider: str | None = None,
    model: str | None = None,
    container_config: str | None = None,
) -> AgentGroup:
    """A new agent with a uid that no other agent has or ever had.

    Raises AgentGroupRefused for an id, folder or configuration that cannot be, IntegrityError for a folder in use.
    """
    if not is_row_id(id):
        raise AgentGroupRefused(f"{id!r} cannot be the id of an agent.")
    parse_container_config(name, container_config)
    group = AgentGroup(
        id, name, check_folder(folder), agent_provider, container_config, now, _next_uid(connection), model, 0
    )
    connection.execute(insert(agent_groups).values(**{field: getattr(group, field) for field in AgentGroup.__slots__}))
    return group


def change(connection: Connection, id: str, **columns: str | int | None) -> None:  # noqa: A002
    """Sets name, agent_provider, container_config, model or paused."""
    allowed = {"name", "agent_provider", "container_config", "model", "paused"}
    if not columns.keys() <= allowed:
        raise AgentGroupRefused(f"Of an agent only {', '.join(sorted(allowed))} can change.")
    if "container_config" in columns:
        raw = columns["container_config"]
        assert raw is None or isinstance(raw, str)
        parse_container_config(id, raw)
    connection.execute(update(agent_groups).where(agent_groups.c.id == id).values(**columns))


def get(connection: Connection, id: str) -> AgentGroup | None:  # noqa: A002
    """The agent of this id."""
    row = connection.execute(select(agent_groups).where(agent_groups.c.id == id)).mappings().one_or_none()
    return AgentGroup(**row) if row else None


def every(connection: Connection) -> list[AgentGroup]:
    """All agents, by name."""
    rows = connection.execute(select(agent_groups).order_by(agent_groups.c.name, agent_groups.c.id)).mappings()
    return [AgentGroup(**row) for row in rows]


def remove(connection: Connection, id: str) -> None:  # noqa: A002
    """Deletes the row. Raises IntegrityError while chats, sessions, roles or members refer to it."""
    connection.execute(delete(agent_groups).where(agent_groups.c.id == id))
