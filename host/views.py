"""Read-only pictures for the CLI, the pages and `status`: plain SQL through a `Query`.

The running host gives a query over its database thread (host.db.engine.query_on), a command without a host one over the
standard library (`offline`), so that looking costs no import of the database layer.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

Query: TypeAlias = Callable[[str, Mapping[str, object]], list[dict[str, object]]]
"""Runs one SELECT with `:named` parameters; the rows as dicts."""

_BUSY_SECONDS = 5.0


@contextmanager
def offline(database: Path) -> Iterator[Query]:
    """A query over the SQLite file of a home whose host need not run. Raises sqlite3.Error where there is none."""
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
    connection.row_factory = sqlite3.Row
    try:
        yield lambda statement, parameters: [dict(row) for row in connection.execute(statement, dict(parameters))]
    finally:
        connection.close()


_AGENTS = """
SELECT a.id, a.name, a.folder, a.agent_provider AS provider, a.model, a.paused, a.created_at,
       (SELECT COUNT(*) FROM messaging_group_agents w WHERE w.agent_group_id = a.id) AS chats,
       (SELECT COUNT(*) FROM sessions s WHERE s.agent_group_id = a.id AND s.status = 'active') AS sessions,
       (SELECT MAX(s.last_active) FROM sessions s WHERE s.agent_group_id = a.id) AS last_active
FROM agent_groups a
"""

_SESSIONS = """
SELECT s.id, s.agent_group_id, a.name AS agent, s.messaging_group_id, m.channel_type, m.account_id, m.platform_id,
       m.name AS chat, s.thread_id, s.session_key, COALESCE(s.agent_provider, a.agent_provider) AS provider,
       s.status, s.container_status, s.last_active, s.created_at, s.node
FROM sessions s
JOIN agent_groups a ON a.id = s.agent_group_id
LEFT JOIN messaging_groups m ON m.id = s.messaging_group_id
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What `status` tells of the database: active sessions by container_status, messages that wait for their mailbox,
    the host's own messages by state, and how much there is."""

    sessions: Mapping[str, int]
    spooled: int
    outbox: Mapping[str, int]
    agents: int
    chats: int
    people: int


def agents(query: Query) -> list[dict[str, object]]:
    """All agents with the number of their chats and sessions, by name."""
    return query(f"{_AGENTS} ORDER BY a.name, a.id", {})


def agent(query: Query, name: str) -> dict[str, object] | None:
    """The agent of this name, folder or id, with `answers_in`, the chats where it answers, and `writes_to`, the other
    agents that it may write to."""
    found = query(
        f"{_AGENTS} WHERE a.name = :name OR a.folder = :name OR a.id = :name "
        "ORDER BY CASE :name WHEN a.name THEN 0 WHEN a.folder THEN 1 ELSE 2 END, a.id LIMIT 1",
        {"name": name},
    )
    if not found:
        return None
    chats = query(
        """
        SELECT m.channel_type, m.account_id, m.platform_id, m.name,
               w.trigger_rules, w.response_scope, w.session_mode, w.priority
        FROM messaging_group_agents w JOIN messaging_groups m ON m.id = w.messaging_group_id
        WHERE w.agent_group_id = :id ORDER BY m.channel_type, m.account_id, m.platform_id
        """,
        {"id": found[0]["id"]},
    )
    others = query(
        """
        SELECT o.name AS agent, o.id AS agent_group_id, d.name AS called
        FROM agent_destinations d JOIN agent_groups o ON o.id = d.target_id
        WHERE d.agent_group_id = :id AND d.target_type = 'agent_group' ORDER BY o.name, o.id
        """,
        {"id": found[0]["id"]},
    )
    return {**found[0], "answers_in": chats, "writes_to": others}


def chats(query: Query) -> list[dict[str, object]]:
    """All chats, the newest first: `agents` are the names of those that answer there, `busy` is what becomes of a
    message that comes while they work."""
    found = query(
        "SELECT id, name, channel_type, account_id, platform_id, is_group, created_at FROM messaging_groups "
        "ORDER BY created_at DESC, id",
        {},
    )
    wired = query(
        "SELECT w.messaging_group_id AS chat, w.busy, a.name FROM messaging_group_agents w "
        "JOIN agent_groups a ON a.id = w.agent_group_id ORDER BY w.priority DESC, w.created_at, w.id",
        {},
    )
    of = {row["id"]: [one for one in wired if one["chat"] == row["id"]] for row in found}
    return [
        {
            **row,
            "agents": [one["name"] for one in of[row["id"]]],
            "busy": next((o["busy"] for o in of[row["id"]]), None),
        }
        for row in found
    ]


def sessions(query: Query, *, closed: bool = False) -> list[dict[str, object]]:
    """The active sessions (with `closed` all), the last active first."""
    chosen = "" if closed else "WHERE s.status = 'active'"
    return query(f"{_SESSIONS} {chosen} ORDER BY COALESCE(s.last_active, s.created_at) DESC, s.id", {})


def session(query: Query, session_id: str) -> dict[str, object] | None:
    """The session of this id."""
    found = query(f"{_SESSIONS} WHERE s.id = :id", {"id": session_id})
    return found[0] if found else None


def session_keys(query: Query) -> list[tuple[str, str]]:
    """(agent group id, session id) of every session, the closed ones too."""
    return [
        (str(row["agent_group_id"]), str(row["id"])) for row in query("SELECT agent_group_id, id FROM sessions", {})
    ]


def facts(query: Query) -> Facts:
    """The numbers of `status`."""
    return Facts(
        _counts(
            query,
            "SELECT container_status AS name, COUNT(*) AS number FROM sessions WHERE status = 'active' "
            "GROUP BY container_status",
        ),
        _count(query, "ingest_spool"),
        _counts(query, "SELECT state AS name, COUNT(*) AS number FROM host_outbox GROUP BY state"),
        _count(query, "agent_groups"),
        _count(query, "messaging_groups"),
        _count(query, "users"),
    )


def settings(query: Query) -> dict[str, str]:
    """The stored settings."""
    return {str(row["name"]): str(row["value"]) for row in query("SELECT name, value FROM settings ORDER BY name", {})}


def _count(query: Query, table: str) -> int:
    return int(str(query(f"SELECT COUNT(*) AS number FROM {table}", {})[0]["number"]))  # noqa: S608  our own names


def _counts(query: Query, statement: str) -> dict[str, int]:
    return {str(row["name"]): int(str(row["number"])) for row in query(statement, {})}
