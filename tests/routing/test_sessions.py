"""The folders behind the rows, and the race for a session."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection

from host.channels.base import InboundEvent, Sender
from host.db import agent_groups, sessions, user_roles
from host.db.agent_groups import AgentGroupRefused
from host.db.engine import make_engine
from host.db.sessions import SessionKey
from host.db.snapshot import load
from host.home import Home
from host.router import Deliver, decide
from host.sessions import (
    TERMINAL,
    IdRefused,
    add_agent_group,
    ensure_defaults,
    provision,
    session_folder,
    set_group_modes,
)
from tests.routing.world import NOW, luna_answers_in_7, prepare

ROOT = os.geteuid() == 0

RACER = """
import sys
from host.db import sessions
from host.db.engine import make_engine
from host.db.sessions import SessionKey
engine = make_engine(sys.argv[1])
sys.stdin.readline()
with engine.begin() as connection:
    print(sessions.find_or_create(connection, SessionKey("luna", "c7"), "now").id)
engine.dispose()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.req("R039")
@pytest.mark.fault(48)
def test_a_session_is_made_once_by_many_threads_and_processes(tmp_path: Path) -> None:
    url = prepare(tmp_path / "host.db", luna_answers_in_7)
    processes = [
        subprocess.Popen([sys.executable, "-c", RACER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    barrier, found = threading.Barrier(32), []

    def race() -> None:
        engine = make_engine(url)
        barrier.wait(30)
        with engine.begin() as connection:
            found.append(sessions.find_or_create(connection, SessionKey("luna", "c7"), NOW).id)
        engine.dispose()

    threads = [threading.Thread(target=race) for _ in range(32)]
    for thread in threads:
        thread.start()
    found += [process.communicate("go\n", timeout=30)[0].strip() for process in processes]
    for thread in threads:
        thread.join(30)
    assert len(found) == 34
    assert len(set(found)) == 1
    database = sqlite3.connect(tmp_path / "host.db")
    assert database.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
    database.close()


@pytest.mark.req("R044")
def test_a_session_lies_outside_its_agents_folder_and_ids_cannot_lead_elsewhere(home: Home) -> None:
    assert session_folder(home, "a1", "s1") == home.root / "sessions" / "a1" / "s1"
    for agent_id, session_id in (
        ("a1", "../x"),
        ("../x", "s1"),
        ("a1", ""),
        ("a1", "s" * 17),
        ("a/b", "s1"),
        ("a1", "s\n"),
    ):
        with pytest.raises(IdRefused):
            session_folder(home, agent_id, session_id)


@pytest.mark.req("R041", "R044")
def test_provisioning_makes_what_is_missing_and_keeps_what_is_there(connection: Connection, home: Home) -> None:
    group = agent_groups.create(connection, "a1", "luna", "luna", NOW)
    session = sessions.find_or_create(connection, SessionKey("a1"), NOW)
    folder = provision(home, session, group)
    (folder / "inbound" / "files" / "kept").touch()
    (folder / "inbound" / "inbound.db").unlink()
    shutil.rmtree(folder / "outbound")
    assert provision(home, session, group) == folder
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*")} == {
        "inbound", "inbound/inbound.db", "inbound/files", "inbound/files/kept",
        "outbound", "outbound/outbound.db", "outbound/files", "outbound/.lock", "state",
    }  # fmt: skip


def test_the_sandbox_may_read_the_inbound_side_and_own_the_rest(connection: Connection, home: Home) -> None:
    group = agent_groups.create(connection, "a1", "luna", "luna", NOW)
    folder = provision(home, sessions.find_or_create(connection, SessionKey("a1"), NOW), group)
    inbound, database = folder / "inbound", folder / "inbound" / "inbound.db"
    assert (mode(inbound), mode(database)) == ((0o750, 0o640) if ROOT else (0o700, 0o600))
    assert mode(folder / "outbound") == mode(folder / "state") == 0o700
    assert inbound.stat().st_uid == os.geteuid()
    if ROOT:
        assert inbound.stat().st_gid == database.stat().st_gid == group.uid
        assert (folder / "state").stat().st_uid == (folder / "outbound").stat().st_uid == group.uid


def test_a_new_agent_gets_a_folder_from_the_template_and_a_home_of_its_own(connection: Connection, home: Home) -> None:
    group = add_agent_group(connection, home, "Luna", "luna", NOW)
    folder = home.groups / "luna"
    assert (folder / "home").is_dir()
    (folder / "SOUL.md").write_text("mine")
    (folder / "home" / "note").write_text("the agent's")
    connection.rollback()
    again = add_agent_group(connection, home, "Luna", "luna", NOW)
    assert again.folder == group.folder
    assert (folder / "SOUL.md").read_text() == "mine"
    with pytest.raises(AgentGroupRefused):
        add_agent_group(connection, home, "x", "../x", NOW)


@pytest.mark.skipif(not ROOT, reason="only root gives folders to a sandbox's group")
def test_an_agents_folder_is_readable_for_its_group_and_links_in_it_are_not_followed(
    connection: Connection, home: Home, tmp_path: Path
) -> None:
    group = add_agent_group(connection, home, "luna", "luna", NOW)
    folder = home.groups / "luna"
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    (folder / "link").symlink_to(secret)
    (folder / "folder-link").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    (folder / "skills" / "x").mkdir(parents=True, exist_ok=True)
    (folder / "skills" / "x" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "skills" / "x" / "run.sh").chmod(0o700)
    (folder / "NOTES.md").write_text("")
    (folder / "home" / "own").write_text("")
    (folder / "home" / "own").chmod(0o600)
    set_group_modes(home, group)
    assert (mode(secret), secret.stat().st_gid) == (0o600, os.getegid())
    assert mode(tmp_path) & 0o050 == 0
    assert (mode(folder), mode(folder / "NOTES.md"), mode(folder / "skills" / "x" / "run.sh")) == (0o750, 0o640, 0o750)
    assert (folder / "NOTES.md").stat().st_gid == folder.stat().st_gid == group.uid
    assert (mode(folder / "home"), mode(folder / "home" / "own")) == (0o700, 0o600)


def test_a_new_home_has_main_in_the_terminal_and_its_person_is_the_owner(connection: Connection, home: Home) -> None:
    group = ensure_defaults(connection, home, NOW)
    assert group is not None
    assert (group.name, group.folder) == ("main", "main")
    assert [(role.user_id, role.role) for role in user_roles.every(connection)] == [("terminal:cli-user", "owner")]
    for text in ("hello", "/clear"):
        decision = decide(InboundEvent("e", TERMINAL, Sender("cli-user"), text), load(connection))
        assert isinstance(decision, Deliver)
        assert decision.agent_group.id == group.id
    assert ensure_defaults(connection, home, NOW) is None
    assert len(agent_groups.every(connection)) == 1
