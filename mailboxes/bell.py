"""The bell: one SOCK_SEQPACKET connection a session, over which a byte means "look". It carries no content.

A lost ring costs latency and never a message, because both sides poll. The host makes the socket in a folder that the
sandbox cannot write; end of file means that the other side is gone.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

from mailboxes.layout import MAX_SOCKET_PATH

RING = b"r"
BEAT = b"b"
"""The runner's sign of life. Any byte counts as one; only RING asks for a look."""

WINDOW_SECONDS = 0.1
_WINDOW_PACKETS = 64
"""Past so many packets in a window the listener rests until its end, so that ringing without end costs the ringer
alone."""


def bind(path: Path, mode: int, group: int | None = None) -> socket.socket:
    """A listening bell socket at `path` (an older one is replaced). The umask of the host keeps
    others out until the mode is set, and nobody can connect before `listen`.

    Raises ValueError when the path is longer than a Unix socket's may be.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ValueError(f"the socket path {path} is longer than {MAX_SOCKET_PATH} bytes")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(os.fspath(path))
        if group is not None:
            os.chown(path, -1, group, follow_symlinks=False)
        path.chmod(mode)
        listener.listen(2)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


class Line:
    """One open connection: rings that way, tells of every packet that comes this way."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection

    def ring(self, what: bytes = RING) -> bool:
        """Sends one byte without waiting. False when the other side is gone; a full queue is a ring already on its
        way."""
        try:
            self._connection.send(what, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    async def listen(self, heard: Callable[[bytes], None]) -> None:
        """Calls `heard` for every packet until the other side is gone."""
        loop = asyncio.get_running_loop()
        window_ends, count = loop.time() + WINDOW_SECONDS, 0
        while True:
            try:
                packet = await loop.sock_recv(self._connection, 1)
            except OSError:
                return
            if not packet:
                return
            heard(packet)
            count += 1
            now = loop.time()
            if now < window_ends and count >= _WINDOW_PACKETS:
                await asyncio.sleep(window_ends - now)
            if now >= window_ends or count >= _WINDOW_PACKETS:
                window_ends, count = loop.time() + WINDOW_SECONDS, 0

    def close(self) -> None:
        """Hangs up."""
        self._connection.close()


async def connect(path: Path) -> Line:
    """The runner's end. Raises OSError while no host listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, os.fspath(path))
    except BaseException:
        connection.close()
        raise
    return Line(connection)
