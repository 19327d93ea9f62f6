"""Files of this machine that somebody at a terminal sends: named by path, read by the host when the message is written.

Whoever may use the control socket is the owner (or root), so any path of theirs will do; still only regular files are
read, and a name is never taken for a path by anybody else.
"""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable

from host.channels.base import Attachment, NotFetched, TooLarge
from host.failure import Code, Failure

MAX_PATHS = 100

_PIECE = 256 * 1024


def attachments_of(paths: object) -> tuple[Attachment, ...]:
    """The files behind a list of absolute paths, as they are now. Raises Failure, but not for one that is gone: the
    message may be one that is said again after a host took it and died. Blocks."""
    if not isinstance(paths, list) or len(paths) > MAX_PATHS:
        raise Failure(Code.USAGE, f"files must be a list of at most {MAX_PATHS} absolute paths.")
    return tuple(_attachment(path) for path in paths)


def _attachment(path: object) -> Attachment:
    if not isinstance(path, str) or not os.path.isabs(path) or "\0" in path:
        raise Failure(Code.USAGE, "files must be a list of absolute paths.")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return Attachment(os.path.basename(path), path)
    except OSError as error:
        raise Failure(Code.NOT_FOUND, f"The file {path} cannot be sent: {error.strerror}.") from None
    if not stat.S_ISREG(status.st_mode):
        raise Failure(Code.USAGE, f"{path} is no file that can be sent.", "Name one file; pack a folder first.")
    return Attachment(os.path.basename(path), path, size=status.st_size)


async def read(path: str, write: Callable[[bytes], Awaitable[None]], limit: int) -> None:
    """FetchingChannel.fetch for a path."""
    try:
        handle = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotFetched(f"it cannot be read ({error.strerror})", permanent=True) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise NotFetched("it is no regular file", permanent=True)
        if status.st_size > limit:
            raise TooLarge(limit)
        while piece := await asyncio.to_thread(os.read, handle, _PIECE):
            await write(piece)
    finally:
        os.close(handle)
