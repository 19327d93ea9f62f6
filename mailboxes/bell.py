"""The bell: one SOCK_SEQPACKET connection a session, over which a byte means "look". It carries no content.

A lost ring costs latency and never a message, because both sides poll. The host makes the socket in a folder that the
sandbox cannot write; end of file means that the other side is gone.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from mailboxes import sockets

RING = b"r"
BEAT = b"b"
"""The runner's sign of life. Any byte counts as one; only RING asks for a look."""

WINDOW_SECONDS = 0.1
_WINDOW_PACKETS = 64
"""Past so many packets in a window the listener rests until its end, so that ringing without end costs the ringer
alone."""


def bind(path: Path, mode: int, group: int | None = None) -> socket.socket:
    """A listening bell socket at `path` (see mailboxes.sockets.bind, which says what it raises)."""
    listener = sockets.bind(path, socket.SOCK_SEQPACKET, mode, group)
    listener.listen(2)
    return listener


class Line:
    """One open connection: rings that way, tells of every packet that comes this way."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._stop_reading: Callable[[], object] = lambda: None

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
        """Calls `heard` for every packet until the other side is gone. It must raise nothing."""
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        window_ends, count = loop.time() + WINDOW_SECONDS, 0
        rest: asyncio.TimerHandle | None = None

        def listen_on() -> None:
            loop.add_reader(self._connection, ready)
            self._stop_reading = lambda: loop.remove_reader(self._connection)

        def ready() -> None:
            nonlocal window_ends, count, rest
            try:
                packet = self._connection.recv(1)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                loop.remove_reader(self._connection)
                if not gone.done():  # its listener may just be cancelled
                    gone.set_result(None)
                return
            heard(packet)
            count += 1
            now = loop.time()
            if now >= window_ends:
                window_ends, count = now + WINDOW_SECONDS, 0
            elif count >= _WINDOW_PACKETS:
                loop.remove_reader(self._connection)
                rest = loop.call_at(window_ends, listen_on)

        listen_on()
        try:
            await gone
        finally:
            self._stop_reading()
            if rest is not None:
                rest.cancel()

    def close(self) -> None:
        """Hangs up."""
        self._stop_reading()
        self._stop_reading = lambda: None  # the number of a closed socket may be another's by now
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
