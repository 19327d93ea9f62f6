"""A home that an older version left, as that version wrote it, and today's host on it.

`older/*.sql` are dumps of a real home of the first version (central revision 0001, inbound.db version 1): one exchange
is over, "left by the old host" was never delivered, and "waits since the old host" was never answered.
"""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from host.db.agent_groups import AgentGroup
from host.db.sessions import Session
from host.home import Home
from host.sessions import provision, provision_group
from mailboxes.schema import INBOUND_VERSION
from tests.cli.test_commands import run

OLDER = Path(__file__).with_name("older")
AGENT = AgentGroup("a-vvjanxxz633y", "main", "main", None, None, "", 2_000_000_000, None, 0)
SESSION = Session("s-qj2nb77b0vfy", AGENT.id, "c-0e58k1rgk5v9", None, None, "active", "stopped", None, "", None, "")


def restore(dump: str, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((OLDER / dump).read_text(encoding="utf-8"))


def one(path: Path, statement: str) -> object:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(statement).fetchone()[0]


@pytest.mark.req("R196")
async def test_todays_host_takes_up_the_home_of_an_older_version(home: Home) -> None:
    inbound = home.session_folder(AGENT.id, SESSION.id) / "inbound" / "inbound.db"
    inbound.parent.mkdir(parents=True)
    restore("host.sql", home.database)
    restore("inbound.sql", inbound)
    provision_group(home, AGENT)
    provision(home, SESSION, AGENT)
    code, out, err = await run("chat", "--once", "hello from today")
    assert code == 0, err
    said = out.splitlines()
    assert said[0] == "left by the old host"
    assert [line.rpartition(") ")[2] for line in said[1:]] == ["waits since the old host", "hello from today"]
    assert one(inbound, "PRAGMA user_version") == INBOUND_VERSION
    [backup] = home.backups.iterdir()
    assert one(backup, "SELECT version_num FROM alembic_version") == "0001"
    _, listed, _ = await run("--json", "messages", "list")
    assert {row["state"] for row in json.loads(listed)} == {"completed", "sent"}
