"""The terminal as a platform: people of this machine who talk over the control socket (`host chat`).

One chat per agent: `platform_id` is ``cli`` for the first agent and ``cli-<folder>`` for another. Any number of
terminals may be attached to a chat and all of them see it. The sender is ``terminal:cli-user``; the OS user, by the
kernel's word, is the display name.

Methods on the control socket
    chat.attach {chat, waiting: [event keys]}   a stream of events, each an object with one of the types below
    chat.send   {chat, text, key, files: [absolute paths]}   → {event_key}; the same key again is the same message
    chat.ack    {chat, delivery_id, chunk}      the chunk was shown
Events
    {type: "text", delivery_id, chunk, last, text, notice, asks}   to be acknowledged; a receiver drops a (delivery_id,
    chunk) that it has shown. `asks`: a question stands open with it
    {type: "turn", active}  {type: "typing", active}
    {type: "progress", text}  {type: "remark", text}     how far the agent is ("" clears it); a short line, shown once
    {type: "settled", event_key, failed, reason}     all that this message brought about was delivered; it may come
    twice. `reason`: why it went nowhere, "" where it went somewhere
"""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable

import structlog

from host.channels import local_files
from host.channels.base import (
    Accept,
    Capabilities,
    Health,
    InboundEvent,
    Manifest,
    NobodyAttached,
    NotTaken,
    OutcomeUnknown,
    Outgoing,
    Sender,
    SentFile,
)
from host.control import Call, ControlServer
from host.failure import Code, Failure
from mailboxes.limits import MAX_CONTENT_BYTES
from mailboxes.rows import Address

CHANNEL_TYPE = "terminal"
ACCOUNT_ID = "local"
FIRST_CHAT = "cli"

ACK_SECONDS = 5.0
"""How long a terminal may take to show a chunk before its outcome counts as unknown."""

MAX_TEXT = 64_000
"""One chunk, in characters: escaped as JSON it stays below the control socket's longest line."""

MAX_BEHIND = 1000
"""Events that may wait for one terminal; one that is further behind (stopped with Ctrl-Z) is hung up on, and attaches
again."""

CAPABILITIES = Capabilities(max_text=MAX_TEXT, typing=True, files=True, attaches=True)

_CHAT = re.compile(r"cli(-[a-z0-9][a-z0-9_-]{0,63})?", re.ASCII)
_KEY = re.compile(r"[A-Za-z0-9_-]{8,64}", re.ASCII)
_ROOM_FOR_FIELDS = 4096

_log: structlog.stdlib.BoundLogger = structlog.get_logger("host.channels.terminal")

Outcome = Callable[[str], Awaitable[bool | None]]
"""Asked about an event key: True when it has failed, False when it is done and all of it delivered, None while it is
open."""


async def _open_still(_event_key: str) -> bool | None:
    return None


def chat_of(agent_folder: str | None) -> str:
    """The platform id of an agent's terminal chat; None is the first agent's."""
    return FIRST_CHAT if agent_folder in {None, "main"} else f"{FIRST_CHAT}-{agent_folder}"


class _Terminal:
    """One attached terminal: what waits to be written to it."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[dict[str, object] | None] = asyncio.Queue()

    def end(self) -> None:
        """Hangs up, after what already waits."""
        self.events.put_nowait(None)


class TerminalChannel:
    """The adapter. `outcome` answers for a terminal that attaches again with messages it still waits for."""

    channel_type = CHANNEL_TYPE
    account_id = ACCOUNT_ID
    capabilities = CAPABILITIES

    def __init__(self, *, outcome: Outcome = _open_still, ack_seconds: float = ACK_SECONDS) -> None:
        self._outcome = outcome
        self._ack_seconds = ack_seconds
        self._accept: Accept | None = None
        self._attached: Callable[[Address], None] = lambda _address: None
        self._terminals: dict[str, set[_Terminal]] = defaultdict(set)
        self._unacknowledged: dict[tuple[str, str, int], asyncio.Future[None]] = {}
        self._active: set[str] = set()

    def register(self, server: ControlServer) -> None:
        """Adds the methods above to the control socket."""
        server.register("chat.attach", self._attach, stream=True)
        server.register("chat.send", self._send)
        server.register("chat.ack", self._acknowledge)

    async def setup(self, accept: Accept, attached: Callable[[Address], None]) -> None:
        """Starts receiving; until then a terminal is told that the host is starting."""
        self._accept = accept
        self._attached = attached

    async def teardown(self) -> None:
        """Hangs up on every terminal."""
        self._accept = None
        for chat in list(self._terminals):
            self._hang_up(chat)

    def health(self) -> Health:
        """A terminal has nothing that could be down."""
        return Health(
            healthy=self._accept is not None, detail="" if self._accept else "The terminal channel is not open."
        )

    async def deliver(self, address: Address, outgoing: Outgoing) -> list[str]:
        """Shows one chunk on every attached terminal; done when one of them has acknowledged it.

        Raises NobodyAttached, or OutcomeUnknown when none has within ACK_SECONDS.
        """
        chat = address.platform_id
        if not self._terminals[chat]:
            raise NobodyAttached
        key = (chat, outgoing.delivery_id, outgoing.chunk)
        shown = self._unacknowledged[key] = asyncio.get_running_loop().create_future()
        self._tell(
            chat,
            {
                "type": "text",
                "delivery_id": outgoing.delivery_id,
                "chunk": outgoing.chunk,
                "last": outgoing.last,
                "text": outgoing.text,
                "notice": outgoing.notice,
                "asks": outgoing.asks,
                "files": [_shown_file(file) for file in outgoing.files],
            },
        )
        try:
            async with asyncio.timeout(self._ack_seconds):
                await shown
        except TimeoutError:
            # Whoever is stopped (Ctrl-Z) attaches again when it goes on; until then nobody is there, which is no
            # attempt.
            self._hang_up(chat)
            raise OutcomeUnknown(f"no terminal has shown it within {self._ack_seconds:g} s") from None
        finally:
            self._unacknowledged.pop(key, None)
        return [f"{outgoing.delivery_id}/{outgoing.chunk}"]

    async def was_sent(self, address: Address, outgoing: Outgoing) -> bool | None:  # noqa: ARG002  the contract's shape
        """A terminal cannot be asked; it drops what it has shown already, so sending again is harmless."""
        return None

    async def fetch(self, ref: str, write: Callable[[bytes], Awaitable[None]], limit: int) -> None:
        """A file of this machine, by its path."""
        await local_files.read(ref, write, limit)

    async def typing(self, address: Address, active: bool) -> None:
        """Shows or clears "thinking"."""
        self._tell(address.platform_id, {"type": "typing", "active": active})

    def progress(self, address: Address, text: str) -> None:
        """Shows how far the agent is; "" clears it. Never blocks."""
        self._tell(address.platform_id, {"type": "progress", "text": text})

    def remark(self, address: Address, text: str) -> None:
        """Shows a short line that is no message. Never blocks."""
        self._tell(address.platform_id, {"type": "remark", "text": text})

    def is_attached(self, address: Address) -> bool:
        """Whether somebody is there."""
        return bool(self._terminals.get(address.platform_id))

    def turn(self, address: Address, active: bool) -> None:
        """A turn of this chat's session has begun or ended. Never blocks."""
        chat = address.platform_id
        (self._active.add if active else self._active.discard)(chat)
        self._tell(chat, {"type": "turn", "active": active})

    def settled(self, event_key: str, failed: bool, reason: str = "") -> None:
        """The message of `event_key` is completed or failed and all that it brought about is delivered; `reason`: why
        it went nowhere. Never blocks."""
        chat = event_key.partition(":")[0]
        self._tell(chat, {"type": "settled", "event_key": event_key, "failed": failed, "reason": reason})

    def _tell(self, chat: str, event: dict[str, object]) -> None:
        for terminal in list(self._terminals.get(chat, ())):
            if terminal.events.qsize() < MAX_BEHIND:
                terminal.events.put_nowait(event)
            else:
                self._detach(chat, terminal)

    def _hang_up(self, chat: str) -> None:
        for terminal in list(self._terminals.get(chat, ())):
            self._detach(chat, terminal)

    def _detach(self, chat: str, terminal: _Terminal) -> None:
        if terminal in self._terminals[chat]:
            self._terminals[chat].discard(terminal)
            terminal.end()

    def _address(self, call: Call) -> Address:
        chat = call.text("chat", FIRST_CHAT)
        if _CHAT.fullmatch(chat) is None:
            raise Failure(Code.USAGE, "A terminal chat is called cli or cli-<agent>.")
        return Address(CHANNEL_TYPE, ACCOUNT_ID, chat)

    async def _attach(self, call: Call) -> None:
        if self._accept is None:
            raise Failure(Code.NO_HOST, "The host is starting.", "Try again in a moment.")
        address = self._address(call)
        chat = address.platform_id
        waiting = call.params.get("waiting", [])
        if not isinstance(waiting, list) or not all(
            isinstance(key, str) and key.startswith(f"{chat}:") for key in waiting
        ):
            raise Failure(Code.USAGE, "waiting must be a list of event keys of this chat.")
        terminal = _Terminal()
        self._terminals[chat].add(terminal)
        _log.info("terminal attached", chat=chat, actor=call.actor.name, pid=call.actor.pid)
        try:
            await call.emit({"type": "turn", "active": chat in self._active})
            self._attached(address)
            for event_key in waiting:
                if (failed := await self._outcome(event_key)) is not None:
                    await call.emit({"type": "settled", "event_key": event_key, "failed": failed})
            while (event := await terminal.events.get()) is not None:
                await call.emit(event)
        finally:
            self._detach(chat, terminal)
            _log.info("terminal detached", chat=chat, actor=call.actor.name, pid=call.actor.pid)

    async def _send(self, call: Call) -> dict[str, str]:
        if self._accept is None:
            raise Failure(Code.NO_HOST, "The host is starting.", "Try again in a moment.")
        address = self._address(call)
        text, key = call.text("text"), call.text("key")
        if _KEY.fullmatch(key) is None:
            raise Failure(Code.USAGE, "A message's key is 8 to 64 letters, digits, - or _.")
        attachments = await asyncio.to_thread(local_files.attachments_of, call.params.get("files", []))
        _check_text(text, alone=not attachments)
        event_key = f"{address.platform_id}:message:{key}"
        event = InboundEvent(
            event_key=event_key,
            address=address,
            sender=Sender("cli-user", display_name=call.actor.name),
            text=text,
            attachments=attachments,
            mentioned=True,
        )
        try:
            await self._accept([event], None)
        except NotTaken as error:
            raise Failure(
                Code.FAILED, f"The message was not taken: {error}.", "See `host status`, then send it again."
            ) from error
        _log.info("terminal message accepted", event_key=event_key, actor=call.actor.name)
        return {"event_key": event_key}

    async def _acknowledge(self, call: Call) -> None:
        chunk = call.params.get("chunk")
        if not isinstance(chunk, int):
            raise Failure(Code.USAGE, "chat.ack needs the number of a chunk.")
        shown = self._unacknowledged.get((self._address(call).platform_id, call.text("delivery_id"), chunk))
        if shown is not None and not shown.done():
            shown.set_result(None)


def _shown_file(file: SentFile) -> dict[str, object]:
    """The host's copy, by a path that whoever may open this home can open."""
    return {"name": file.name, "path": str(file.path), "type": file.type, "size": file.size}


def _check_text(text: str, *, alone: bool) -> None:
    if alone and not text.strip():
        raise Failure(Code.USAGE, "An empty message says nothing.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Failure(Code.USAGE, "The message is not valid Unicode text.") from None
    if len(json.dumps(text)) > MAX_CONTENT_BYTES - _ROOM_FOR_FIELDS:
        raise Failure(
            Code.REFUSED, "The message is too long.", "Put it into a file in the agent's folder and name the file."
        )


MANIFEST = Manifest(CHANNEL_TYPE, TerminalChannel, title="Terminal", capabilities=CAPABILITIES)
