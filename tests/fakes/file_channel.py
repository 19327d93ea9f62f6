"""A channel whose messages bring files, and whose platform a test plays."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.fakes.recording_channel import RecordingChannel

Source = bytes | Exception | AsyncIterator[bytes]


class FileChannel(RecordingChannel):
    """Implements FetchingChannel too. `files[ref]` is what the next fetches of it give; the last one repeats.
    `gates[ref]` is waited for first."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, deque[Source]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.asked_for: list[str] = []
        self.asking = asyncio.Event()
        self.swallows = False

    def has(self, ref: str, *sources: Source) -> None:
        """What the platform gives for a ref."""
        self.files[ref] = deque(sources)

    def gate(self, ref: str) -> asyncio.Event:
        """Fetching it waits for this."""
        self.gates[ref] = asyncio.Event()
        return self.gates[ref]

    async def fetch(self, ref: str, write: Callable[[bytes], Awaitable[None]], limit: int) -> None:
        self.asked_for.append(ref)
        self.asking.set()
        if ref in self.gates:
            await self.gates[ref].wait()
        sources = self.files[ref]
        source = sources.popleft() if len(sources) > 1 else sources[0]
        if isinstance(source, Exception):
            raise source
        if isinstance(source, bytes):
            for start in range(0, len(source), 65536):
                await self._give(write, source[start : start + 65536])
            return
        async for piece in source:
            await self._give(write, piece)

    async def _give(self, write: Callable[[bytes], Awaitable[None]], piece: bytes) -> None:
        try:
            await write(piece)
        except Exception:
            if not self.swallows:
                raise
