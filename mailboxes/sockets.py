"""Unix sockets in folders of the host's: bound so that there is no moment in which others could connect."""

import contextlib
import os
import socket
from pathlib import Path

from mailboxes.layout import MAX_SOCKET_PATH


def bind(path: Path, kind: socket.SocketKind, mode: int, group: int | None = None) -> socket.socket:
    """A non-blocking socket at `path`, which does not listen yet; an older one is replaced. Blocks.

    The file takes its first mode from the descriptor, and is closed to everybody else until group and mode are right.
    Raises OSError, and ValueError when the path is longer than a Unix socket's may be.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ValueError(f"the socket path {path} is longer than {MAX_SOCKET_PATH} bytes")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, kind)
    try:
        os.fchmod(bound.fileno(), 0o600)
        bound.bind(os.fspath(path))
        if group is not None:
            os.chown(path, -1, group, follow_symlinks=False)
        path.chmod(mode)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound
