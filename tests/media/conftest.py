import asyncio
import json
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from host.attachments import Attachments
from host.channels.base import Attachment
from host.db.agent_groups import AgentGroup
from host.db.sessions import Session
from host.home import Home
from host.sessions import provision
from host.writers import Routed
from mailboxes.rows import Address, Kind, MessageIn
from tests.fakes.clock import FakeClock
from tests.fakes.file_channel import FileChannel

NOW = "2026-01-01T00:00:00.000Z"
CHAT = Address("telegram", "bot", "42")
GROUP = AgentGroup("a1", "luna", "luna", None, None, NOW, 2_000_000_000, None, 0)

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
T = TypeVar("T")


def session(name: str = "s1") -> Session:
    return Session(name, "a1", "c1", None, None, "active", "stopped", None, NOW, None, "")


@dataclass
class Desk:
    """The part that fetches, what it wrote and what it told."""

    home: Home
    clock: FakeClock
    channel: FileChannel = field(default_factory=FileChannel)
    written: list[list[MessageIn]] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.attachments = self.fresh()

    def fresh(self) -> Attachments:
        """As the next host has it."""
        return Attachments(self.home, {("telegram", "bot"): self.channel}, self.clock, self._tell)

    async def _tell(self, cause: str, _address: Address, text: str) -> None:
        self.told.append((cause, text))

    async def write(self, messages: Sequence[MessageIn]) -> None:
        self.written.append(list(messages))

    def routed(
        self, number: int, *attachments: Attachment, album: str | None = None, to: str = "s1", content: Any = None
    ) -> Routed:
        kind = Kind.CHAT if content is None else Kind.CHAT_SDK
        text = json.dumps({"text": f"text {number}", "attachments": []} if content is None else content)
        message = MessageIn(f"m{number}", kind, NOW, text, CHAT)
        return Routed(session(to), GROUP, message, attachments, album)

    def put(self, *routed: Routed) -> Awaitable[None]:
        async def provision_session() -> None:
            await asyncio.to_thread(provision, self.home, routed[0].session, GROUP)

        return self.attachments.put(routed, self.write, provision_session)

    async def entries(self, *attachments: Attachment, number: int = 1) -> list[dict[str, Any]]:
        """What one message's content says of its files."""
        await self.hurry(self.put(self.routed(number, *attachments)))
        return entries(self.written[-1][0])

    async def hurry(self, work: Awaitable[T], step: float = 1.0) -> T:
        """Awaits it while the clock runs fast."""
        task = asyncio.ensure_future(work)
        async with asyncio.timeout(30):
            while not task.done():
                await asyncio.wait((task,), timeout=0.005)
                if not task.done() and not self.channel.gates:
                    await self.clock.advance(step)
        return await task

    def folder(self, number: int = 1, to: str = "s1") -> Path:
        return self.home.session_folder("a1", to) / "inbound" / "files" / f"m{number}"

    def names(self, number: int = 1) -> list[str]:
        return sorted(path.name for path in self.folder(number).iterdir())


def entries(message: MessageIn) -> list[dict[str, Any]]:
    content = json.loads(message.content)
    found: list[dict[str, Any]] = content.get("files", content["attachments"])
    return found


@pytest.fixture
def desk(home: Home, clock: FakeClock) -> Desk:
    return Desk(home, clock)
