"""What the host takes over from a mailbox and delivers: the values, and how they are read from its tables."""

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from host.reader import BadRow
from mailboxes.rows import Address, DeliveryState, Kind, MessageOut, RunnerState


class InboundHeld(Exception):
    """The sandbox holds a lock on inbound.db past the busy time: it has to go before the write can be done."""


@dataclass(frozen=True, slots=True)
class SessionRef:
    """What finds a session and its folder."""

    agent_group_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to deliver. `reserved`: its intent is committed and its address is this item's already."""

    id: str
    address: Address
    kind: str
    content: str
    session: SessionRef | None
    state: str = DeliveryState.QUEUED
    attempts: int = 0
    chunks_done: int = 0
    platform_ids: tuple[str, ...] = ()
    unknown_count: int = 0
    due: str | None = None
    in_reply_to: str | None = None
    reserved: bool = False
    by_host: bool = False
    """The host's own word. Only the record can say so: a container writes whatever it likes into `content`."""


@dataclass(frozen=True, slots=True)
class Target:
    """The message that an edit or a reaction is about. `due`: when it will be sent, where that is later; `ours`: this
    session said it, and nobody else."""

    id: str
    address: Address
    platform_ids: tuple[str, ...]
    due: str | None = None
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """What delivery records about an item. `durable` False commits without waiting for the disk."""

    state: DeliveryState
    attempts: int
    chunks_done: int
    platform_ids: tuple[str, ...]
    unknown_count: int = 0
    next_attempt_at: str | None = None
    last_error: str | None = None
    durable: bool = True


@dataclass(frozen=True, slots=True)
class Action:
    """A system action that the agent asked for; it is open until its answer is written."""

    id: str
    name: str
    payload: dict[str, object]
    in_reply_to: str | None


Refusal = Callable[[MessageOut], str | None]
"""Why a row may not be sent where it says (a sentence for the agent); None when it may."""


@dataclass(slots=True)
class TakeOver:
    """What one reading of a mailbox brought."""

    items: list[Item] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    finished: list[tuple[str, bool]] = field(default_factory=list)
    """(message id, completed rather than failed), in order."""
    carried_on: list[tuple[str, str]] = field(default_factory=list)
    """(message id, the id of the row by which it goes on)."""
    state: RunnerState | None = None
    bad_rows: tuple[BadRow, ...] = ()
    written_in: bool = False
    """New rows were put into messages_in: the runner wants a ring."""
    more: bool = False
    reserved: list[Address] = field(default_factory=list)


def system_content(action: str, status: str, result: object) -> str:
    """The content of a system row for the agent."""
    return json.dumps({"action": action, "status": status, "result": result}, ensure_ascii=False)


def action_of(row_id: str, in_reply_to: str | None, content: str) -> Action:
    """The action that a system row asks for; a payload that is no object is an empty one."""
    values = json.loads(content)
    payload = values.get("payload")
    return Action(row_id, str(values.get("action")), payload if isinstance(payload, dict) else {}, in_reply_to)


def text_of(kind: str, content: str) -> str:
    """What a person reads of a row's content, whatever its kind (the shapes of ledger row R030)."""
    values = json.loads(content)
    response = values.get("response")
    candidates = (
        values.get("text"),
        values.get("markdown"),
        values.get("fallbackText"),
        values.get("result") if kind == Kind.TASK else None,
        response.get("body") if isinstance(response, dict) else None,
    )
    text = next((value for value in candidates if isinstance(value, str) and value), "")
    files = values.get("files")
    if isinstance(files, list) and files:
        names = ", ".join(str(name) for name in files)
        text = f"{text}\n[files: {names}]" if text else f"[files: {names}]"
    return text


def item_of(row: sqlite3.Row | Mapping[str, Any], key: SessionRef | None) -> Item:
    """An item from a row of `deliveries` or `host_outbox`. What was being sent when it was left is of unknown
    outcome."""
    interrupted = row["state"] == DeliveryState.SENDING
    return Item(
        row["id"],
        Address(row["channel_type"], row["account_id"], row["platform_id"], row["thread_id"]),
        row["kind"],
        row["content"],
        key,
        DeliveryState.UNKNOWN if interrupted else row["state"],
        row["attempts"],
        row["chunks_done"],
        tuple(json.loads(row["platform_ids"])),
        row["unknown_count"] + interrupted,
        row["next_attempt_at"] or row["deliver_after"],
        row["in_reply_to"],
        # Occurrences, and what was moved here from another session, have no number either.
        by_host=key is None or (row["seq"] is None and row["turn_id"] is None and row["series_id"] is None),
    )
