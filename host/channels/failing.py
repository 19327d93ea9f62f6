"""The terminal as a channel to practise failures on: a part of its sends fail when a person at it asks for that.

`/simulate-failure [RATE]` in `host chat` is the control method ``chat.simulate_failure {rate?}``: a rate of 0 to 1, or
without one half of the sends, and none when it was on. It answers with the rate and what became of the sends since the
host began: ``{rate, attempted, succeeded, failed, pending}``; what is attempted now is pending as well.
"""

import random
from collections.abc import Callable

from host.channels.base import NobodyAttached, NotSent, Outgoing
from host.channels.terminal import ACK_SECONDS, Outcome, TerminalChannel
from host.control import Call, ControlServer
from host.failure import Code, Failure
from mailboxes.rows import Address

RATE = 0.5


class FailingTerminal(TerminalChannel):
    """A terminal whose sends can be made to fail. The host's own word always passes: somebody has to say what fails.

    `pending` counts what waits to be sent to terminals; `draw` gives 0..1.
    """

    def __init__(
        self, *, outcome: Outcome, ack_seconds: float = ACK_SECONDS, draw: Callable[[], float] = random.random
    ) -> None:
        super().__init__(outcome=outcome, ack_seconds=ack_seconds)
        self.pending: Callable[[], int] = lambda: 0
        self._draw = draw
        self._rate = 0.0
        self._succeeded = 0
        self._failed = 0

    def register(self, server: ControlServer) -> None:
        """Adds the terminal's methods and its own."""
        super().register(server)
        server.register("chat.simulate_failure", self._simulate)

    async def deliver(self, address: Address, outgoing: Outgoing) -> list[str]:
        """As a terminal does, or fails by chance."""
        by_chance = self._rate > 0 and not outgoing.notice and self.is_attached(address)
        if by_chance and self._draw() < self._rate:
            self._failed += 1
            raise NotSent("a simulated failure (/simulate-failure 0 ends it)")
        try:
            shown = await super().deliver(address, outgoing)
        except NobodyAttached:
            raise  # no attempt
        except Exception:
            self._failed += 1
            raise
        self._succeeded += 1
        return shown

    async def _simulate(self, call: Call) -> dict[str, object]:
        wanted = call.params.get("rate", RATE if self._rate == 0 else 0.0)
        if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 0 <= wanted <= 1:
            raise Failure(Code.USAGE, "The rate of failures is a number from 0 to 1.")
        self._rate = float(wanted)
        return {
            "rate": self._rate,
            "attempted": self._succeeded + self._failed,
            "succeeded": self._succeeded,
            "failed": self._failed,
            "pending": self.pending(),
        }
