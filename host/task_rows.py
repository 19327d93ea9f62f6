"""Tasks as they are shown: to an agent, in a table, as JSON. Read-only."""

import json
import sqlite3
from collections.abc import Iterator, Mapping

from host import views
from host.home import Home
from host.series import LIVE, Direction, every
from host.series_changes import Listed, listed
from host.timetable import At, Hours
from host.undelivered import BUSY_SECONDS
from host.views import Query
from mailboxes.layout import INBOUND_DB

Row = dict[str, object]


def task_row(task: Listed) -> Row:
    """One task; `next` is the canonical time, `next_local` the same in its zone."""
    series = task.series
    content = json.loads(series.content)
    text = content.get("prompt" if series.direction is Direction.IN else "text")
    return {
        "id": series.id,
        "name": series.name,
        "kind": "prompt" if series.direction is Direction.IN else "message",
        "state": "running" if task.running else series.state.value,
        "next": task.slot,
        "next_local": task.next,
        "recurrence": None if isinstance(series.schedule, At) else str(series.schedule),
        "zone": series.zone,
        "text": text if isinstance(text, str) else None,
        "script": content.get("script"),
        "quiet": series.quiet,
        "hours": _hours(series.hours),
        "per_day": series.per_day,
        "missed": series.missed.value,
        "missed_from": series.missed_from,
        "missed_until": series.missed_until,
        "failures": series.failures,
        "last_run": series.last_run,
        "last_status": series.last_status,
        "last_error": series.last_error,
        "chat": None if series.address is None else f"{series.address.channel_type}:{series.address.platform_id}",
        "created": series.created,
    }


def _hours(hours: Hours | None) -> str | None:
    return None if hours is None else f"{hours.first}-{hours.end}"


def for_agent(task: Listed) -> Row:
    """What the agent is told of one of its tasks."""
    row = task_row(task)
    told = {
        name: row[name]
        for name in ("name", "kind", "state", "recurrence", "zone", "failures", "last_run", "last_status")
    }
    return {"task_id": row["id"], "next": row["next_local"], str(row["kind"]): row["text"], **told}


def _of_session(home: Home, session: Mapping[str, object], *, ended: bool) -> Iterator[Row]:
    path = home.session_folder(str(session["agent_group_id"]), str(session["id"])) / "inbound" / INBOUND_DB
    if not path.exists():
        return
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    db.row_factory = sqlite3.Row
    try:
        found = [task_row(listed(db, series)) for series in every(db, "1" if ended else LIVE)]
    except sqlite3.Error:
        # Made by an older version and not opened since, or in the middle of a write: it is read the next time.
        found = []
    finally:
        db.close()
    for row in found:
        yield {**row, "session": session["id"], "agent": session["agent"], "agent_group_id": session["agent_group_id"]}


def tasks_of(query: Query, home: Home, params: Mapping[str, object]) -> list[Row]:
    """The live tasks (with `ended` all) of every session or of `session`, the next one first."""
    wanted, ended = params.get("session"), params.get("ended") is True
    rows = [
        row
        for session in views.sessions(query, closed=ended)
        if wanted in {None, session["id"]}
        for row in _of_session(home, session, ended=ended)
    ]
    return sorted(rows, key=lambda row: (row["next"] is None, str(row["next"]), str(row["id"])))


def task_of(query: Query, home: Home, params: Mapping[str, object]) -> Row | None:
    """The task of the id `id`."""
    return next((row for row in tasks_of(query, home, {"ended": True}) if row["id"] == params.get("id")), None)
