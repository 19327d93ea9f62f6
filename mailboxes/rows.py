"""The values that travel in a mailbox. Nothing past an edge sees a raw row."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a row is. A row of any other kind is set aside with a reason."""

    CHAT = "chat"
    CHAT_SDK = "chat-sdk"
    TASK = "task"
    WEBHOOK = "webhook"
    SYSTEM = "system"


CONTINUE_TURN = "continue_turn"
"""The action of the system row by which a turn that broke off after it had said something goes on."""


AGENT = "agent"
"""The channel type of a row from one agent to another: its platform id is the other's agent group, its thread id the
session there (None = the one between the two)."""

HEARTBEAT = "heartbeat-"
"""How the id of a heartbeat's series begins. Ids of series are the host's."""


class InStatus(StrEnum):
    """The host's view of a row of messages_in."""

    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    PAUSED = "paused"
    CANCELLED = "cancelled"


class ClaimState(StrEnum):
    """The runner's word on a (message, attempt)."""

    PROCESSING = "processing"
    COMPLETED = "completed"
    RELEASED = "released"


class DeliveryState(StrEnum):
    """How far the host has come with a row that a session said."""

    QUEUED = "queued"
    SENDING = "sending"
    SENT = "sent"
    UNKNOWN = "unknown"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Activity(StrEnum):
    """What the runner says it is doing."""

    BUSY = "busy"
    WAITING = "waiting"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a message comes from or goes to. Two bots of one platform never mix: `account_id` is part of it."""

    channel_type: str
    account_id: str
    platform_id: str
    thread_id: str | None = None


@dataclass(frozen=True, slots=True)
class MessageIn:
    """A row of messages_in. `content` is the JSON text of its kind; `address` is None for rows that come from no chat
    (a task, the result of an action); times are canonical text (mailboxes.clock)."""

    id: str
    kind: str
    timestamp: str
    content: str
    address: Address | None = None
    status: str = InStatus.PENDING
    status_changed: str | None = None
    process_after: str | None = None
    recurrence: str | None = None
    tries: int = 0
    seq: int = 0
    series_id: str | None = None
    slot: str | None = None
    trigger: bool = True
    on_wake: bool = False
    source_session: str | None = None
    principal: str | None = None

    @property
    def origin(self) -> tuple[str, ...]:
        """What a batch shares: the address, or for a row without one its series or source session."""
        if self.address is not None:
            a = self.address
            return ("address", a.channel_type, a.account_id, a.platform_id, a.thread_id or "")
        return ("series", self.series_id or self.source_session or "")

    @property
    def is_heartbeat(self) -> bool:
        """Whether it is a beat: it gives way to everything else, and runs alone."""
        return self.kind == Kind.TASK and self.series_id is not None and self.series_id.startswith(HEARTBEAT)


@dataclass(frozen=True, slots=True)
class MessageOut:
    """A row of messages_out. The address is the runner's word: the host checks it before anything is sent."""

    id: str
    seq: int
    turn_id: str | None
    in_reply_to: str | None
    timestamp: str
    kind: str
    content: str
    address: Address | None = None
    deliver_after: str | None = None
    recurrence: str | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """The runner's claim on one attempt (= messages_in.tries) at a message."""

    message_id: str
    attempt: int
    turn_id: str
    state: str
    reason: str | None = None
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class RunnerState:
    """The one row of runner_state."""

    state: str
    next_seq: int
    beat: int
    runner_hash: str
    turn_id: str | None = None
    open_questions: int = 0
    active_tools: int = 0
