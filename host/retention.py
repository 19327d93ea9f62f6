"""Files of messages go after a while, those that came in and those that were sent; their messages stay.

A file is kept by what refers to it, not by its age alone: while its message waits, is worked on, or has an answer under
way, it stays however old it is. Only what lies in the host's own folders is ever removed.
"""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import structlog

from host import outbound_files
from host.control import Call, ControlServer
from host.home import Home
from host.items import SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from mailboxes.clock import Clock, to_text
from mailboxes.ids import is_row_id
from mailboxes.layout import FILES

KEPT_DAYS = 30

FIRST_SECONDS, EVERY_SECONDS = 600.0, 24 * 3600.0
"""When the host looks: some time after its start, then daily."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Expired:
    """What of one session is past its time."""

    key: SessionRef
    messages: int
    files: int
    size: int

    def row(self) -> dict[str, object]:
        """For the command."""
        return {"session": self.key.session_id, "messages": self.messages, "files": self.files, "bytes": self.size}


class Retention:
    """See the module. `pruned` hears of each session that has lost files."""

    def __init__(self, home: Home, pool: MailboxPool, clock: Clock, pruned: Callable[[SessionRef], None]) -> None:
        self._home = home
        self._pool = pool
        self._clock = clock
        self._pruned = pruned

    def register(self, server: ControlServer) -> None:
        """Adds the method `prune {dry_run}` to the control socket."""
        server.register("prune", self._asked)

    async def run(self) -> None:
        """Prunes daily, for ever."""
        await self._clock.sleep(FIRST_SECONDS)
        while True:
            found = await self.prune(dry_run=False)
            if found:
                log.info("old files were removed", files=sum(one.files for one in found), sessions=len(found))
            await self._clock.sleep(EVERY_SECONDS)

    async def prune(self, *, dry_run: bool) -> list[Expired]:
        """Removes what is past its time, or only finds it. A session that fails is logged and passed over."""
        before = self._clock.now() - timedelta(days=KEPT_DAYS)
        found = []
        for key in await asyncio.to_thread(_with_old_files, self._home, before.timestamp()):
            folder = self._home.session_folder(key.agent_group_id, key.session_id)
            look = _Look(folder, to_text(before), before.timestamp(), dry_run=dry_run)
            try:
                expired = await self._pool.call(key, look)
            except (OSError, sqlite3.Error):
                log.exception("the old files of a session were not removed", session=key.session_id)
                continue
            if expired.files:
                found.append(expired)
                self._pruned(key)
        return found

    async def _asked(self, call: Call) -> object:
        dry_run = call.flag("dry_run")
        found = await self.prune(dry_run=dry_run)
        if not dry_run:
            log.info("old files were removed", files=sum(one.files for one in found), actor=call.actor.name)
        return {
            "removed": not dry_run,
            "kept_days": KEPT_DAYS,
            "files": sum(one.files for one in found),
            "bytes": sum(one.size for one in found),
            "sessions": [one.row() for one in found],
        }


def _with_old_files(home: Home, cutoff: float) -> list[SessionRef]:
    """The sessions that have a folder of files from before the cutoff: of the others no mailbox is opened."""
    found = []
    for agent in _children(home.sessions):
        for session in _children(Path(agent.path)):
            named = is_row_id(agent.name) and is_row_id(session.name)
            if named and any(_is_old(entry, cutoff) for entry in _entries(Path(session.path))):
                found.append(SessionRef(agent.name, session.name))
    return found


def _entries(session_folder: Path) -> Iterator["os.DirEntry[str]"]:
    yield from _children(session_folder / "inbound" / FILES)
    yield from _children(session_folder / outbound_files.SENT)


def _children(folder: Path) -> Iterable["os.DirEntry[str]"]:
    """The folders in one; none where there is no such folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


def _is_old(entry: "os.DirEntry[str]", cutoff: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < cutoff
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class _Look:
    """Finds, and unless `dry_run` removes, what of one session is past its time. For the mailbox's thread: nothing is
    put into the mailbox meanwhile."""

    folder: Path
    before: str
    cutoff: float
    dry_run: bool

    def __call__(self, mailbox: Mailbox) -> Expired:
        messages = files = size = 0
        if mailbox.exists():  # without it nobody can say what refers to a file
            for row_folder in [*self._came(mailbox.db), *self._sent(mailbox.db)]:
                sizes = [entry.lstat().st_size for entry in row_folder.iterdir()]
                messages, files, size = messages + 1, files + len(sizes), size + sum(sizes)
                if not self.dry_run:
                    self._remove(row_folder)
        return Expired(mailbox.key, messages, files, size)

    def _came(self, db: sqlite3.Connection) -> Iterator[Path]:
        for entry in _children(self.folder / "inbound" / FILES):
            if not is_row_id(entry.name) or not _is_old(entry, self.cutoff):
                continue
            row = db.execute(
                "SELECT status IN ('completed', 'failed', 'cancelled') AND coalesce(status_changed, timestamp) < ? "
                "AND NOT EXISTS (SELECT 1 FROM deliveries WHERE in_reply_to = messages_in.id "
                "AND state IN ('queued', 'sending', 'unknown')) FROM messages_in WHERE id = ?",
                (self.before, entry.name),
            ).fetchone()
            if row is None or row[0]:
                yield Path(entry.path)

    def _sent(self, db: sqlite3.Connection) -> Iterator[Path]:
        sent = self.folder / outbound_files.SENT
        old = {entry.name for entry in _children(sent) if _is_old(entry, self.cutoff)}
        for row_id in outbound_files.expired(self.folder, db, self.before):
            if row_id in old:  # what is new and not in the record yet is being taken over
                yield sent / row_id

    def _remove(self, row_folder: Path) -> None:
        if row_folder.parent.name == outbound_files.SENT:
            outbound_files.remove(self.folder, row_folder.name)
        else:
            shutil.rmtree(row_folder)
