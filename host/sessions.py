"""The folders behind the rows: a session's mailbox, an agent's folder, and what a new home starts with.

Everything here is idempotent: a crash between a row and its folder is repaired by the next message or wake.
"""

import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from host import untrusted
from host.db import agent_groups, messaging_group_agents, messaging_groups, sessions, user_roles, users
from host.db.agent_groups import AgentGroup
from host.db.engine import CentralDatabase
from host.db.messaging_group_agents import SessionMode
from host.db.messaging_groups import MessagingGroup
from host.db.sessions import Session
from host.db.user_roles import Role
from host.home import Home
from host.items import SessionRef
from host.resources import resource
from mailboxes.ids import is_row_id, new_id
from mailboxes.layout import FILES, INBOUND_DB, MAX_SESSION_ID
from mailboxes.rows import Address
from mailboxes.schema import create_inbound

DEFAULT_AGENT = "main"
TERMINAL = Address("terminal", "local", "cli")
TERMINAL_USER = "terminal:cli-user"
"""Who writes in the terminal: whoever may open this home is its owner."""

AGENT_HOME = "home"
"""The one folder below an agent's folder that is the agent's own."""


class IdRefused(ValueError):
    """An id would not do as a part of a path."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose the sandbox's folders are; both None where the host is no root and everything is its own."""

    uid: int | None
    gid: int | None


def owner_of(group: AgentGroup) -> Owner:
    """The uid and gid of an agent's sandboxes: its own under a root host."""
    return Owner(group.uid, group.uid) if os.geteuid() == 0 else Owner(None, None)


def session_folder(home: Home, agent_group_id: str, session_id: str) -> Path:
    """sessions/<agent_group_id>/<session_id>/. Raises IdRefused for ids that would lead elsewhere."""
    if not is_row_id(agent_group_id):
        raise IdRefused(f"{agent_group_id!r} cannot be the id of an agent")
    if not is_row_id(session_id) or len(session_id) > MAX_SESSION_ID:
        raise IdRefused(f"{session_id!r} cannot be the id of a session")
    return home.session_folder(agent_group_id, session_id)


def agent_folder(home: Home, group: AgentGroup) -> Path:
    """groups/<folder>/. Raises AgentGroupRefused for a name that would lead elsewhere."""
    return home.groups / agent_groups.check_folder(group.folder)


def provision(home: Home, session: Session, group: AgentGroup) -> Path:
    """Makes what is missing of a session's folder, with the owners and modes of the mailbox; returns the folder.

    Blocking: for a worker thread. Raises IdRefused, OSError.
    """
    folder = session_folder(home, session.agent_group_id, session.id)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    owner = owner_of(group)
    inbound = folder / "inbound"
    for made in (inbound, inbound / FILES):
        made.mkdir(mode=0o700, exist_ok=True)
        _share_to_read(made, owner.gid)
    create_inbound(inbound / INBOUND_DB)
    _share_to_read(inbound / INBOUND_DB, owner.gid)
    untrusted.provision_outbound(folder, owner.uid, owner.gid)
    untrusted.provision_folder(folder / "state", owner.uid, owner.gid)
    return folder


def in_place_of(database: CentralDatabase) -> Callable[[SessionRef], Awaitable[SessionRef]]:
    """Finds the session itself while it is open (or where nothing followed it), else the one in its place."""

    async def find(key: SessionRef) -> SessionRef:
        found = await database.run(lambda connection: sessions.in_place_of(connection, key.session_id))
        return key if found is None else SessionRef(found.agent_group_id, found.id)

    return find


def _share_to_read(path: Path, gid: int | None) -> None:
    """For a path in a folder that only the host writes: the sandbox's group may read it, nobody else."""
    # Never open() here: closing a plain handle on a live database drops SQLite's locks on it.
    status = path.lstat()
    folder = stat.S_ISDIR(status.st_mode)
    mode = 0o700 if folder else 0o600
    if gid is not None:
        mode = 0o750 if folder else 0o640
        os.chown(path, -1, gid, follow_symlinks=False)
    if stat.S_IMODE(status.st_mode) != mode:
        path.chmod(mode)


def set_group_modes(home: Home, group: AgentGroup) -> None:
    """Gives an agent's folder, but for its home/, to root and the agent's group to read, following no link.

    For each wake: people edit this folder with whatever umask they have. Does nothing under a host that is no root.
    """
    if os.geteuid() != 0:
        return
    folder = os.open(agent_folder(home, group), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _set_modes_below(folder, group.uid, skip=AGENT_HOME)
    finally:
        os.close(folder)


def _set_modes_below(folder: int, gid: int, skip: str | None = None) -> None:
    os.fchown(folder, 0, gid)
    os.fchmod(folder, 0o750)
    for name in os.listdir(folder):
        if name == skip:
            continue
        try:
            # Non-blocking, so that a FIFO does not hold us; a link is refused here and stays a link.
            entry = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError:
            continue
        try:
            status = os.fstat(entry)
            if stat.S_ISDIR(status.st_mode):
                _set_modes_below(entry, gid)
            elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                os.fchown(entry, 0, gid)
                os.fchmod(entry, 0o750 if status.st_mode & stat.S_IXUSR else 0o640)
        finally:
            os.close(entry)


def provision_group(home: Home, group: AgentGroup) -> Path:
    """Makes an agent's folder from the template where there is none, and its home/; returns the folder."""
    folder = agent_folder(home, group)
    if not folder.exists():
        building = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(building, ignore_errors=True)
        shutil.copytree(resource("groups/template"), building, ignore=shutil.ignore_patterns(AGENT_HOME))
        building.chmod(0o700)
        building.rename(folder)
    owner = owner_of(group)
    untrusted.provision_folder(folder / AGENT_HOME, owner.uid, owner.gid)
    set_group_modes(home, group)
    return folder


def add_agent_group(
    connection: Connection,
    home: Home,
    name: str,
    folder: str,
    now: str,
    *,
    agent_id: str | None = None,
    provider: str | None = None,
    model: str | None = None,
) -> AgentGroup:
    """A new agent with its folder. Raises AgentGroupRefused, and IntegrityError for a folder that another agent has."""
    agent_id = agent_id or new_id("a")
    group = agent_groups.create(connection, agent_id, name, folder, now, agent_provider=provider, model=model)
    provision_group(home, group)
    return group


def ensure_defaults(connection: Connection, home: Home, now: str) -> AgentGroup | None:
    """Gives a new home its agent `main`, wired to the terminal, whose person is the owner; returns that agent.

    In a home that has any agent or person it does nothing: what somebody removed stays removed.
    """
    if agent_groups.every(connection) or users.every(connection):
        return None
    group = add_agent_group(connection, home, DEFAULT_AGENT, DEFAULT_AGENT, now)
    users.create_user(connection, TERMINAL_USER, now)
    user_roles.grant_role(connection, TERMINAL_USER, Role.OWNER, None, now)
    wire(connection, add_chat(connection, TERMINAL, now, name="terminal"), group, now)
    return group


def add_chat(
    connection: Connection, address: Address, now: str, *, name: str | None = None, is_group: bool = False
) -> MessagingGroup:
    """The chat of an address, made if it is not known."""
    known = messaging_groups.at(connection, address.channel_type, address.account_id, address.platform_id)
    return known or messaging_groups.create(
        connection,
        new_id("c"),
        address.channel_type,
        address.account_id,
        address.platform_id,
        now,
        name=name,
        is_group=is_group,
    )


def wire(
    connection: Connection,
    chat: MessagingGroup,
    group: AgentGroup,
    now: str,
    *,
    trigger_rules: str | None = None,
    session_mode: SessionMode = SessionMode.SHARED,
) -> None:
    """Has an agent answer in a chat. Raises IntegrityError where it does already."""
    messaging_group_agents.create(
        connection, new_id("w"), chat.id, group.id, now, trigger_rules=trigger_rules, session_mode=session_mode
    )
