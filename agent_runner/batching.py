"""Which rows make the next batch: pure decisions over what is claimable, oldest first, one origin at a time."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from mailboxes.commands import CommandClass, classify
from mailboxes.limits import BATCH_CHARACTERS, BATCH_ROWS
from mailboxes.rows import Kind, MessageIn


@dataclass(frozen=True, slots=True)
class Waiting:
    """A claimable row without its content. `starts` is whether it may start a turn; others only ride along. `yields`:
    it is a heartbeat's, which runs alone and only when nothing else may start a turn."""

    id: str
    seq: int
    origin: tuple[str, ...]
    addressed: bool
    starts: bool
    yields: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """The rows of one origin to look at closely, in order of seq. `omitted` are older rows that only ride along and for
    which there is no room in front of the first row that starts a turn: they are claimed with the batch and counted."""

    ids: tuple[str, ...]
    omitted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """What a turn starts with, or what is pushed into one, in order of seq. A command comes alone."""

    rows: tuple[MessageIn, ...]
    omitted: tuple[MessageIn, ...] = ()
    command: CommandClass = CommandClass.NONE

    @property
    def origin(self) -> tuple[str, ...]:
        """The origin of the row that started it: one that only rides along may come from elsewhere."""
        return next(row.origin for row in self.rows if starts_turn(row))


def candidates(waiting: Sequence[Waiting], origin: tuple[str, ...] | None = None) -> Candidates | None:
    """The rows of `origin`, by default of the one whose oldest row that starts a turn is oldest. None when none
    starts one.

    `waiting` is in order of seq. A row that only rides along and has no address rides with any origin.
    """
    beats = [row for row in waiting if row.yields and row.starts]
    waiting = [row for row in waiting if not row.yields]
    if origin is None:
        origin = next((row.origin for row in waiting if row.starts), None)
        if origin is None and beats:
            return Candidates((beats[0].id,))
    ours = [row for row in waiting if row.origin == origin or not (row.addressed or row.starts)]
    first = next((index for index, row in enumerate(ours) if row.starts), None)
    if first is None:
        return None
    oldest = max(0, first - (BATCH_ROWS - 1))
    return Candidates(
        tuple(row.id for row in ours[oldest : first + BATCH_ROWS]), tuple(row.id for row in ours[:oldest])
    )


def starts_turn(row: MessageIn) -> bool:
    """Whether the row may start a turn by itself."""
    return row.trigger and not row.on_wake


def command_class(row: MessageIn) -> CommandClass:
    """The class of the slash command that a row is; only chat rows that start a turn are commands."""
    if row.kind not in (Kind.CHAT, Kind.CHAT_SDK) or not starts_turn(row):
        return CommandClass.NONE
    return classify(chat_text(row))


def waits_its_turn(batch: Batch) -> bool:
    """Whether the host has stamped one of the rows with the wish not to go into a running turn."""
    return any(row.kind in (Kind.CHAT, Kind.CHAT_SDK) and _content(row).get("busy") == "queue" for row in batch.rows)


def _content(row: MessageIn) -> dict[str, object]:
    try:
        content = json.loads(row.content)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def chat_text(row: MessageIn) -> str:
    """The plain text of a chat row, blank where it has none that can be read."""
    text = _content(row).get("text")
    return text.strip() if isinstance(text, str) else ""


def cut_batch(rows: Sequence[MessageIn], omitted: Sequence[MessageIn] = ()) -> Batch:
    """The batch out of candidate rows: around the first row that starts a turn, up to BATCH_ROWS rows and
    BATCH_CHARACTERS characters of content, and never across a command. A single larger row goes alone."""
    first = next(index for index, row in enumerate(rows) if starts_turn(row))
    command = command_class(rows[first])
    if command is not CommandClass.NONE:
        return Batch((rows[first],), command=command)
    taken = [rows[first]]
    room = BATCH_CHARACTERS - len(rows[first].content)
    begin = first
    while begin > 0 and len(rows[begin - 1].content) <= room:
        begin -= 1
        room -= len(rows[begin].content)
        taken.insert(0, rows[begin])
    for row in rows[first + 1 :]:
        if len(taken) >= BATCH_ROWS or len(row.content) > room or command_class(row) is not CommandClass.NONE:
            break
        room -= len(row.content)
        taken.append(row)
    return Batch(tuple(taken), (*omitted, *rows[:begin]))
