"""The only code of the host that touches what a sandbox can write: outbound/, state/ and home/.

Everything goes through directory handles; no link is followed, nothing but a regular file with one name is read, every
size has a cap. Walking a tree happens in a child process with a deadline. The session's own folder belongs to the host:
no sandbox can write in it, so that renaming `outbound` there is safe.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mailboxes.layout import FILES, OUTBOUND_DB, OUTBOUND_LOCK
from mailboxes.limits import MAX_SNAPSHOT_BYTES
from mailboxes.media_types import HEAD_BYTES
from mailboxes.schema import PAGE_SIZE, masked_page1, outbound_template

OUTBOUND = "outbound"

KEPT_VARIABLES = ("LD_LIBRARY_PATH",)
"""All that a worker process gets to see of the host's environment, which holds secrets."""

KEPT_ASIDE = 3
_TRIES = 5
_PAUSE_SECONDS = 0.001
_COUNTER = slice(24, 28)
_JOURNAL = f"{OUTBOUND_DB}-journal"
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_COPY_BYTES = 256 * 1024
_TREE_WORKER = Path(__file__).with_name("reader") / "tree_worker.py"

_ITS_FAULT = {
    errno.ENOENT: "is missing",
    errno.ELOOP: "is a link",
    errno.ENOTDIR: "is a link or no folder",
    errno.EISDIR: "is a folder",
    errno.ENXIO: "is no regular file",
    errno.ENODEV: "is no regular file",
    errno.EACCES: "may not be read",
    errno.EPERM: "may not be read",
}
"""What a sandbox can bring about. Any other error (no descriptors left, a bad disk) is the host's and raised."""


class TornSnapshot(Exception):
    """The runner was writing each time we looked: try again at the next ring or poll."""


class JournalActive(TornSnapshot):
    """A journal with content lies beside the file: the runner is in the middle of a commit, or died in one."""


class BadFile(Exception):
    """This outbound/ can never be read; the text is the reason. The caller sets it aside and makes a fresh one."""


class FileRefused(Exception):
    """A file that a session wants to send is not taken; the text says why, as the end of a sentence."""


class FileTooLarge(FileRefused):
    """A file that a session wants to send is larger than the caller takes."""


class TreeNotDone(Exception):
    """A tree could not be measured or removed (in time); the text names it and the reason."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied: its size, its SHA-256 in hexadecimal digits, its first HEAD_BYTES bytes."""

    size: int
    sha256: str
    head: bytes


@dataclass(frozen=True, slots=True)
class Size:
    """What a tree takes: bytes on the disk, and how many files and folders. If it is not `complete`, at least so much
    (the deadline passed, or folders lie too deep to be worth a look)."""

    bytes: int
    entries: int
    complete: bool


def read_outbound(folder: Path) -> bytes:
    """One whole image of outbound.db in `folder` (at most MAX_SNAPSHOT_BYTES), never torn by a commit of the runner's.

    Blocks for a few milliseconds at most. Raises TornSnapshot, JournalActive, BadFile; OSError for the host's own.
    """
    handle = _open(folder, _OPEN_FOLDER, OUTBOUND)
    try:
        for tries in range(_TRIES):
            if tries:
                time.sleep(_PAUSE_SECONDS)
            try:
                return _snapshot(handle)
            except TornSnapshot as error:
                failure = error
        raise failure
    finally:
        os.close(handle)


def needs_new_outbound(folder: Path) -> bool:
    """Whether outbound.db in `folder` has another schema than today's: such a buffer is drained, then made afresh.

    Raises BadFile where it cannot even be looked at.
    """
    handle = _open(folder, _OPEN_FOLDER, OUTBOUND)
    try:
        database = _open_database(handle)
        try:
            page = os.pread(database, PAGE_SIZE, 0)
        finally:
            os.close(database)
    finally:
        os.close(handle)
    return masked_page1(page) != masked_page1(outbound_template())


def _open(path: Path | str, flags: int, name: str, folder: int | None = None) -> int:
    try:
        return os.open(path, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in _ITS_FAULT:
            raise BadFile(f"{name} {_ITS_FAULT[error.errno]}") from error
        raise


def _open_database(folder: int) -> int:
    database = _open(OUTBOUND_DB, _OPEN_FILE, OUTBOUND_DB, folder)
    try:
        status = os.fstat(database)
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(f"{OUTBOUND_DB} is no regular file")
        if status.st_nlink == 0:
            raise TornSnapshot(f"{OUTBOUND_DB} was replaced while it was opened")
        if status.st_nlink > 1:
            raise BadFile(f"{OUTBOUND_DB} has another name elsewhere (a hard link)")
        if status.st_size > MAX_SNAPSHOT_BYTES:
            raise BadFile(f"{OUTBOUND_DB} is larger than {MAX_SNAPSHOT_BYTES} bytes")
        if status.st_size < PAGE_SIZE:
            raise BadFile(f"{OUTBOUND_DB} is shorter than one page")
    except BaseException:
        os.close(database)
        raise
    return database


def _snapshot(folder: int) -> bytes:
    """The settled order of docs/architecture.md: each other one that was tried accepted torn snapshots under load."""
    database = _open_database(folder)
    try:
        before = _counter(database)
        _refuse_active_journal(folder)
        image = _read_all(database)
        _refuse_active_journal(folder)
        if not before == image[_COUNTER] == _counter(database):
            raise TornSnapshot(f"{OUTBOUND_DB} was written while it was read")
        return image
    finally:
        os.close(database)


def _counter(database: int) -> bytes:
    return os.pread(database, _COUNTER.stop - _COUNTER.start, _COUNTER.start)


def _read_all(database: int) -> bytes:
    image = bytearray()
    # To the end of the file and not to the size seen before: a commit in between may have made it longer.
    while chunk := os.pread(database, MAX_SNAPSHOT_BYTES + 1 - len(image), len(image)):
        image += chunk
    if len(image) > MAX_SNAPSHOT_BYTES:
        raise BadFile(f"{OUTBOUND_DB} is larger than {MAX_SNAPSHOT_BYTES} bytes")
    return bytes(image)


def _refuse_active_journal(folder: int) -> None:
    try:
        journal = os.open(_JOURNAL, _OPEN_FILE, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in _ITS_FAULT:
            raise BadFile(f"{_JOURNAL} {_ITS_FAULT[error.errno]}") from error
        raise
    try:
        status = os.fstat(journal)
        if not stat.S_ISREG(status.st_mode):
            raise BadFile(f"{_JOURNAL} is no regular file")
        if status.st_nlink > 1:
            raise BadFile(f"{_JOURNAL} has another name elsewhere (a hard link)")
        # No name left: the commit that owned it ended after we opened it, which is the same as absent.
        if status.st_nlink and os.pread(journal, 1, 0) not in (b"", b"\0"):
            raise JournalActive(f"{_JOURNAL} is active")
    finally:
        os.close(journal)


def copy_sent_file(session_folder: Path, row_id: str, name: str, target: Path, limit: int) -> Copied:
    """Copies outbound/files/<row id>/<name> to `target`, a new file in a folder that only the host writes.

    `row_id` and `name` are single components of a path, which the caller has checked; at most `limit` bytes are taken.
    Blocks for as long as the disk takes. Raises FileRefused for what a sandbox can bring about (then `target` may be
    there in part), OSError for the host's own.
    """
    with contextlib.ExitStack() as handles:

        def enter(path: Path | str, flags: int, folder: int | None = None) -> int:
            try:
                handle = os.open(path, flags, dir_fd=folder)
            except OSError as error:
                if error.errno in _ITS_FAULT:
                    raise FileRefused(f"it {_ITS_FAULT[error.errno]}") from None
                raise
            handles.callback(os.close, handle)
            return handle

        folder = enter(session_folder / OUTBOUND, _OPEN_FOLDER)
        for inner in (FILES, row_id):
            folder = enter(inner, _OPEN_FOLDER, folder)
        source = enter(name, _OPEN_FILE, folder)
        before = os.fstat(source)
        _refuse_file(before, limit)
        into = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        handles.callback(os.close, into)
        copied = _copy(source, into, before.st_size)
        after = os.fstat(source)
        if (copied.size, after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
            raise FileRefused("it was written while it was taken")
        os.fsync(into)
        return copied


def _refuse_file(status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FileRefused("it is no regular file")
    if status.st_nlink != 1:
        raise FileRefused("it has another name elsewhere (a hard link)")
    if status.st_size > limit:
        raise FileTooLarge(f"it is larger than {limit} bytes")


def _copy(source: int, into: int, most: int) -> Copied:
    """To the end of the source, or one byte beyond `most`: a file that grows is not followed."""
    digest, size, head = hashlib.sha256(), 0, b""
    while chunk := os.read(source, min(_COPY_BYTES, most + 1 - size)):
        head += chunk[: HEAD_BYTES - len(head)]
        digest.update(chunk)
        size += len(chunk)
        if size > most:
            break
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(into, rest) :]
    return Copied(size, digest.hexdigest(), head)


def provision_outbound(session_folder: Path, uid: int | None, gid: int | None) -> Path:
    """The session's outbound/ with an empty outbound.db, made where there is none, under another name first.

    `uid` and `gid` own it (None: our own user). Returns its path.
    """
    outbound = session_folder / OUTBOUND
    if os.path.lexists(outbound):
        return outbound
    building = session_folder / f".{OUTBOUND}.new"
    if building.exists():  # left by a host that died here; no sandbox ever saw it
        shutil.rmtree(building)
    building.mkdir(mode=0o700)
    files = building / FILES
    files.mkdir(mode=0o700)
    made = [files]
    for name, content in ((OUTBOUND_DB, outbound_template()), (OUTBOUND_LOCK, b"")):
        made.append(building / name)
        with made[-1].open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    for path in (*made, building):
        _give(path, uid, gid)
    building.rename(outbound)
    return outbound


def provision_folder(path: Path, uid: int | None, gid: int | None) -> None:
    """Makes the folder state/ or home/ where there is none, 0700 and owned by `uid`:`gid` (None: our own user).

    What exists keeps all but a wrong owner: an agent's id never changes, so that is a crash between two steps.
    Raises BadFile where a link or a file lies in its place.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        handle = _open(path, _OPEN_FOLDER, path.name)
        try:
            status = os.fstat(handle)
            if uid is not None and gid is not None and (status.st_uid, status.st_gid) != (uid, gid):
                os.fchown(handle, uid, gid)
        finally:
            os.close(handle)
        return
    _give(path, uid, gid)


def _give(path: Path, uid: int | None, gid: int | None) -> None:
    if uid is not None and gid is not None:
        os.chown(path, uid, gid, follow_symlinks=False)


def replace_outbound(session_folder: Path, now: datetime, uid: int | None, gid: int | None) -> None:
    """Sets a bad outbound/ aside and makes a fresh one. The newest KEPT_ASIDE of a session are kept to be looked at."""
    set_aside_outbound(session_folder, f"{now:%Y%m%dT%H%M%S}")
    provision_outbound(session_folder, uid, gid)
    aside = sorted(session_folder.glob(f"{OUTBOUND}.bad-*"), key=lambda path: path.lstat().st_ctime_ns)
    for path in aside[:-KEPT_ASIDE]:
        with contextlib.suppress(TreeNotDone):  # the next one goes on with it
            remove_tree(path)


def set_aside_outbound(session_folder: Path, stamp: str) -> Path | None:
    """Renames a bad outbound/ to ``outbound.bad-<stamp>`` and returns that path; None where there is none.

    `stamp` is any text that may stand in a file name; a number is added to one that is taken.
    """
    aside = session_folder / f"{OUTBOUND}.bad-{stamp}"
    for number in itertools.count(2):
        if not os.path.lexists(aside):
            break
        aside = session_folder / f"{OUTBOUND}.bad-{stamp}-{number}"
    try:
        (session_folder / OUTBOUND).rename(aside)
    except FileNotFoundError:
        return None
    return aside


def measure(path: Path, deadline_seconds: float = 10.0) -> Size:
    """What the tree at `path` takes, counted by a child process; nothing for a path that is not there.

    Blocks. Raises TreeNotDone when the child failed.
    """
    answer = json.loads(_tree_worker("measure", path, deadline_seconds))
    return Size(int(answer["bytes"]), int(answer["entries"]), bool(answer["complete"]))


def remove_tree(path: Path, deadline_seconds: float = 60.0) -> None:
    """Removes the tree at `path` (of a link, the link and not what it names) in a child process; it may be gone.

    Blocks. Raises TreeNotDone when it was not all removed in time; calling again goes on.
    """
    _tree_worker("remove", path, deadline_seconds)


def _tree_worker(task: str, path: Path, deadline_seconds: float) -> str:
    """Runs the child. Its own deadline lets it end in order; ours, a second later, is for one that the kernel holds."""
    command = [sys.executable, "-I", str(_TREE_WORKER), task, str(path), str(deadline_seconds)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
            capture_output=True,
            text=True,
            timeout=deadline_seconds + 1,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TreeNotDone(f"{task} of {path} took longer than {deadline_seconds} s") from error
    if done.returncode:
        raise TreeNotDone(f"{task} of {path} failed: {done.stderr.strip()[-500:]!a}")
    return done.stdout
