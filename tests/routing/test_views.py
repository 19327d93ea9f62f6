"""What people look at: the same with a running host and without one, and without the database layer."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection

from host import views
from host.db import host_outbox, sessions, settings
from host.db.engine import make_engine, query_on
from host.db.sessions import SessionKey
from mailboxes.rows import Address
from tests.routing.world import NOW, agent, luna_answers_in_7, prepare


def busy(connection: Connection) -> None:
    """Two agents, three sessions of which one is closed, a notice and a setting."""
    luna_answers_in_7(connection)
    agent(connection, "sage")
    closed = sessions.find_or_create(connection, SessionKey("luna", "c7"), NOW)
    sessions.close(connection, closed.id)
    shared = sessions.find_or_create(connection, SessionKey("luna", "c7"), NOW)
    sessions.find_or_create(connection, SessionKey("luna", "c7", "t"), NOW)
    sessions.set_container_status(connection, shared.id, "running")
    sessions.touch(connection, [shared.id], "2026-01-02T00:00:00.000Z")
    host_outbox.add(connection, "o1", Address("telegram", "bot", "7"), '{"text":"x"}', NOW)
    settings.store(connection, "cpus", "2")


def everything(query: views.Query) -> list[object]:
    """All views at once."""
    listed = views.sessions(query)
    return [
        views.agents(query),
        [views.agent(query, name) for name in ("luna", "sage", "nobody")],
        listed,
        views.sessions(query, closed=True),
        [views.session(query, str(row["id"])) for row in listed],
        views.facts(query),
        views.settings(query),
    ]


def test_the_views_are_the_same_with_and_without_a_running_host(tmp_path: Path) -> None:
    engine = make_engine(prepare(tmp_path / "host.db", busy))
    with engine.connect() as connection:
        online = everything(query_on(connection))
    engine.dispose()
    with views.offline(tmp_path / "host.db") as query:
        assert everything(query) == online


def test_the_views_tell_what_is_there(tmp_path: Path) -> None:
    prepare(tmp_path / "host.db", busy)
    with views.offline(tmp_path / "host.db") as query:
        assert [(row["name"], row["chats"], row["sessions"]) for row in views.agents(query)] == [
            ("luna", 1, 2),
            ("sage", 0, 0),
        ]
        luna = views.agent(query, "luna")
        assert luna is not None
        assert [chat["platform_id"] for chat in luna["answers_in"]] == ["7"]  # type: ignore[attr-defined]
        first, second = views.sessions(query)
        assert (first["container_status"], first["agent"], first["platform_id"]) == ("running", "luna", "7")
        assert second["thread_id"] == "t"
        assert len(views.sessions(query, closed=True)) == 3
        assert views.session(query, "nothing") is None
        assert views.facts(query) == views.Facts({"running": 1, "stopped": 1}, 0, {"queued": 1}, 2, 1, 0)
        assert views.settings(query) == {"cpus": "2"}


def test_looking_without_a_host_changes_nothing_and_loads_no_database_layer(tmp_path: Path) -> None:
    import sqlite3

    prepare(tmp_path / "host.db", busy)
    with views.offline(tmp_path / "host.db") as query, pytest.raises(sqlite3.OperationalError, match="readonly"):
        query("DELETE FROM settings", {})
    code = "import sys, host.views; print('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
