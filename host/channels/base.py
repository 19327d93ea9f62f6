"""The adapter contract. An adapter knows its platform and no agent, session or database; it holds no dedup state."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from mailboxes.rows import Address, Kind


class NotSent(Exception):
    """The platform surely did not take the message. `permanent`: trying again is useless; `retry_after` in seconds."""

    def __init__(self, reason: str, *, permanent: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.permanent = permanent
        self.retry_after = retry_after


class OutcomeUnknown(Exception):
    """The message may or may not have been taken (the answer was lost)."""


class NobodyAttached(Exception):
    """Nobody is there to receive (a terminal, a browser): no attempt; delivery goes on when somebody attaches."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who wrote. `handle` is the platform's immutable id of the person; `realm` where handles are unique only in
    one."""

    handle: str
    display_name: str | None = None
    realm: str | None = None
    is_me: bool = False

    def user_id(self, channel_type: str) -> str:
        """``<channel>:<handle>`` or ``<channel>:<realm>/<handle>``."""
        return f"{channel_type}:{self.realm}/{self.handle}" if self.realm else f"{channel_type}:{self.handle}"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that came with a message, as its platform declares it: nothing of it is to be believed.

    `ref` is all that the adapter needs to fetch the file, also after a restart (a platform's file id, a path): it is
    kept with the event until the file is here and never reaches a sandbox; still it holds no secret. `size` in bytes,
    where the platform says one.
    """

    name: str
    ref: str
    type: str = ""
    size: int | None = None


class NotFetched(Exception):
    """A file could not be fetched. `permanent`: trying again is useless. The text is the reason, as the end of a
    sentence that a person reads; no address and no secret is in it."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.permanent = permanent


class TooLarge(NotFetched):
    """A file is larger than the platform lets a bot fetch, or than this host takes: `limit` in bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"too large (the limit is {limit // (1024 * 1024)} MB)", permanent=True)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class InboundEvent:
    """What a platform told us. `event_key` is unique within (channel_type, account_id) and holds the chat and the kind
    of event; `content` replaces the chat content of `text` for kinds other than chat (its JSON-able dict). `album` is
    what messages share that a person sent as one (a platform's id of the group of pictures). `message_id` and
    `replied_to` are the platform's ids of this message and of the one that it answers, where it has such ids.

    A `click` is the data of a button that the sender pressed (Button): such an event is no message, and has no text.
    """

    event_key: str
    address: Address
    sender: Sender
    text: str = ""
    kind: Kind = Kind.CHAT
    content: dict[str, object] | None = None
    attachments: tuple[Attachment, ...] = ()
    mentioned: bool = False
    is_group: bool = False
    chat_name: str | None = None
    album: str | None = None
    message_id: str | None = None
    replied_to: str | None = None
    click: str | None = None


class NotTaken(Exception):
    """Events could not be committed: nothing of them is kept, and the platform has to bring them again. The text is the
    reason, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a platform can show. `max_text` counts UTF-16 units where the platform does; `attaches`: a text and its
    files are one message there."""

    max_text: int = 4096
    utf16: bool = False
    cards: bool = False
    buttons: bool = False
    edit: bool = False
    delete: bool = False
    reactions: bool = False
    files: bool = False
    attaches: bool = False
    threads: bool = False
    typing: bool = False


MAX_BUTTON_DATA = 64
"""Bytes: Telegram's limit for callback_data, the smallest of the platforms'."""


@dataclass(frozen=True, slots=True)
class Button:
    """What a person may press below a message; `data` (at most MAX_BUTTON_DATA bytes) comes back as the event's
    `click`, and means something to the host alone."""

    label: str
    data: str


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file that goes out: the host's own copy, which no sandbox can change. `name` is plain (no separator, nothing
    hidden); `type` is told by its content; `size` in bytes."""

    name: str
    path: Path
    size: int
    type: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One chunk to send: text within `max_text`. `delivery_id` and `chunk` name it, for platforms that can be asked and
    receivers that drop what they have; `replied_to` is the platform's id of the message it answers, where known; a
    `notice` is the host's own word and no agent's, for platforms that can show the difference. `buttons` only where
    the capabilities say so.

    `card` comes only where the capabilities say cards, `files` where they say files: each in a chunk of its own behind
    the text, or all with the last of the text where the capabilities say attaches. `session` and `in_reply_to` are the
    id of the session whose word it is and the row that it answers, as it says: for the way between agents, and no
    platform's business.
    """

    delivery_id: str
    chunk: int
    text: str
    last: bool = True
    replied_to: str | None = None
    notice: bool = False
    card: Mapping[str, object] | None = None
    files: tuple[SentFile, ...] = ()
    session: str | None = None
    in_reply_to: str | None = None
    buttons: tuple[Button, ...] = ()
    asks: bool = False
    """A question stands open with it."""


Accept = Callable[[Sequence[InboundEvent], str | None], Awaitable[None]]
"""Takes events and the platform's offset; returns when they are committed, and only then is the platform told. Raises
NotTaken."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether an adapter works now; `detail` is a sentence when it does not."""

    healthy: bool
    detail: str = ""


class Channel(Protocol):
    """One bot or app on a platform."""

    channel_type: str
    account_id: str
    capabilities: Capabilities

    async def setup(self, accept: Accept, attached: Callable[[Address], None]) -> None:
        """Starts receiving. `attached` is called when somebody is there again after NobodyAttached."""
        ...

    async def teardown(self) -> None:
        """Stops receiving; returns when nothing of it runs."""
        ...

    def health(self) -> Health:
        """Local facts, at once."""
        ...

    async def deliver(self, address: Address, outgoing: Outgoing) -> list[str]:
        """Sends one chunk and returns the platform's message ids. Raises NotSent, OutcomeUnknown, NobodyAttached; any
        other exception counts as OutcomeUnknown."""
        ...

    async def was_sent(self, address: Address, outgoing: Outgoing) -> bool | None:
        """Asks the platform whether a chunk of unknown outcome arrived; None where it cannot be asked."""
        ...

    async def typing(self, address: Address, active: bool) -> None:
        """Shows or clears the typing sign; failures are the adapter's own business."""
        ...


class EditingChannel(Channel, Protocol):
    """A channel that can change what was sent; called only where `capabilities` say so."""

    async def edit(self, address: Address, platform_id: str, text: str, buttons: Sequence[Button] = ()) -> None:
        """Replaces the text of one sent message, and its buttons. Raises as `deliver` does."""
        ...

    async def delete(self, address: Address, platform_id: str) -> None:
        """Takes one sent message back. Raises as `deliver` does."""
        ...

    async def react(self, address: Address, platform_id: str, emoji: str) -> None:
        """Adds a reaction to a message. Raises as `deliver` does."""
        ...


@runtime_checkable
class RemarkingChannel(Protocol):
    """A channel that can show what is no message (a terminal); besides Channel. Failures are its own business."""

    def progress(self, address: Address, text: str) -> None:
        """Shows what goes on now in a line of its own, in place of what that said; "" clears it."""
        ...

    def remark(self, address: Address, text: str) -> None:
        """Shows a short line once."""
        ...


@runtime_checkable
class FetchingChannel(Protocol):
    """A channel whose messages bring files; besides Channel."""

    async def fetch(self, ref: str, write: Callable[[bytes], Awaitable[None]], limit: int) -> None:
        """Gives the file behind an Attachment's `ref` to `write`, piece by piece, never as a whole. Raises NotFetched,
        TooLarge where it is known beforehand that it has more than `limit` bytes, and lets through what `write` raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class Manifest:
    """How a channel announces itself to the registry; loading it imports no platform SDK."""

    channel_type: str
    make: Callable[..., Channel]
    secrets: tuple[str, ...] = ()
    title: str = ""
    capabilities: Capabilities = field(default_factory=Capabilities)
