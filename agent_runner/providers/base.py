"""The provider contract: a provider turns prompts into results and knows no mailbox."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agent_runner.tools.registry import Toolbox
    from agent_runner.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Something happened; the host sees no text of it. Sent at the start of each tool and each model call."""

    what: str


@dataclass(frozen=True, slots=True)
class Result:
    """A finished answer: exactly one output row each, none when `text` is blank.

    `answered` counts the inputs that are dealt with by now: the prompt is the first, then the accepted pushes in order.
    The loop keeps results back until `answered` grows and commits them together with the claims of those inputs; what
    follows belongs to the next part of the turn.
    """

    text: str
    answered: int
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Failure:
    """The turn cannot go on. `reason` is one honest sentence for the person who asked; the last event of a query."""

    reason: str
    retryable: bool


Event = Progress | Result | Failure


@dataclass(frozen=True, slots=True)
class TurnInput:
    """What a turn starts from. `prompt` is formatted text, or a raw slash command when `raw`; `system` is byte-stable
    while the agent's files are; `transcript` is the conversation so far, to which the provider appends under `turn_id`.
    `send` says something to the chat at once, while the turn runs, and returns the message's number (raises
    TurnFull)."""

    turn_id: str
    prompt: str
    system: str
    transcript: "Transcript"
    toolbox: "Toolbox"
    model: str
    raw: bool = False
    send: Callable[[str], Awaitable[int]] | None = None


class Query(Protocol):
    """One running turn. Closing the event iterator, or `abort`, ends it and every tool that it runs."""

    def push(self, text: str) -> bool:
        """Adds a formatted message to the running turn. False when the turn has ended already: it was not taken."""
        ...

    def abort(self) -> None:
        """Ends the turn at once; the events stop."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """What happens, to its end. The turn is over when this is exhausted, and pushes are refused from then on."""
        ...


class Provider(Protocol):
    """A kind of model."""

    name: str

    def query(self, turn: TurnInput) -> Query:
        """Starts a turn."""
        ...

    async def close(self) -> None:
        """Lets go of connections."""
        ...


ProviderFactory = Callable[[Path], Provider]
"""Makes a provider, given the folder of the host-made sockets."""
