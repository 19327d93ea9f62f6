"""What becomes of messages whose turn ended without an answer: pure decisions over plain values."""

import json
from dataclasses import dataclass, replace
from datetime import datetime

from host.text import printable
from mailboxes import clock
from mailboxes.ids import derived_id
from mailboxes.rows import InStatus, Kind, MessageIn

RETRY_SECONDS = (5, 10, 20, 40)
"""Back-off before attempts 2 to 5 (ledger R153); the fifth failure is the last."""

REPEATED = 50
"""So many of the texts that a turn had sent, the last ones, are repeated to the agent that goes on: a runner can send
without end, and name one turn for all of it."""

_SENT_TEXT = 2000
"""Characters of one sent text that a continuation repeats to the agent."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One row that a turn had already said."""

    seq: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The messages of one turn that ended early. `counted` is False when the host itself stopped the runner."""

    turn_id: str
    rows: tuple[MessageIn, ...]
    reason: str
    spoken: tuple[Spoken, ...] = ()
    counted: bool = True
    retryable: bool = True
    theirs: bool = False
    """The reason is the container's words, which must not be taken for the host's."""


@dataclass(frozen=True, slots=True)
class Update:
    """A change of one row of messages_in."""

    message_id: str
    status: InStatus
    tries: int
    process_after: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to write, in one transaction: changes of rows, at most one continuation, and the notice for the user if
    any."""

    updates: tuple[Update, ...]
    continuation: MessageIn | None = None
    notice: str | None = None


def retry_delay(tries: int) -> float | None:
    """Seconds until the next attempt after `tries` failed ones (1 or more); None when there is none."""
    return RETRY_SECONDS[tries - 1] if tries <= len(RETRY_SECONDS) else None


def judge(turn: Interrupted, now: datetime) -> Verdict:
    """Decides on one interrupted turn.

    Output-sent protection: a turn that has said anything is not run again; one system row that inherits the tries
    carries on from there. Stops made by the host are no try.
    """
    if not turn.rows:
        return Verdict(())
    if turn.spoken:
        return _carry_on(turn, now)
    if not turn.counted:
        return Verdict(tuple(Update(row.id, InStatus.PENDING, row.tries, row.process_after) for row in turn.rows))
    # Each row by its own count: what came later must not fail with a message that was poison before.
    updates = tuple(_again(row, now, retryable=turn.retryable) for row in turn.rows)
    failed = any(update.status == InStatus.FAILED for update in updates)
    return Verdict(updates, notice=_notice(turn) if failed else None)


def _again(row: MessageIn, now: datetime, *, retryable: bool) -> Update:
    tries = row.tries + 1
    delay = retry_delay(tries) if retryable else None
    if delay is None:
        return Update(row.id, InStatus.FAILED, tries, row.process_after)
    return Update(row.id, InStatus.PENDING, tries, clock.later(now, delay))


def _carry_on(turn: Interrupted, now: datetime) -> Verdict:
    tries = max(row.tries for row in turn.rows) + turn.counted
    delay = (retry_delay(tries) if turn.retryable else None) if turn.counted else 0
    if delay is None:
        failed = tuple(Update(row.id, InStatus.FAILED, row.tries + 1, row.process_after) for row in turn.rows)
        return Verdict(failed, notice=_notice(turn))
    after = clock.later(now, delay) if delay else None
    done = tuple(Update(row.id, InStatus.COMPLETED, row.tries, row.process_after) for row in turn.rows)
    return Verdict(done, continuation=_continuation(turn, tries, after, now))


def _notice(turn: Interrupted) -> str:
    reason = turn.reason.rstrip()
    if turn.theirs:
        reason = f"The sandbox says: {printable(reason)}"
    if not turn.retryable:
        return reason
    return (
        f"I could not answer: {reason} I tried {len(RETRY_SECONDS) + 1} times; send the message again to try once more."
    )


def _continuation(turn: Interrupted, tries: int, after: str | None, now: datetime) -> MessageIn:
    message_ids: list[str] = []
    sent: list[dict[str, object]] = []
    for row in turn.rows:
        earlier = continued(row)
        message_ids += earlier[0] if earlier else [row.id]
        sent += earlier[1] if earlier else []
    sent += [{"seq": spoken.seq, "text": spoken.text[:_SENT_TEXT]} for spoken in turn.spoken]
    result = {"turn_id": turn.turn_id, "message_ids": message_ids, "sent": sent[-REPEATED:]}
    last = turn.rows[-1]
    return replace(
        last,
        id=derived_id(f"{turn.turn_id} {last.id}", "continuation"),
        kind=Kind.SYSTEM,
        timestamp=clock.to_text(now),
        content=json.dumps({"action": "continue_turn", "status": "interrupted", "result": result}, ensure_ascii=False),
        status=InStatus.PENDING,
        status_changed=None,
        process_after=after,
        recurrence=None,
        tries=tries,
        seq=0,
        trigger=True,
        on_wake=False,
    )


def continued(row: MessageIn) -> tuple[list[str], list[dict[str, object]]] | None:
    """The original message ids and sent texts that a continuation row carries; None for any other row."""
    if row.kind != Kind.SYSTEM:
        return None
    content = json.loads(row.content)
    if content.get("action") != "continue_turn":
        return None
    result = content["result"]
    return list(result["message_ids"]), list(result["sent"])
