"""A control server with the real terminal channel behind it, and a stand-in for the rest of the host that the test
plays."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from host.channels.base import InboundEvent, Outgoing
from host.channels.terminal import TerminalChannel
from host.control import ControlServer
from host.home import Home
from mailboxes.rows import Address


class PlayedHost:
    """Takes events over as intake does (an event key counts once) and answers each by echoing it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.events: list[InboundEvent] = []
        self.done: dict[str, bool] = {}
        self.attached: list[Address] = []
        self.answer: Callable[[InboundEvent], Sequence[str]] = lambda event: [event.text]
        self.failing = False
        self.server = ControlServer(home.control_socket)
        self.channel = self._channel()
        self._turns: set[asyncio.Task[None]] = set()

    def _channel(self) -> TerminalChannel:
        async def outcome(event_key: str) -> bool | None:
            return self.done.get(event_key)

        return TerminalChannel(outcome=outcome, ack_seconds=2.0)

    async def start(self) -> None:
        self.channel.register(self.server)
        await self.channel.setup(self.accept, self.attached.append)
        await self.server.start()

    async def stop(self) -> None:
        for turn in self._turns:
            turn.cancel()
        await asyncio.gather(*self._turns, return_exceptions=True)
        await self.channel.teardown()
        await self.server.stop()

    async def restart(self) -> None:
        """Another host on the same home, which knows what the first one knew."""
        await self.stop()
        self.server = ControlServer(self.home.control_socket)
        self.channel = self._channel()
        await self.start()

    async def accept(self, events: Sequence[InboundEvent], offset: str | None) -> None:
        assert offset is None
        for event in events:
            if any(event.event_key == known.event_key for known in self.events):
                continue
            self.events.append(event)
            turn = asyncio.create_task(self.turn(event))
            self._turns.add(turn)
            turn.add_done_callback(self._turns.discard)

    async def turn(self, event: InboundEvent) -> None:
        self.channel.turn(event.address, active=True)
        for number, text in enumerate(self.answer(event)):
            outgoing = Outgoing(f"d-{len(self.events)}-{number}", 0, text, notice=self.failing)
            await self.channel.deliver(event.address, outgoing)
        self.channel.turn(event.address, active=False)
        self.done[event.event_key] = self.failing
        self.channel.settled(event.event_key, failed=self.failing)


@pytest.fixture
async def played(home: Home) -> AsyncIterator[PlayedHost]:
    host = PlayedHost(home)
    await host.start()
    try:
        yield host
    finally:
        await host.stop()


class Command:
    """A `host` command as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def end(self, text: bytes = b"", *, seconds: float = 20.0) -> tuple[int, str, str]:
        """Feeds standard input and waits: exit code, standard output, standard error."""
        async with asyncio.timeout(seconds):
            out, err = await self.process.communicate(text)
        assert self.process.returncode is not None
        return self.process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def command(*words: str) -> AsyncIterator[Command]:
    """Runs `host <words>` on the home of the environment; a process that still runs at the end is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "host",
        *words,
        cwd="/",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
