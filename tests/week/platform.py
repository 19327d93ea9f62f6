"""A platform with people in front of it, which outlives every host: it knows what it took, and brings what nobody told
it that they have."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from host.channels.base import Accept, Button, Capabilities, Health, InboundEvent, NotSent, OutcomeUnknown, Outgoing
from mailboxes.rows import Address

PROGRESS = "progress-"
"""How the delivery id of a progress line begins: a courtesy, on no record."""


@dataclass(frozen=True, slots=True)
class Take:
    """A chunk that the platform took, and in which host's time. `lost`: its answer did not arrive."""

    host: int
    address: Address
    delivery_id: str
    chunk: int
    text: str
    notice: bool
    lost: bool = False


class Platform:
    """Implements host.channels.base.EditingChannel. What becomes of a call is drawn from the seed, the words and the
    number of the attempt."""

    channel_type = "telegram"
    account_id = "bot"
    capabilities = Capabilities(buttons=True, edit=True)

    def __init__(self, seed: int) -> None:
        self.away = False
        self.host = 0
        """The number of the host that talks to it now."""
        self.takes: list[Take] = []
        self.refused: Counter[str] = Counter()
        """Deliveries that it refused for good."""
        self.events: list[InboundEvent] = []
        """All that people did, in order."""
        self.shown: Callable[[Address, Outgoing], None] = lambda _address, _outgoing: None
        """Hears of every card with buttons that it took."""
        self._seed = seed
        self._accept: Accept | None = None
        self._untold: list[InboundEvent] = []
        self._calls: Counter[tuple[Address, str, int]] = Counter()

    # -- people

    def does(self, event: InboundEvent) -> None:
        """A person writes or clicks: the host will be brought it until it says that it has it."""
        self.events.append(event)
        self._untold.append(event)

    def brings_again(self, event: InboundEvent) -> None:
        """As platforms do at times, also what the host has."""
        self._untold.append(event)

    async def bring(self) -> bool:
        """Brings the host what it has not taken; whether there was anything."""
        if self._accept is None or not self._untold:
            return False
        events = self._untold.copy()
        await self._accept(events, None)
        del self._untold[: len(events)]
        return True

    def hang_up(self) -> None:
        """The host is gone."""
        self._accept = None

    # -- the host's side

    async def setup(self, accept: Accept, attached: Callable[[Address], None]) -> None:
        self._accept = accept

    async def teardown(self) -> None:
        self._accept = None

    def health(self) -> Health:
        return Health(healthy=not self.away)

    async def deliver(self, address: Address, outgoing: Outgoing) -> list[str]:
        number = len(self.takes)
        fate = self._fate(address, outgoing)
        await asyncio.sleep(0)
        took = Take(
            self.host, address, outgoing.delivery_id, outgoing.chunk, outgoing.text, outgoing.notice, fate == "lost"
        )
        self.takes.append(took)
        if outgoing.buttons and outgoing.asks:
            self.shown(address, outgoing)
        if took.lost:
            raise OutcomeUnknown("The answer was lost.")
        return [f"p-{number}"]

    def _fate(self, address: Address, outgoing: Outgoing) -> str:
        """Raises NotSent where it takes nothing."""
        if self.away:
            raise NotSent("the platform does not answer")
        if outgoing.delivery_id.startswith(PROGRESS):
            return "taken"
        call = (address, outgoing.text, outgoing.chunk)
        self._calls[call] += 1
        dice = random.Random(f"{self._seed} {call} {self._calls[call]}")
        fate = dice.choices(("taken", "busy", "lost", "blocked"), (90, 6, 3, 1))[0]
        if fate == "busy":
            raise NotSent("too many messages", retry_after=dice.choice((None, 30.0)))
        if fate == "blocked":
            self.refused[outgoing.delivery_id] += 1
            raise NotSent("the bot was blocked", permanent=True)
        return fate

    async def was_sent(self, address: Address, outgoing: Outgoing) -> bool | None:
        """Half of the chats are of a kind that can be asked."""
        if int(address.platform_id.rpartition("/")[2]) % 2:
            return None
        return any((take.delivery_id, take.chunk) == (outgoing.delivery_id, outgoing.chunk) for take in self.takes)

    async def typing(self, address: Address, active: bool) -> None:
        """Nobody looks."""

    async def edit(self, address: Address, platform_id: str, text: str, buttons: Sequence[Button] = ()) -> None:
        """Nothing is lost with what an edit says."""

    async def delete(self, address: Address, platform_id: str) -> None:
        """The same."""

    async def react(self, address: Address, platform_id: str, emoji: str) -> None:
        """The same."""
