"""The home lock: one host per home, held through flock for as long as the process lives (a kill -9 lets go of it)."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_LOOKS = (0.005, 0.01, 0.02, 0.04)
"""Seconds between tries."""


class HomeTaken(Exception):
    """Another host runs on this home; the text names it and the next step."""


@contextlib.contextmanager
def home_lock(path: Path) -> Iterator[None]:
    """Holds `path` (host.lock, made where missing) until the end of the block. Raises HomeTaken at once when it is
    held.

    The process id in the file is for people: the kernel's lock alone decides. The file stays, so that nobody can lock
    one that has just been unlinked. It is opened without following a link and is not inherited by children.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            _lock(descriptor)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
            process = f"process {holder}" if holder.isdecimal() else "another process"
            raise HomeTaken(
                f"A host already runs on {path.parent} ({process}). "
                "Talk to it with `host chat`, or stop it with `host down`."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Takes the lock; a command that only looks (`holder`) has it for a moment, which is no host. Raises
    BlockingIOError."""
    for pause in (*_LOOKS, None):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pause is None:
                raise
            time.sleep(pause)
        else:
            return


def holder(path: Path) -> int | None:
    """The process id of the host that holds `path`, None where none runs. For people and for waiting, never for
    locking."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdecimal() else 0
    else:
        return None
    finally:
        os.close(descriptor)
