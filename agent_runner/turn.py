"""One turn: the inputs that are still open, the answers that wait for their commit, and where answers go.

A turn that answers only a part of its inputs completes that part; what is left is the open rest, under a new turn id,
so that a completed part is never cut off or run again.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agent_runner.batching import Batch
from agent_runner.mailbox import Output, answer
from agent_runner.providers.base import Result
from mailboxes.ids import new_id
from mailboxes.rows import Address, Kind, MessageIn


@dataclass(frozen=True, slots=True)
class Route:
    """How an answer goes back: the kind of the row it answers, the address of that row, its id."""

    kind: str
    address: Address | None
    in_reply_to: str


def route_of(rows: Sequence[MessageIn]) -> Route | None:
    """From the last row with an address; without one from the last row that can be answered. A system row without an
    address cannot: None where there is no other."""
    with_address = [row for row in rows if row.address is not None]
    last = (with_address or [row for row in rows if row.kind != Kind.SYSTEM])[-1:]
    return Route(last[0].kind, last[0].address, last[0].id) if last else None


def _output(route: Route, text: str) -> Output:
    return answer(route.kind, text, route.address, route.in_reply_to)


@dataclass(slots=True)
class Turn:
    """The state of one running query. `sender` puts one output into the mailbox at once and returns its number."""

    sender: Callable[["Turn", Output], Awaitable[int]]
    id: str = field(default_factory=lambda: new_id("t"))
    closed: bool = False
    _open: list[Batch] = field(default_factory=list)
    _answered: int = 0
    _waiting: list[Result] = field(default_factory=list)
    _route: Route | None = None
    _riding: list[MessageIn] = field(default_factory=list)
    _heard: set[str] = field(default_factory=set)

    @property
    def address(self) -> Address | None:
        """The chat that answers go to."""
        return self._route.address if self._route is not None else None

    @property
    def in_reply_to(self) -> str | None:
        """The message that is answered."""
        return self._route.in_reply_to if self._route is not None else None

    def heard(self, text: str) -> None:
        """A tool has said it: the same words as an answer would come twice."""
        self._heard.add(" ".join(text.split()))

    def ride(self, rows: Sequence[MessageIn]) -> None:
        """Rows that a tool has taken: they are done with the next part."""
        self._riding += rows

    def take_riding(self) -> list[MessageIn]:
        """The rows that ride, which are whoever asks' from here on."""
        riding, self._riding = self._riding, []
        return riding

    def accept(self, batch: Batch) -> None:
        """The prompt, or a push that the query took."""
        self._open.append(batch)
        self._route = route_of(batch.rows) or self._route

    @property
    def is_open(self) -> bool:
        """Whether an input waits for its answer."""
        return bool(self._open)

    @property
    def open_ids(self) -> list[str]:
        """The messages that wait for their answer."""
        return [row.id for batch in self._open for row in batch.rows]

    def take(self, result: Result) -> "Part | None":
        """What to commit now: nothing until an input is answered, then all that was said for it. What is said when no
        input is open is committed at once."""
        self._waiting.append(result)
        newly = min(max(0, result.answered - self._answered), len(self._open))
        if newly == 0 and self._open:
            return None
        done = self._open[:newly]
        del self._open[:newly]
        self._answered += newly
        said, self._waiting = self._waiting, []
        route = route_of([row for batch in done for row in batch.rows]) or self._route
        new = [result for result in said if result.text.strip() and " ".join(result.text.split()) not in self._heard]
        if newly:
            self._heard.clear()  # what a tool said for one input is no answer to the next
        outputs = [_output(route, result.text) for result in new] if route is not None else []
        rows = [row for batch in done for row in (*batch.omitted, *batch.rows)] + self.take_riding()
        return Part(self.id, outputs, rows)

    def next_part(self) -> None:
        """What follows is a turn of its own."""
        self.id = new_id("t")

    async def send(self, text: str) -> int:
        """Says something to the chat while the turn runs. Returns the message's number.

        Raises TurnFull, and RuntimeError when the turn is over or there is nobody to say it to.
        """
        if self.closed:
            raise RuntimeError("this turn is over")
        if self._route is None:
            raise RuntimeError("these messages come from no chat: there is nobody to send to")
        return await self.sender(self, _output(self._route, text))


@dataclass(frozen=True, slots=True)
class Part:
    """What one commit holds: the outputs and the rows that they answer."""

    turn_id: str
    outputs: list[Output]
    rows: list[MessageIn]
