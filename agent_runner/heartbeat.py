"""The heartbeat: the agent looks after things by itself, and costs nothing where nothing has changed.

What to look at is HEARTBEAT.md in the agent's folder, which is people's. Whether, how often, in which hours and how
many beats a day may ask the model are the host's decisions and come with the row. A beat asks the model only when there
is something to look at and something is different from the last time: the words, the agent's files, what people wrote,
or what the check script says. What it answers reaches the chat only when it is news.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from agent_runner.batching import Batch
from agent_runner.formatting import Malformed
from agent_runner.log import log
from agent_runner.mailbox import Mailbox, Output
from agent_runner.scripts import Failed, Said, Verdict, script_of
from agent_runner.turn import Part
from mailboxes.clock import from_text, to_text
from mailboxes.layout import Workspace
from mailboxes.rows import MessageIn

WORDS = "HEARTBEAT.md"
MEMORY = Path("home/memory/MEMORY.md")
NOTHING = "HEARTBEAT_OK"
"""What the agent answers when nothing wants attention."""

UNCHANGED = "nothing has changed since the last beat"

_STATE = "heartbeat.json"
_MAX_CHARACTERS = 20_000
_MAX_FILES = 2_000
_LITTLE = 5
"""Beside NOTHING an answer of so few characters says nothing either (ledger R236)."""

_ASK = f"""Look after what is written above. If nothing wants anybody's attention now, answer {NOTHING} and nothing
else; say nothing that you have said before. Otherwise your answer is sent to the chat."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What the host decided, from the content of the row. `hours`: (first, end), None for the whole day."""

    every: timedelta
    hours: tuple[int, int] | None
    zone: str
    per_day: int | None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept from beat to beat. `asked`: how many beats of `day` asked the model."""

    last: str | None = None
    seen: str = ""
    said: str = ""
    day: str = ""
    asked: int = 0


def decisions_of(row: MessageIn) -> Decisions:
    """Those that come with a beat."""
    values = json.loads(row.content)["heartbeat"]
    hours = None if values["hours"] is None else (values["hours"][0], values["hours"][1])
    return Decisions(timedelta(seconds=values["every_seconds"]), hours, values["zone"], values["per_day"])


def in_hours(moment: datetime, hours: tuple[int, int] | None, zone: str) -> bool:
    """Whether a time lies within hours of the day, over midnight where the end is smaller; equal ones are the whole
    day."""
    if hours is None:
        return True
    hour, first, end = moment.astimezone(_zone(zone)).hour, hours[0] % 24, hours[1] % 24
    return first == end or (first <= hour < end if first < end else hour >= first or hour < end)


def refusal(words: str | None, decisions: Decisions, memory: Memory, now: datetime) -> str | None:
    """Why there is no beat now, the first reason that holds; None where there is to be one (ledger R234). That nothing
    else runs is seen to by the order of batches: a beat begins when nobody waits."""
    if words is None:
        return f"there is no {WORDS}"
    if not _says_something(words):
        return f"{WORDS} is empty"
    # Half of it: a beat may begin late, and the next one is on time again.
    if memory.last is not None and now - from_text(memory.last) < decisions.every / 2:
        return "the interval has not passed"
    if not in_hours(now, decisions.hours, decisions.zone):
        return "it is outside its hours"
    if decisions.per_day is not None and _asked_today(memory, decisions, now) >= decisions.per_day:
        return "it has asked the model as often as it may today"
    return None


def _says_something(words: str) -> bool:
    """Headings and comments alone are nothing to look at."""
    outside = "".join(part.partition("-->")[2] if number else part for number, part in enumerate(words.split("<!--")))
    return any(line.strip() and not line.lstrip().startswith("#") for line in outside.splitlines())


def _day(decisions: Decisions, now: datetime) -> str:
    return now.astimezone(_zone(decisions.zone)).date().isoformat()


def _asked_today(memory: Memory, decisions: Decisions, now: datetime) -> int:
    return memory.asked if memory.day == _day(decisions, now) else 0


def news(text: str, said: str) -> str | None:
    """What of an answer is worth sending; None where it is none, or what was said the last time."""
    left = text.replace(NOTHING, "").strip()
    if NOTHING in text and len(left) <= _LITTLE:
        return None
    return None if not left or left == said else left


class Heartbeat:
    """A session's heartbeat in the runner. `heard` tells how far people have written: any change of it is news."""

    def __init__(self, workspace: Workspace) -> None:
        self._agent = workspace.agent
        self._file = workspace.state / _STATE
        self._heard = 0
        self._failed = ""

    # -- before

    def stays_quiet(self, batch: Batch, mailbox: Mailbox, now: datetime) -> bool:
        """Whether this batch is a beat that asks nobody. Raises HostAway and Malformed."""
        row = batch.rows[0]
        if not row.is_heartbeat:
            return False
        try:
            reason = self.quiet(row, mailbox.heard(), now)
        except (ValueError, KeyError, TypeError) as error:
            raise Malformed(row, "this heartbeat comes without the host's decisions") from error
        if reason is not None:
            log("heartbeat_quiet", message_id=row.id, reason=reason)
        return reason is not None

    def wakes_nobody(self, row: MessageIn, verdict: Verdict) -> bool:
        """Whether a task ends with what its script said."""
        if row.is_heartbeat:
            return self.quiet_after(verdict) is not None
        return isinstance(verdict, Said) and not verdict.wake

    def quiet(self, row: MessageIn, heard: int, now: datetime) -> str | None:
        """Why this beat asks nobody; None where it goes on. Without a script, what has not changed is known here."""
        self._heard, self._failed = heard, ""
        memory = self._memory()
        reason = refusal(self._words(), decisions_of(row), memory, now)
        if reason is None and script_of(row) is None and memory.seen == self._seen():
            self._remember(replace(memory, last=to_text(now)))
            return UNCHANGED
        return reason

    def quiet_after(self, verdict: Verdict) -> str | None:
        """The same once its check script has run: it decides, and where it fails a change does."""
        if isinstance(verdict, Said):
            return None if verdict.wake else "its script has nothing"
        self._failed = verdict.reason
        return UNCHANGED if self._memory().seen == self._seen() else None

    def prompt(self, verdict: Verdict | None, now: datetime) -> str:
        """What the model is asked. SOUL.md stands in the system prompt."""
        parts = [f"[HEARTBEAT]\n{self._words() or ''}"]
        if isinstance(verdict, Said) and verdict.data is not None:
            parts.append(f"What the check script says:\n{verdict.data}")
        if isinstance(verdict, Failed):
            parts.append(f"The check script failed: {verdict.reason}\n{verdict.output}".rstrip())
        memory = _read(self._agent / MEMORY)
        if memory and memory.strip():
            parts.append(f"## Known Context\n{memory.strip()}")
        return "\n\n".join((*parts, f"It is {now.isoformat(timespec='minutes')}.", _ASK))

    # -- after

    def only_news(self, part: Part) -> tuple[Part, MessageIn | None]:
        """What of a part is to be said, and the beat that it answers; None where it answers something else."""
        if not part.rows or not all(row.is_heartbeat for row in part.rows):
            return part, None
        return replace(part, outputs=[news for output in part.outputs if (news := self.keep(output))]), part.rows[0]

    def keep(self, output: Output) -> Output | None:
        """What of an answer goes to the chat. What was said is remembered."""
        memory, (key,) = self._memory(), output.text_key
        left = news(str(output.content[key]), memory.said)
        if left is None:
            return None
        self._remember(replace(memory, said=left))
        return replace(output, content={**output.content, key: left})

    def asked(self, row: MessageIn, now: datetime) -> None:
        """A beat is over that asked the model: what it left behind is no news for the next one."""
        decisions, memory = decisions_of(row), self._memory()
        today, asked = _day(decisions, now), _asked_today(memory, decisions, now) + 1
        self._remember(replace(memory, last=to_text(now), seen=self._seen(), day=today, asked=asked))

    # -- what it knows

    def _seen(self) -> str:
        facts = json.dumps([self._words(), self._heard, self._failed, sorted(_files(self._agent / "home"))])
        return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()

    def _words(self) -> str | None:
        return _read(self._agent / WORDS)

    def _memory(self) -> Memory:
        try:
            values: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
            return Memory(**values)
        except (OSError, ValueError, TypeError):
            return Memory()  # the first beat, or somebody spoiled the file: it looks once more

    def _remember(self, memory: Memory) -> None:
        building = self._file.with_suffix(".new")
        building.write_text(json.dumps(asdict(memory)), encoding="utf-8")
        building.replace(self._file)


def _read(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARACTERS)
    except OSError:
        return None


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of the agent's own files, up to _MAX_FILES."""
    count = 0
    for where, _, names in os.walk(folder):
        for name in names:
            count += 1
            if count > _MAX_FILES:
                return
            path = os.path.join(where, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            yield path, status.st_size, status.st_mtime_ns


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # most runners see no heartbeat, and start sooner without

    return ZoneInfo(name)
