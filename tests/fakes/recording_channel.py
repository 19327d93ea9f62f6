"""A channel whose every outcome a test decides, and that knows what the platform really took."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from host.channels.base import Accept, Button, Capabilities, Health, Outgoing
from mailboxes.rows import Address


@dataclass(slots=True)
class Taken:
    """The platform takes the message and the adapter raises `error` all the same: the answer was lost."""

    error: Exception


@dataclass(slots=True)
class Held:
    """The call hangs until `release` is set, then succeeds."""

    release: asyncio.Event = field(default_factory=asyncio.Event)


Outcome = Exception | Taken | Held | None
"""None is success; an exception is raised without the platform having taken anything."""


class RecordingChannel:
    """Implements host.channels.base.EditingChannel. `script` holds the outcomes of the next calls, `plan` those for one
    chat; a call without one succeeds."""

    channel_type = "telegram"
    account_id = "bot"

    def __init__(self, capabilities: Capabilities | None = None) -> None:
        self.capabilities = capabilities or Capabilities()
        self.script: deque[Outcome] = deque()
        self.script_of: dict[str, deque[Outcome]] = {}
        self.calls: list[tuple[Address, Outgoing]] = []
        self.taken: list[tuple[Address, Outgoing]] = []
        self.edits: list[tuple[str, str]] = []
        self.deleted: list[str] = []
        self.buttons: dict[str, tuple[Button, ...]] = {}
        self.asked: list[Outgoing] = []
        self.knows: bool | Exception | None = None
        self.most_at_once: dict[Address, int] = {}
        self._running: dict[Address, int] = {}

    def plan(self, platform_id: str, *outcomes: Outcome) -> None:
        """The outcomes of the next calls for one chat."""
        self.script_of[platform_id] = deque(outcomes)

    def texts(self, platform_id: str = "42") -> list[str]:
        """What of the session's words the platform took in one chat, in order."""
        return [o.text for address, o in self.taken if address.platform_id == platform_id and not o.notice]

    def notices(self) -> list[str]:
        """What of the host's own words the platform took."""
        return [outgoing.text for _, outgoing in self.taken if outgoing.notice]

    def sends(self) -> list[str]:
        """Every attempt to send the session's words, in order."""
        return [outgoing.text for _, outgoing in self.calls if not outgoing.notice]

    async def _meet(self, address: Address, happens: Callable[[], None]) -> None:
        own = self.script_of.get(address.platform_id)
        script = own if own is not None else self.script
        outcome = script.popleft() if script else None
        self._running[address] = self._running.get(address, 0) + 1
        self.most_at_once[address] = max(self.most_at_once.get(address, 0), self._running[address])
        try:
            if isinstance(outcome, Held):
                await outcome.release.wait()
            elif isinstance(outcome, Taken):
                happens()
                raise outcome.error
            elif outcome is not None:
                raise outcome
            happens()
        finally:
            self._running[address] -= 1

    async def setup(self, accept: Accept, attached: Callable[[Address], None]) -> None:
        """Nothing comes in."""

    async def teardown(self) -> None:
        """Nothing runs."""

    def health(self) -> Health:
        return Health(healthy=True)

    async def deliver(self, address: Address, outgoing: Outgoing) -> list[str]:
        self.calls.append((address, outgoing))
        await self._meet(address, lambda: self.taken.append((address, outgoing)))
        return [f"p-{outgoing.delivery_id}-{outgoing.chunk}"]

    async def was_sent(self, address: Address, outgoing: Outgoing) -> bool | None:
        self.asked.append(outgoing)
        if isinstance(self.knows, Exception):
            raise self.knows
        return self.knows

    async def typing(self, address: Address, active: bool) -> None:
        """Not recorded."""

    async def edit(self, address: Address, platform_id: str, text: str, buttons: Sequence[Button] = ()) -> None:
        self.buttons[platform_id] = tuple(buttons)
        await self._meet(address, lambda: self.edits.append((platform_id, text)))

    async def delete(self, address: Address, platform_id: str) -> None:
        await self._meet(address, lambda: self.deleted.append(platform_id))

    async def react(self, address: Address, platform_id: str, emoji: str) -> None:
        await self._meet(address, lambda: self.edits.append((platform_id, emoji)))
