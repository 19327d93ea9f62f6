"""Files that come with messages: fetched by the host before the message is written, into `inbound/files/<row id>/`.

The sandbox sees a file and never an address or a token of the platform. What cannot be fetched is a note in the
message, so that its text is read all the same. Only a session's own messages wait for its files.
"""

import asyncio
import json
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import structlog

from host import event_text
from host import sessions as session_folders
from host.channels.base import Attachment, Channel, FetchingChannel, NotFetched, TooLarge
from host.file_names import safe_name
from host.home import Home
from host.tasks import to_the_end
from host.text import printable, shorten
from host.writers import Routed
from mailboxes.clock import Clock
from mailboxes.crash import crash_at
from mailboxes.ids import is_row_id
from mailboxes.layout import FILES
from mailboxes.media_types import HEAD_BYTES, media_type
from mailboxes.rows import Address, Kind, MessageIn

MAX_FILE_BYTES = 50 * 1024 * 1024
MAX_MESSAGE_BYTES = 100 * 1024 * 1024
MAX_FILES = 20
"""What one message may bring."""

FETCH_SECONDS = 120.0
"""What fetching one file may take, its second tries included: the rest of its chat waits for so long."""

PAUSES = (1.0, 5.0, 20.0)
"""Before the second try and those after it."""

AT_ONCE = 4
"""Files that one session fetches at once."""

_BUFFER = 256 * 1024

T = TypeVar("T")
Write = Callable[[Sequence[MessageIn]], Awaitable[None]]
Tell = Callable[[str, Address, str], Awaitable[None]]
"""Says something to a chat, once per cause: (cause, address, text)."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Here:
    """A file that lies in its message's folder under the name `file`; `name` is what its sender called it."""

    name: str
    type: str
    size: int
    file: str

    def entry(self) -> dict[str, object]:
        """As the message's content has it."""
        return {"name": self.name, "type": self.type, "size": self.size, "file": self.file}


@dataclass(frozen=True, slots=True)
class Missing:
    """A file that is not here, and why. `limit`: it goes over a limit, which its sender wants to know."""

    name: str
    type: str
    reason: str
    limit: bool = False

    def entry(self) -> dict[str, object]:
        """As the message's content has it."""
        return {"name": self.name, "type": self.type, "error": f"not fetched: {self.reason}"}


class Attachments:
    """See the module. `channels` by (channel_type, account_id), as the host keeps them."""

    def __init__(self, home: Home, channels: Mapping[tuple[str, str], Channel], clock: Clock, tell: Tell) -> None:
        self._home = home
        self._channels = channels
        self._clock = clock
        self._tell = tell
        self._running: set[asyncio.Future[_Filled]] = set()
        self._closing = False

    async def put(self, routed: Sequence[Routed], write: Write, provision: Callable[[], Awaitable[None]]) -> None:
        """Writes messages of one session in their order, each once its files are here; what comes before a slow file
        does not wait for it, and an album is written as one. `provision` makes the session's folder where there is
        none.

        Raises what `write` raises, and InterruptedError where the host stops meanwhile: done again, it goes on with the
        files that are missing.
        """
        if any(one.attachments for one in routed):
            await provision()
        few = asyncio.Semaphore(AT_ONCE)
        filling = [asyncio.ensure_future(self._filled(one, few)) for one in routed]
        self._running.update(filling)
        try:
            for run in _runs(routed):
                filled = [await _unless_cancelled(filling[index]) for index in run]
                if any(one.missing for one in filled):
                    await self._tell_limits(filled)
                await write([one.message for one in filled])
        finally:
            for one in filling:
                one.cancel()
            await asyncio.gather(*filling, return_exceptions=True)
            self._running.difference_update(filling)

    def close(self) -> None:
        """Ends every fetch; the messages wait for the next host."""
        self._closing = True
        for one in self._running:
            one.cancel()

    async def _filled(self, routed: Routed, few: asyncio.Semaphore) -> "_Filled":
        message = routed.message
        if not routed.attachments:
            return _Filled(message, ())
        if self._closing:
            raise InterruptedError("the host is stopping")
        folder = await asyncio.to_thread(self._folder_of, routed)
        address = message.address
        channel = self._channels.get((address.channel_type, address.account_id)) if address else None
        gid = session_folders.owner_of(routed.agent_group).gid
        room = _Room(MAX_MESSAGE_BYTES)

        async def one(place: _Place, attachment: Attachment) -> Here | Missing:
            async with few:
                return await self._one(place, attachment, channel, room)

        first = routed.attachments[:MAX_FILES]
        results: list[Here | Missing] = list(
            await asyncio.gather(
                *(one(_Place(folder, number, gid), attachment) for number, attachment in enumerate(first, 1))
            )
        )
        if more := len(routed.attachments) - len(first):
            results.append(Missing(f"{more} more", "", f"a message may bring {MAX_FILES} files at most", limit=True))
        for result in results:
            if isinstance(result, Missing):
                log.warning(
                    "a file was not fetched", session=routed.session.id, message=message.id, reason=result.reason
                )
        missing = tuple(result for result in results if isinstance(result, Missing))
        return _Filled(_with_files(message, results), missing)

    def _folder_of(self, routed: Routed) -> Path:
        session, message_id = routed.session, routed.message.id
        if not is_row_id(message_id):
            raise ValueError(f"{message_id!r} cannot be the id of a message")
        files = session_folders.session_folder(self._home, session.agent_group_id, session.id) / "inbound" / FILES
        folder = files / message_id
        folder.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _share_to_read(handle, session_folders.owner_of(routed.agent_group).gid)
        finally:
            os.close(handle)
        return folder

    async def _one(
        self, place: "_Place", attachment: Attachment, channel: Channel | None, room: "_Room"
    ) -> Here | Missing:
        """One file, fetched, found or given up."""
        shown = shorten(printable(attachment.name), 200)
        declared = shorten(printable(attachment.type), 100)
        if (found := await asyncio.to_thread(place.find, attachment)) is not None:
            return replace(found, name=shown)
        fetching = asyncio.ensure_future(self._tries(place, attachment, channel, room))
        deadline = asyncio.ensure_future(self._clock.sleep(FETCH_SECONDS))
        try:
            await asyncio.wait((fetching, deadline), return_when=asyncio.FIRST_COMPLETED)
            if not fetching.done():
                return Missing(shown, declared, f"it took longer than {FETCH_SECONDS:g} seconds")
            return replace(fetching.result(), name=shown)
        except TooLarge as fault:
            return Missing(shown, declared, str(fault), limit=True)
        except NotFetched as fault:
            return Missing(shown, declared, shorten(printable(str(fault)), 200))
        finally:
            for task in (fetching, deadline):
                task.cancel()
            await asyncio.gather(fetching, deadline, return_exceptions=True)

    async def _tries(self, place: "_Place", attachment: Attachment, channel: Channel | None, room: "_Room") -> Here:
        for pause in PAUSES:
            try:
                return await _fetch(place, attachment, channel, room)
            except NotFetched as fault:
                if fault.permanent:
                    raise
            await self._clock.sleep(pause)
        return await _fetch(place, attachment, channel, room)

    async def _tell_limits(self, filled: Sequence["_Filled"]) -> None:
        """One word for all that went over a limit, to who sent it."""
        over = [(one.message, miss) for one in filled for miss in one.missing if miss.limit]
        if not over or over[0][0].address is None:
            return
        told = "; ".join(f"{miss.name or 'a file'}: {miss.reason}" for _, miss in over[:5])
        rest = f"; and {len(over) - 5} more" if len(over) > 5 else ""
        text = f"Not every file was fetched ({told}{rest}). What you wrote is read; send a smaller file if it matters."
        await self._tell(f"{over[0][0].id} attachments", over[0][0].address, text)


@dataclass(frozen=True, slots=True)
class _Filled:
    message: MessageIn
    missing: tuple[Missing, ...]


def _runs(routed: Sequence[Routed]) -> Iterator[range]:
    """Messages that are written together: a message with files begins a new run, unless it goes on with an album."""
    start = 0
    for index in range(1, len(routed)):
        one, last = routed[index], routed[index - 1]
        if one.attachments and (one.album is None or one.album != last.album):
            yield range(start, index)
            start = index
    yield range(start, len(routed))


async def _unless_cancelled(filling: "asyncio.Future[_Filled]") -> _Filled:
    await asyncio.wait((filling,))
    if filling.cancelled():
        raise InterruptedError("the host is stopping")
    return filling.result()


def _with_files(message: MessageIn, results: Sequence[Here | Missing]) -> MessageIn:
    """The files' entries in the content: under `attachments` in a chat message, whose content is ours; under `files` in
    any other, of which nothing else may change (ledger R028)."""
    content = json.loads(message.content)
    content["attachments" if message.kind == Kind.CHAT else "files"] = [result.entry() for result in results]
    return replace(message, content=event_text.dump(content))


async def _fetch(place: "_Place", attachment: Attachment, channel: object, room: "_Room") -> Here:
    """One try. Raises NotFetched."""
    if not isinstance(channel, FetchingChannel):
        raise NotFetched("its channel is not here, or brings no files")
    limit = min(MAX_FILE_BYTES, room.left)
    if attachment.size is not None and attachment.size > limit:
        raise TooLarge(limit)
    sink = _Sink(place, limit, room)
    try:
        await sink.open()
        await channel.fetch(attachment.ref, sink.write, limit)
        return await sink.finish(attachment)
    except NotFetched:
        raise
    except Exception as error:  # noqa: BLE001  foreign code; its errors may quote a token, so their type is all we say
        log.warning("an adapter failed to fetch a file", adapter=type(channel).__name__, error=type(error).__name__)
        raise NotFetched("the platform did not give it") from None
    finally:
        await sink.close()


@dataclass(slots=True)
class _Room:
    """What the files of one message may still take."""

    left: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the file of a number goes: a folder that only the host can write."""

    folder: Path
    number: int
    gid: int | None

    @property
    def partial(self) -> Path:
        """Its name until all of it is here; no finished file begins with a dot."""
        return self.folder / f".{self.number}.part"

    def find(self, attachment: Attachment) -> Here | None:
        """The file, where an earlier try has brought it."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.startswith(f"{self.number}-") and entry.is_file(follow_symlinks=False):
                    with open(entry.path, "rb") as file:
                        kind = media_type(file.read(HEAD_BYTES), attachment.name, attachment.type)
                    return Here(attachment.name, kind, entry.stat(follow_symlinks=False).st_size, entry.name)
        return None


class _Sink:
    """Takes a file piece by piece and gives it its name when it is whole."""

    def __init__(self, place: _Place, limit: int, room: _Room) -> None:
        self._place = place
        self._limit = limit
        self._room = room
        self._buffer = bytearray()
        self._head = b""
        self._size = 0
        self._handle: int | None = None
        self._over = False

    async def open(self) -> None:
        """Begins. Raises NotFetched."""
        await _on_disk(self._open)

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._place.partial.unlink(missing_ok=True)
        self._handle = os.open(self._place.partial, flags, 0o600)

    async def write(self, data: bytes) -> None:
        """Takes the next piece. Raises TooLarge, NotFetched."""
        self._size += len(data)
        self._room.left -= len(data)
        self._over = self._over or self._size > self._limit or self._room.left < 0
        if self._over:
            raise TooLarge(self._limit)
        self._buffer += data
        if len(self._buffer) >= _BUFFER:
            await _on_disk(self._flush)

    def _flush(self) -> None:
        assert self._handle is not None
        self._head += bytes(self._buffer[: HEAD_BYTES - len(self._head)])
        rest = memoryview(self._buffer)
        while rest:
            rest = rest[os.write(self._handle, rest) :]
        rest.release()
        self._buffer = bytearray()

    async def finish(self, attachment: Attachment) -> Here:
        """All of it is here. Raises TooLarge where the adapter went on after that was said, NotFetched."""
        if self._over:
            raise TooLarge(self._limit)
        return await _on_disk(lambda: self._finish(attachment))

    def _finish(self, attachment: Attachment) -> Here:
        self._flush()
        assert self._handle is not None
        place = self._place
        kind = media_type(self._head, attachment.name, attachment.type)
        name = f"{place.number}-{safe_name(attachment.name, kind)}"
        _share_to_read(self._handle, place.gid)
        os.fsync(self._handle)
        crash_at("before_file_rename")
        place.partial.rename(place.folder / name)
        folder = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        crash_at("after_file_rename")
        size, self._size = self._size, 0  # what stays is not given back to the room
        return Here(attachment.name, kind, size, name)

    async def close(self) -> None:
        """Lets go; what is not whole is gone."""
        with suppress(NotFetched):
            await _on_disk(self._close)

    def _close(self) -> None:
        self._room.left += self._size
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self._place.partial.unlink(missing_ok=True)


async def _on_disk(work: Callable[[], T]) -> T:
    """Work with a file, in a thread and to its end: a handle must not be closed while it is written. Raises
    NotFetched."""
    try:
        return await to_the_end(asyncio.to_thread(work))
    except OSError as error:
        raise NotFetched(f"this host could not keep it ({error.strerror})", permanent=True) from None


def _share_to_read(handle: int, gid: int | None) -> None:
    """The modes of the mailbox's table: the sandbox's group may read, nobody else."""
    folder = stat.S_ISDIR(os.fstat(handle).st_mode)
    if gid is not None:
        os.fchown(handle, -1, gid)
        os.fchmod(handle, 0o750 if folder else 0o640)
    else:
        os.fchmod(handle, 0o700 if folder else 0o600)
