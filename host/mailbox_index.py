"""What every mailbox holds that a start and `status` ask for, known without opening it.

Opening a thousand databases takes half a second and more, asking for a thousand files' times and sizes a few
milliseconds. So what was read of an inbound.db counts for as long as the file stays as it was. The running host keeps
the index in memory; an orderly stop leaves it in `<home>/mailboxes.json` for the next start, which takes it away. After
any other end every mailbox is read once. The file may be deleted at any time.

Only files are looked at here, and only through SQLite or stat: closing any other handle of a database file would drop
the locks that this process holds on it.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote

from host.home import Home
from host.undelivered import BUSY_SECONDS, UNDELIVERED
from mailboxes.layout import INBOUND_DB

SETTLED_NANOSECONDS = 2_000_000_000
"""A file that was written less than so long ago may be written again within the same tick of its time stamp."""

_SHAPE = 1
"""Of the file, and of what its numbers mean; one of another shape counts as none."""


class Mark(NamedTuple):
    """What stat says of a file: while it stays the same, nobody has written."""

    modified: int
    size: int
    inode: int


class Held(NamedTuple):
    """What an inbound.db holds. `mark` is None where it was read too soon after a write to be believed again.

    undelivered  what was said and has not arrived, the failed included
    unfinished   something of it is still to be delivered or answered: the host has to take it up
    due          when a message wants a turn: canonical text, "" for at once, None for never
    """

    mark: Mark | None
    undelivered: int
    unfinished: bool
    due: str | None


Read = Callable[[str, str, str], tuple[int, bool, str | None]]
"""Reads the inbound.db of (agent group id, session id, path): undelivered, unfinished, due. Raises sqlite3.Error."""


class MailboxIndex:
    """See the module. Sessions are named (agent group id, session id). Blocks; any thread may ask."""

    def __init__(self, home: Home, read: Read) -> None:
        self._sessions = str(home.sessions)
        self._file = home.root / "mailboxes.json"
        self._read = read
        self._known: dict[tuple[str, str], Held] = {}
        self._looking = threading.Lock()

    def load(self) -> None:
        """Takes up what an orderly stop left; nothing where none did."""
        try:
            saved = json.loads(self._file.read_bytes())
            if saved["shape"] == _SHAPE:
                self._known = {_name(text): _held(row) for text, row in saved["mailboxes"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._known = {}  # every mailbox is read

    def take(self) -> None:
        """`load` at a start, which takes the file away: it speaks of a home on which no host has run since. A power cut
        in our time can keep a write to a mailbox and lose the time of it, which is all that a look would go by."""
        self.load()
        self._file.unlink(missing_ok=True)
        self._sync_folder()

    def save(self) -> None:
        """Leaves what is known for the next start, and for `status` until then. Raises OSError."""
        with self._looking:
            rows = {"/".join(name): held for name, held in self._known.items() if held.mark is not None}
        building = self._file.with_suffix(".new")
        with building.open("w", encoding="utf-8") as file:
            json.dump({"shape": _SHAPE, "mailboxes": rows}, file)
            file.flush()
            os.fsync(file.fileno())
        building.replace(self._file)
        self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def look(self, sessions: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Held | None]:
        """What each of these mailboxes holds; None for one that is not there, that its journal does not show as it is,
        or that cannot be read now."""
        with self._looking:
            return dict(self._look(sessions))

    def _look(self, sessions: Iterable[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], Held | None]]:
        for name in sessions:
            path = os.path.join(self._sessions, *name, "inbound", INBOUND_DB)
            mark = _mark(path)
            known = self._known.get(name)
            if mark is None or os.path.exists(f"{path}-journal"):
                yield name, None
            elif known is not None and known.mark == mark:
                yield name, known
            else:
                yield name, self._look_again(name, path, mark)

    def _look_again(self, name: tuple[str, str], path: str, mark: Mark) -> Held | None:
        # File times are the machine's, so this is no business of the injected clock.
        settled = 0 <= mark.modified <= time.time_ns() - SETTLED_NANOSECONDS
        try:
            held = Held(mark if settled else None, *self._read(*name, path))
        except (sqlite3.Error, OSError):
            return None
        self._known[name] = held
        return held

    def undelivered(self, sessions: Iterable[tuple[str, str]]) -> int:
        """How many messages of these sessions have not arrived; of a mailbox that cannot be read now as many as it had
        last."""
        before = dict(self._known)
        found = self.look(sessions).items()
        held = (one or before.get(name) for name, one in found)
        return sum(one.undelivered for one in held if one is not None)


def _mark(path: str) -> Mark | None:
    """None where there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Mark(status.st_mtime_ns, status.st_size, status.st_ino)


def _name(text: str) -> tuple[str, str]:
    group, session = text.split("/")
    return group, session


def _held(row: list[object]) -> Held:
    """From JSON. Raises ValueError, TypeError."""
    mark, undelivered, unfinished, due = row
    if not isinstance(mark, list) or not isinstance(undelivered, int) or not isinstance(due, str | None):
        raise TypeError("no row of ours")
    return Held(Mark(*mark), undelivered, unfinished is not False, due)


def count_only(_group: str, _session: str, path: str) -> tuple[int, bool, str | None]:
    """The Read of a command that runs without a host: what it does not need counts as unknown, and it saves nothing."""
    statement = f"SELECT COUNT(*) FROM deliveries WHERE {UNDELIVERED}"  # noqa: S608  our own words
    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    try:
        return int(connection.execute(statement).fetchone()[0]), True, None
    finally:
        connection.close()
