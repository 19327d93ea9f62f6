"""Files that a session sends: copied out of its reach before its row is acted on, and kept in `sent/` of its folder.

    sent/<row id>/<name>    the files, as the platform gets them
    sent/<row id>.json      what they are: name, size, type, SHA-256

A sandbox never sees `sent/`, so what is delivered, tried again or looked at later is what was taken over. Nothing is
ever unlinked in a folder that a sandbox can write: the runner removes its own files once their row was taken.
"""

import asyncio
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from host.channels.base import SentFile
from host.home import Home
from host.items import SessionRef
from host.reader import Snapshot
from host.text import printable, shorten
from host.untrusted import FileRefused, FileTooLarge, copy_sent_file
from mailboxes.crash import crash_at
from mailboxes.ids import is_row_id
from mailboxes.media_types import media_type
from mailboxes.rows import Kind, MessageOut

SENT = "sent"

MAX_FILE_BYTES = 50 * 1024 * 1024
MAX_ROW_BYTES = 100 * 1024 * 1024
MAX_ROW_FILES = 20
MAX_SESSION_BYTES = 2 * 1024 * 1024 * 1024
"""What one session may have in `sent/`: it shrinks as `host prune` removes what is older than its retention."""

READING_BYTES = MAX_ROW_BYTES
"""Where the files of one reading come to so much, the rest of the reading waits for the next one."""

MAX_NAME_BYTES = 200
COPIERS = 2
"""Rows that are copied at once; each session has one of them at most, and they take turns row by row."""


@dataclass(frozen=True, slots=True)
class Copies:
    """What became of the files of a reading. `snapshot` may be shorter than it was: the next one brings the rest."""

    snapshot: Snapshot
    refused: dict[str, str]
    """Row id -> why its files are not taken, a sentence for the agent."""
    spent_seconds: float


class OutboundFiles:
    """Copies for every session; one reading of a session at a time."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._turn = asyncio.Semaphore(COPIERS)
        self._kept: dict[SessionRef, int] = {}

    async def take(self, key: SessionRef, snapshot: Snapshot, new: Iterable[MessageOut]) -> Copies:
        """Copies the files of the `new` rows of a snapshot, in order. Raises OSError where the host's disk is at
        fault."""
        folder = self._home.session_folder(key.agent_group_id, key.session_id)
        copies, copied = Copies(snapshot, {}, 0.0), 0
        for row in new:
            if copied >= READING_BYTES:
                return replace(copies, snapshot=_up_to(snapshot, row))
            room = MAX_SESSION_BYTES - await self._kept_bytes(key, folder)
            async with self._turn:
                size, refusal, spent = await asyncio.to_thread(_take_row, folder, row, room)
            copied += size
            self._kept[key] += size
            copies = replace(copies, spent_seconds=copies.spent_seconds + spent)
            if refusal is not None:
                copies.refused[row.id] = refusal
        return copies

    async def _kept_bytes(self, key: SessionRef, folder: Path) -> int:
        if key not in self._kept:
            self._kept[key] = await asyncio.to_thread(kept_bytes, folder)
        return self._kept[key]

    def forget(self, key: SessionRef) -> None:
        """What a session has in `sent/` is counted again when it next sends a file."""
        self._kept.pop(key, None)


def names_of(row: MessageOut) -> list[object]:
    """What a row's content lists under `files`; a system row sends none."""
    if row.kind == Kind.SYSTEM or '"files"' not in row.content:
        return []
    files = json.loads(row.content).get("files")
    return files if isinstance(files, list) else []


def files_of(session_folder: Path, mailbox: sqlite3.Connection, row_id: str) -> tuple[SentFile, ...]:
    """The files that go with a delivery: its own, or of what recurs those of the first time. Blocks."""
    row = mailbox.execute(
        "SELECT coalesce((SELECT first.id FROM deliveries first WHERE first.series_id = d.series_id "
        "ORDER BY first.rowid LIMIT 1), d.id) FROM deliveries d WHERE d.id = ?",
        (row_id,),
    ).fetchone()
    return sent_files(session_folder, row[0]) if row is not None else ()


def sent_files(session_folder: Path, row_id: str) -> tuple[SentFile, ...]:
    """The files of a row that was taken over, in the order of its content; none where they were pruned. Blocks."""
    folder = session_folder / SENT
    try:
        listed = json.loads((folder / f"{row_id}.json").read_bytes())
    except FileNotFoundError:
        return ()
    files = (SentFile(path=folder / row_id / one["name"], **one) for one in listed)
    return tuple(file for file in files if file.path.exists())


def kept_bytes(session_folder: Path) -> int:
    """What all files in `sent/` take, by their records. Blocks."""
    records = (session_folder / SENT).glob("*.json")
    return sum(one["size"] for record in records for one in json.loads(record.read_bytes()))


def expired(session_folder: Path, mailbox: sqlite3.Connection, before: str) -> list[str]:
    """The rows whose files nobody needs any more: delivered, refused or cancelled before that time (canonical text), or
    never taken over. What may still be sent (a dead letter, the next time of what recurs) keeps its files, however old.
    Blocks.

    `mailbox` is the session's inbound.db; no reading of the session may be going on.
    """
    found = []
    for entry in sorted({entry.name.removesuffix(".json") for entry in (session_folder / SENT).glob("*")}):
        row = mailbox.execute(
            "SELECT state IN ('sent', 'cancelled') OR (state = 'failed' AND attempts + unknown_count = 0) AS settled, "
            "coalesce(state_changed, timestamp) < ? AND NOT EXISTS (SELECT 1 FROM deliveries next WHERE "
            "next.series_id = deliveries.series_id AND next.state IN ('queued', 'sending', 'unknown')) AS old "
            "FROM deliveries WHERE id = ?",
            (before, entry),
        ).fetchone()
        if row is None or (row[0] and row[1]):
            found.append(entry)
    return found


def remove(session_folder: Path, row_id: str) -> int:
    """Removes the files of one row; returns their bytes. Blocks."""
    folder = session_folder / SENT
    size = sum(file.size for file in sent_files(session_folder, row_id))
    shutil.rmtree(folder / row_id, ignore_errors=True)
    (folder / f"{row_id}.json").unlink(missing_ok=True)
    return size


def _up_to(snapshot: Snapshot, row: MessageOut) -> Snapshot:
    """What lies before a row: the host reads on from there."""
    rows = tuple(one for one in snapshot.rows if one.seq < row.seq)
    bad = tuple(one for one in snapshot.bad_rows if one.seq is None or one.seq < row.seq)
    return replace(snapshot, rows=rows, bad_rows=bad, more=True)


def _take_row(session_folder: Path, row: MessageOut, room: int) -> tuple[int, str | None, float]:
    """The bytes that were copied, why the files are refused, and the processor time that it took."""
    began = time.thread_time()
    try:
        names = _checked(row)
        size, refusal = _copy_all(session_folder, row.id, names, room), None
    except FileRefused as fault:
        size, refusal = 0, f"Nothing was sent: {fault}."
    return size, refusal, time.thread_time() - began


def _checked(row: MessageOut) -> list[str]:
    names = names_of(row)
    if not is_row_id(row.id):
        raise FileRefused("its row has an id that cannot name a folder")
    if len(names) > MAX_ROW_FILES:
        raise FileRefused(f"a message may carry {MAX_ROW_FILES} files at most")
    checked = [name for name in names if isinstance(name, str) and is_file_name(name)]
    if len(checked) < len(names):
        bad = next(name for name in names if not (isinstance(name, str) and is_file_name(name)))
        raise FileRefused(f"{shorten(printable(str(bad)), 80)!r} is no plain file name")
    return list(dict.fromkeys(checked))


def is_file_name(name: str) -> bool:
    """Whether a name is one component of a path, and reads as what it is: no separator, nothing that hides or reorders,
    at most MAX_NAME_BYTES of UTF-8."""
    plain = name not in {"", ".", ".."} and not set(name) & set("/\\") and printable(name) == name
    return plain and len(name.encode()) <= MAX_NAME_BYTES


def _copy_all(session_folder: Path, row_id: str, names: Sequence[str], room: int) -> int:
    """Copies to a folder of another name first: `sent/<row id>` is whole or not there."""
    kept = session_folder / SENT
    kept.mkdir(mode=0o700, exist_ok=True)
    building = kept / f".{row_id}.new"
    for left in (building, kept / row_id):  # by a host that died here, before the row was committed
        shutil.rmtree(left, ignore_errors=True)
    building.mkdir(mode=0o700)
    try:
        files = _copy_each(session_folder, row_id, names, building, room)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    record = kept / f".{row_id}.json.new"
    with record.open("w") as file:
        json.dump([_record_of(one) for one in files], file, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    crash_at("before_files_rename")
    building.rename(kept / row_id)
    record.rename(kept / f"{row_id}.json")
    _sync(kept / row_id)
    _sync(kept)
    return sum(one.size for one in files)


def _copy_each(session_folder: Path, row_id: str, names: Sequence[str], building: Path, room: int) -> list[SentFile]:
    files: list[SentFile] = []
    left = MAX_ROW_BYTES
    for name in names:
        limit, whose = min(
            (MAX_FILE_BYTES, "a file may have"),
            (left, "of what the files of one message may have together, there is left"),
            (room, "of what a session's files may take until they are pruned, there is left"),
        )
        try:
            copied = copy_sent_file(session_folder, row_id, name, building / name, limit)
        except FileTooLarge:
            reason = f"it is too large ({whose} {max(limit, 0) / 2**20:.4g} MB)"
            raise FileRefused(f"the file {name!r} is not taken: {reason}") from None
        except FileRefused as fault:
            raise FileRefused(f"the file {name!r} is not taken: {fault}") from None
        left -= copied.size
        room -= copied.size
        files.append(SentFile(name, building / name, copied.size, media_type(copied.head, name), copied.sha256))
    return files


def _record_of(file: SentFile) -> dict[str, object]:
    values = asdict(file)
    del values["path"]
    return values


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
