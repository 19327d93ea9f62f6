"""The books of a week: what every file says at its end, read without the host's help."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from host.channels.base import InboundEvent
from host.home import Home
from mailboxes.clock import from_text, to_text
from mailboxes.layout import INBOUND_DB
from tests.week.agents import Said
from tests.week.plan import Plan
from tests.week.platform import Take

if TYPE_CHECKING:
    from tests.week.town import Town
    from tests.week.week import Week

Row = Mapping[str, Any]
Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class Box:
    """One session's inbound.db. `open`: nothing has taken the session's place."""

    session: str
    agent: str
    open: bool
    messages: Sequence[Row]
    deliveries: Sequence[Row]
    series: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Books:
    """All that is known of a week when it is over."""

    plan: Plan
    now: datetime
    boxes: Sequence[Box]
    events: Sequence[InboundEvent]
    ingest: Mapping[str, Row]
    """By event key."""
    outbox: Sequence[Row]
    spool: Sequence[Row]
    questions: Sequence[Row]
    sessions: Sequence[Row]
    takes: Sequence[Take]
    killed: frozenset[int]
    said: Sequence[Said]
    rows_out: Mapping[str, str]
    missed: Mapping[str, Sequence[Span]]
    """What the host recorded as missed, by task."""
    paused: Mapping[str, Sequence[Span]]
    down: Sequence[Span]
    counts: Mapping[str, int]


def rows_in(path: Path, statement: str) -> list[dict[str, Any]]:
    """Rows of a database that may be in use."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(statement)]


def mailboxes_of(home: Home) -> Iterator[Path]:
    """Every inbound.db."""
    return iter(sorted(home.sessions.glob(f"*/*/inbound/{INBOUND_DB}")))


@dataclass(slots=True)
class Windows:
    """What was missed, as the host has it on record at the times at which somebody looks."""

    missed: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    paused: dict[str, list[Span]] = field(default_factory=dict)

    def look(self, home: Home) -> None:
        """Reads what stands there now."""
        for path in mailboxes_of(home):
            for row in rows_in(path, "SELECT id, missed_from, missed_until FROM series WHERE missed_from NOT NULL"):
                self.missed.setdefault(row["id"], set()).add((row["missed_from"], row["missed_until"]))

    def paused_since(self, home: Home, task: str) -> datetime | None:
        """Since when a task is paused; None where it is not."""
        for path in mailboxes_of(home):
            rows = rows_in(path, f"SELECT last_run FROM series WHERE id='{task}' AND state='paused'")
            if rows:
                return from_text(rows[0]["last_run"])
        return None

    def dead_letters(self, home: Home) -> list[str]:
        """What could not be delivered."""
        found: list[str] = []
        for path in mailboxes_of(home):
            rows = rows_in(
                path,
                "SELECT id FROM deliveries WHERE state='failed' AND attempts > 1 AND kind='chat' AND turn_id NOT NULL "
                "AND series_id IS NULL AND channel_type='telegram' AND instr(content, 'operation') = 0",
            )
            found += [row["id"] for row in rows]
        return sorted(found)


def read_books(week: "Week") -> Books:
    """The books, after the last host has stopped."""
    town, home = week.town, week.town.home
    known = rows_in(home.database, "SELECT * FROM sessions")
    status = {row["id"]: row["status"] for row in known}
    boxes = []
    for path in mailboxes_of(home):
        agent, session = path.parts[-4], path.parts[-3]
        tables = [rows_in(path, f"SELECT * FROM {name}") for name in ("messages_in", "deliveries", "series")]
        boxes.append(Box(session, agent, status[session] == "active", *tables))
    missed = {
        task: [(from_text(begin), from_text(end)) for begin, end in sorted(spans)]
        for task, spans in week.windows.missed.items()
    }
    agents = town.agents
    return Books(
        week.plan, town.clock.now(), boxes, town.platform.events,
        {row["event_key"]: row for row in rows_in(home.database, "SELECT * FROM ingest")},
        rows_in(home.database, "SELECT * FROM host_outbox"),
        rows_in(home.database, "SELECT * FROM ingest_spool"),
        rows_in(home.database, "SELECT * FROM pending_questions"),
        known, town.platform.takes, frozenset(town.killed), agents.said, agents.rows_out, missed,
        week.windows.paused, week.down,
        {
            "hosts": town.hosts, "killed hosts": len(town.killed), "kills at points": len(town.switch.hits),
            "turns": agents.turns, "crashed sandboxes": agents.crashes, "silent sandboxes": agents.hung,
            "spoilt mailboxes": agents.spoilt, "bad rows": agents.bad_rows, "sandboxes": len(town.process.sandboxes),
            "steps": town.steps,
        },
    )  # fmt: skip


def undone(town: "Town") -> list[str]:
    """What has not come to its end, a line each. What recurs may wait for its next time."""
    now, found = to_text(town.clock.now()), list[str]()
    for path in mailboxes_of(town.home):
        open_rows = [
            *rows_in(path, _OPEN_MESSAGES.format(now=now)),
            *rows_in(path, _OPEN_DELIVERIES.format(now=now)),
        ]
        found += [f"{path.parts[-3]}: {row['id']} is {row['state']}: {row['content'][:200]}" for row in open_rows]
    database = town.home.database
    found += [f"question {row['question_id']} is open" for row in rows_in(database, "SELECT * FROM pending_questions")]
    found += [
        f"the host's own word {row['id']} is {row['state']}"
        for row in rows_in(database, "SELECT id, state FROM host_outbox WHERE state NOT IN ('sent', 'failed')")
    ]
    if town.process.live():
        found.append(f"{len(town.process.live())} sandboxes are live")
    return found


_OPEN_MESSAGES = (
    "SELECT id, status AS state, content FROM messages_in WHERE trigger=1 AND status IN ('pending', 'processing') AND "
    "(status='processing' OR series_id IS NULL OR tries > 0 OR recurrence IS NULL OR process_after <= '{now}')"
)
_OPEN_DELIVERIES = (
    "SELECT id, state, content FROM deliveries WHERE state IN ('queued', 'sending', 'unknown') AND "
    "(state <> 'queued' OR series_id IS NULL OR next_attempt_at IS NOT NULL OR deliver_after <= '{now}')"
)


def content_of(row: Row) -> dict[str, Any]:
    """A row's content."""
    content = json.loads(row["content"])
    return content if isinstance(content, dict) else {}
