"""The client's half of the terminal channel: attaches, shows and acknowledges, sends each line once, comes back after a
restart."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from host.control import AsyncControlClient
from host.control_client import ConnectionLost
from host.failure import Code, Failure

PATIENCE_SECONDS = 30.0
"""How long a host that went away may take to come back (`host restart`) before the conversation ends."""

SIMULATE = "/simulate-failure"
"""A line that begins so goes to no agent: it makes a part of the sends to this terminal fail, to practise on."""

_RETRY_SECONDS = 0.2
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Shown:
    """One chunk of a message for the person. `notice` is the host's own word; `files` are told as name, path, type and
    size in bytes; `asks`: it waits for an answer."""

    text: str
    notice: bool = False
    last: bool = True
    files: tuple[dict[str, object], ...] = ()
    asks: bool = False

    def lines(self) -> str:
        """The text, and a line for each file that can be opened here."""
        named = [f"File: {file.get('path')} ({file.get('type')}, {file.get('size')} bytes)" for file in self.files]
        return "\n".join(part for part in (self.text, *named) if part)


@dataclass(slots=True)
class _Line:
    text: str
    files: tuple[str, ...]
    settled: asyncio.Future[bool]
    event_key: str | None = None


class Conversation:
    """One attached terminal. `show` gets each chunk once; `busy` hears whether the agent is at work, `progress` how far
    it is ("" where there is nothing to say), `remark` what is no message. `asked` is set when a question comes.

    `run` must run for as long as lines are sent.
    """

    def __init__(
        self,
        socket: Path,
        chat: str,
        show: Callable[[Shown], None],
        busy: Callable[[bool], None] = lambda _active: None,
        *,
        progress: Callable[[str], None] = lambda _text: None,
        remark: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.asked = asyncio.Event()
        self._progress = progress
        self._remark = remark
        self._socket = socket
        self._chat = chat
        self._show = show
        self._busy = busy
        self._client: AsyncControlClient | None = None
        self._there = asyncio.Event()
        self._open: dict[str, _Line] = {}
        self._seen: set[tuple[str, int]] = set()
        self._seen_order: deque[tuple[str, int]] = deque()
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Stays attached, over restarts of the host. Raises Failure when the host refuses, or stays away for
        PATIENCE_SECONDS."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + PATIENCE_SECONDS
        while True:
            try:
                async with await AsyncControlClient.connect(self._socket) as client:
                    await self._attached(client)
                give_up_at = loop.time() + PATIENCE_SECONDS
            except Failure as failure:
                if self._client is not None:
                    give_up_at = loop.time() + PATIENCE_SECONDS
                if failure.code is not Code.NO_HOST or loop.time() > give_up_at:
                    raise
            finally:
                self._client = None
                self._there.clear()
                self._busy(False)
                self._progress("")
            await asyncio.sleep(_RETRY_SECONDS)

    async def send(self, text: str, files: tuple[str, ...] = ()) -> asyncio.Future[bool]:
        """Sends one message, with files by their absolute paths; the future is done at the end of its turn, and True
        when it has failed.

        Raises Failure when the host refuses the text. While the host is away the line waits for it.
        """
        if text.split(maxsplit=1)[:1] == [SIMULATE]:
            return await self._simulate(text)
        key = secrets.token_urlsafe(12)
        line = self._open[key] = _Line(text, files, asyncio.get_running_loop().create_future())
        if self._client is not None:
            try:
                await self._send_line(self._client, key, line)
            except ConnectionLost:
                pass  # `run` sends it again, under the same key, when the host is back
            except Failure:
                del self._open[key]
                raise
        return line.settled

    async def _simulate(self, text: str) -> asyncio.Future[bool]:
        """Has a part of what comes here fail, and shows how that went so far."""
        try:
            rate = {"rate": float(words[1])} if len(words := text.split()) > 1 else {}
        except ValueError:
            raise Failure(Code.USAGE, f"{SIMULATE} takes a number from 0 to 1, or nothing.") from None
        await self._there.wait()
        assert self._client is not None
        answer = await self._client.call("chat.simulate_failure", **rate)
        if isinstance(answer, dict):
            numbers = ", ".join(f"{answer[name]} {name}" for name in ("attempted", "succeeded", "failed", "pending"))
            share = f"{float(str(answer['rate'])):.0%} of what comes here fails."
            self._show(Shown(f"{share} So far: {numbers}.", notice=True))
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(False)
        return done

    async def _attached(self, client: AsyncControlClient) -> None:
        waiting = [line.event_key for line in self._open.values() if line.event_key is not None]
        async for event in client.stream("chat.attach", chat=self._chat, waiting=waiting):
            if self._client is None:
                self._client = client
                self._there.set()
                for key, line in list(self._open.items()):
                    if line.event_key is None:
                        await self._send_line(client, key, line)
            if isinstance(event, dict):
                await self._take(client, event)

    async def _send_line(self, client: AsyncControlClient, key: str, line: _Line) -> None:
        async with self._writing:
            if line.event_key is not None:
                return
            answer = await client.call("chat.send", chat=self._chat, text=line.text, key=key, files=list(line.files))
            if isinstance(answer, dict):
                line.event_key = str(answer["event_key"])

    async def _take(self, client: AsyncControlClient, event: dict[str, object]) -> None:
        match event:
            case {"type": "text", "delivery_id": str(delivery), "chunk": int(chunk), "text": str(text)}:
                if self._is_new((delivery, chunk)):
                    self._show(shown := _shown(event, text))
                    if shown.asks:
                        self.asked.set()
                await client.call("chat.ack", chat=self._chat, delivery_id=delivery, chunk=chunk)
            case {"type": "turn" | "typing", "active": bool(active)}:
                self._busy(active)
            case {"type": "settled", "event_key": str(event_key), "failed": bool(failed)}:
                self._settle(event_key, failed=failed, reason=str(event.get("reason") or ""))
            case {"type": "progress", "text": str(text)}:
                self._progress(text)
            case {"type": "remark", "text": str(text)}:
                self._remark(text)
            case _:
                pass  # a newer host may say more

    def _settle(self, event_key: str, *, failed: bool, reason: str) -> None:
        # The key that we made ends the event key: the word may come before the answer to `chat.send`.
        line = self._open.pop(event_key.rpartition(":")[2], None)
        if line is not None and not line.settled.done():
            if reason:
                self._show(Shown(f"The message went to nobody: {reason}.", notice=True))
            line.settled.set_result(failed)

    def _is_new(self, chunk: tuple[str, int]) -> bool:
        if chunk in self._seen:
            return False
        self._seen.add(chunk)
        self._seen_order.append(chunk)
        if len(self._seen_order) > _REMEMBERED:
            self._seen.discard(self._seen_order.popleft())
        return True


def _shown(event: dict[str, object], text: str) -> Shown:
    files = event.get("files")
    listed = tuple(file for file in files if isinstance(file, dict)) if isinstance(files, list) else ()
    said = Shown(text, notice=event.get("notice") is True, last=event.get("last") is not False, files=listed)
    return replace(said, asks=event.get("asks") is True)
