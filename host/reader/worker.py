"""The worker process of the reader: ``python -I worker.py`` with one end of a socket pair as its stdin.

It answers requests (REQUEST header, then the image) with a length and JSON, one at a time, until the socket ends. It
can open no file, write none and take little memory; where the host is root, it becomes nobody.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sqlite3
import sys
from pathlib import Path

# Isolated mode knows no PYTHONPATH; the packages lie beside each other in a clone and in an installed tree alike.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from host.reader.examine import RefusedFile, examine, prepare
from host.reader.values import READY, REPLY, REQUEST
from mailboxes.limits import MAX_SNAPSHOT_BYTES

_MEMORY_BYTES = 256 * 1024 * 1024
_NOBODY = 65534
_ALARM_SECONDS = 5.0
"""The kernel's own deadline for one request, for the case that the host died and nobody is left to kill us."""


def _confine() -> None:
    for limit, value in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 3),
    ):
        resource.setrlimit(limit, (value, value))
    if os.geteuid() == 0:
        # In a user namespace without that id we stay who we are: root of nothing but the namespace.
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _receive(channel: socket.socket, count: int) -> bytearray | None:
    """Exactly so many bytes; None at the end of the stream."""
    buffer = bytearray(count)
    view, have = memoryview(buffer), 0
    while have < count:
        got = channel.recv_into(view[have:])
        if not got:
            return None
        have += got
    return buffer


def _answer(image: bytearray, after_seq: int, prepared: sqlite3.Connection) -> bytes:
    try:
        reply = examine(image, after_seq, prepared)
    except RefusedFile as error:
        reply = {"refused": ascii(str(error))[1:-1][:500]}
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()


def main() -> None:
    """Serves until the host lets go of its end."""
    channel = socket.socket(fileno=0)
    _confine()
    gc.freeze()  # no collection during a read need look at what was imported
    prepared = prepare()
    channel.sendall(READY)
    while header := _receive(channel, REQUEST.size):
        after_seq, length = REQUEST.unpack(header)
        if length > MAX_SNAPSHOT_BYTES or (image := _receive(channel, length)) is None:
            return
        signal.setitimer(signal.ITIMER_REAL, _ALARM_SECONDS)
        reply = _answer(image, after_seq, prepared)
        channel.sendall(REPLY.pack(len(reply)) + reply)
        signal.setitimer(signal.ITIMER_REAL, 0)
        prepared = prepare()


if __name__ == "__main__":
    main()
