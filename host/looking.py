"""Looking, by name: what `agents list` and its like show, the same through the running host and from the files without
one.

Read-only. Messages are read from the sessions' inbound.db (the host's own files), each for one short moment.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from host import __version__, views
from host.failure import Code, Failure
from host.home import Home
from host.lock import holder
from host.mailbox_index import MailboxIndex, count_only
from host.undelivered import BUSY_SECONDS, OPEN_STATES, UNDELIVERED
from host.views import Facts, Query

Row = dict[str, object]

MESSAGES_SHOWN = 50
_FIRST = "~"
"""Behind every time: what cannot be read stands before the newest."""


@dataclass(frozen=True, slots=True)
class Looker:
    """What a look needs: the central database, the home, and the environment whose variables are settings."""

    query: Query
    home: Home
    environment: Mapping[str, str]


def look(name: str, params: Mapping[str, object], looker: Looker) -> object:
    """The answer of a view of VIEWS: rows, or one thing. Raises Failure."""
    return VIEWS[name](looker, params)


def look_offline(name: str, params: Mapping[str, object], home: Home, environment: Mapping[str, str]) -> object:
    """The same without a host: from the files. Raises Failure where there is no database yet, or none that can be
    read."""
    if not home.database.exists():
        raise Failure(Code.NO_HOST, f"Nothing has been set up in {home.root} yet.", "Begin with `host setup`.")
    try:
        with views.offline(home.database) as query:
            return look(name, params, Looker(query, home, environment))
    except sqlite3.Error as error:
        raise Failure(Code.FAILED, f"{home.database} cannot be read: {error}.", "See `host logs`.") from None


def stopped_status(home: Home) -> Row:
    """The status of a home on which no host answers, in the shape of `host status --json`."""
    process = holder(home.lock_file)
    problems: list[Row] = []
    if process is not None:
        sentence = f"A host holds this home (process {process}) and does not answer."
        problems.append({"what": sentence, "next": "See `host logs`; it may still be starting or stopping."})
    numbers = _numbers(home, problems)
    return {
        "host": {
            "state": "stopped" if process is None else "silent",
            "pid": process,
            "since": None,
            "version": __version__,
            "home": str(home.root),
        },
        "problems": problems,
        "warnings": [],
        "model": None,
        "sandbox": None,
        "channels": [],
        **numbers,
    }


def _numbers(home: Home, problems: list[Row]) -> Row:
    if not home.database.exists():
        return {"agents": 0, "sessions": {}, "messages": {"arriving": 0, "undelivered": 0}}
    try:
        with views.offline(home.database) as query:
            facts = views.facts(query)
            sessions = views.session_keys(query)
    except sqlite3.Error as error:
        problems.append({"what": f"{home.database} cannot be read: {error}.", "next": "See `host logs`."})
        return {"agents": 0, "sessions": {}, "messages": {"arriving": 0, "undelivered": 0}}
    index = MailboxIndex(home, count_only)
    index.load()
    undelivered = undelivered_of_host(facts) + index.undelivered(sessions)
    return {
        "agents": facts.agents,
        "sessions": dict(facts.sessions),
        "messages": {"arriving": facts.spooled, "undelivered": undelivered},
    }


def undelivered_of_host(facts: Facts) -> int:
    """How many messages of the host itself have not arrived."""
    return sum(number for state, number in facts.outbox.items() if state in OPEN_STATES)


def _agents(looker: Looker, _params: Mapping[str, object]) -> list[Row]:
    return views.agents(looker.query)


def _agent(looker: Looker, params: Mapping[str, object]) -> Row | None:
    return views.agent(looker.query, str(params.get("id", "")))


def _chats(looker: Looker, _params: Mapping[str, object]) -> list[Row]:
    return views.chats(looker.query)


def _sessions(looker: Looker, params: Mapping[str, object]) -> list[Row]:
    return views.sessions(looker.query, closed=params.get("closed") is True)


def _session(looker: Looker, params: Mapping[str, object]) -> Row | None:
    return views.session(looker.query, str(params.get("id", "")))


def _tasks(looker: Looker, params: Mapping[str, object]) -> list[Row]:
    from host.task_rows import tasks_of

    return tasks_of(looker.query, looker.home, params)


def _task(looker: Looker, params: Mapping[str, object]) -> Row | None:
    from host.task_rows import task_of

    return task_of(looker.query, looker.home, params)


def _settings(looker: Looker, _params: Mapping[str, object]) -> list[Row]:
    from host.settings import DEFAULTS, names

    stored = views.settings(looker.query)
    rows: list[Row] = []
    for name in names():
        variable = f"INNKEEPER_{name.upper()}"
        value, source = str(getattr(DEFAULTS, name)), "default"
        if name in stored:
            value, source = stored[name], "database"
        if variable in looker.environment:
            value, source = looker.environment[variable], f"variable {variable}"
        rows.append({"name": name, "value": value, "source": source})
    return rows


def _messages(looker: Looker, params: Mapping[str, object]) -> list[Row]:
    """The newest first, and before them a row of the state "unreadable" for each session that cannot be read now.

    `session`: one session's; `undelivered`: what was said and has not arrived; `id`: whose id begins so.
    """
    wanted = params.get("session")
    limit = params.get("limit", MESSAGES_SHOWN)
    undelivered, beginning = params.get("undelivered") is True, params.get("id")
    rows: list[Row] = []
    for session in views.sessions(looker.query, closed=True):
        if wanted in {None, session["id"]}:
            rows += _messages_of(looker.home, session, undelivered=undelivered, beginning=beginning)
    rows += _host_messages(looker.query, undelivered=undelivered, beginning=beginning) if wanted is None else []
    rows.sort(key=lambda row: str(row["at"] or _FIRST), reverse=True)
    return rows if undelivered or not isinstance(limit, int) else rows[:limit]


def _message(looker: Looker, params: Mapping[str, object]) -> Row | None:
    wanted = str(params.get("id", ""))
    return next((row for row in _messages(looker, {"id": wanted}) if row["id"] == wanted), None)


_IN = """
SELECT id, 'in' AS direction, kind, status AS state, timestamp AS at, content, tries AS attempts, process_after AS
next_attempt_at, NULL AS last_error, NULL AS in_reply_to, channel_type, platform_id FROM messages_in
WHERE substr(id, 1, length(:beginning)) = :beginning ORDER BY timestamp DESC LIMIT :limit
"""
_OUT = """
SELECT id, 'out' AS direction, kind, state, timestamp AS at, content, attempts, next_attempt_at, last_error,
in_reply_to, channel_type, platform_id FROM {table} WHERE {only} AND substr(id, 1, length(:beginning)) = :beginning
ORDER BY timestamp DESC LIMIT :limit
"""
_MOST = 500


def _statements(*, undelivered: bool) -> list[str]:
    """What reads one inbound.db. An agent's undelivered messages are found by their index, whatever else is there."""
    said = _OUT.format(table="deliveries", only=UNDELIVERED if undelivered else "1")
    return [said] if undelivered else [_IN, said]


def _parameters(beginning: object) -> Row:
    return {"beginning": str(beginning or ""), "limit": _MOST}


def _messages_of(home: Home, session: Mapping[str, object], *, undelivered: bool, beginning: object) -> Iterator[Row]:
    folder = home.session_folder(str(session["agent_group_id"]), str(session["id"]))
    path = folder / "inbound" / "inbound.db"
    if not path.exists():
        return
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    connection.row_factory = sqlite3.Row
    parameters = _parameters(beginning)
    try:
        found = [
            dict(row)
            for statement in _statements(undelivered=undelivered)
            for row in connection.execute(statement, parameters)
        ]
    except sqlite3.Error as error:
        # The host writes just now, or died in a write and rolls it back at its next start, or the file is damaged.
        found = [] if beginning is not None else [_unreadable(error)]
    finally:
        connection.close()
    for row in found:
        yield {
            **_readable(row),
            "session": session["id"],
            "agent": session["agent"],
            "agent_group_id": session["agent_group_id"],
        }


def _unreadable(error: sqlite3.Error) -> Row:
    """Stands in a list for the messages of a session that cannot be read."""
    text = f"The messages of this session cannot be read now: {error}. See: host logs"
    return {
        "id": None, "direction": None, "kind": None, "state": "unreadable", "at": None, "content": text,
        "attempts": None, "next_attempt_at": None, "last_error": str(error), "in_reply_to": None,
        "channel_type": None, "platform_id": None,
    }  # fmt: skip


def _host_messages(query: Query, *, undelivered: bool, beginning: object) -> Iterator[Row]:
    statement = _OUT.format(table="host_outbox", only=UNDELIVERED if undelivered else "1 = 1")
    for row in query(statement, _parameters(beginning)):
        yield {**_readable(row), "session": None, "agent": None, "agent_group_id": None}


def _readable(row: Row) -> Row:
    channel, chat = row.pop("channel_type"), row.pop("platform_id")
    content = str(row.pop("content"))
    try:
        parsed = json.loads(content)
    except ValueError:
        parsed = None
    text = parsed.get("text") if isinstance(parsed, dict) else None
    return {**row, "chat": f"{channel}:{chat}" if channel else None, "text": text if isinstance(text, str) else content}


VIEWS: Mapping[str, Callable[[Looker, Mapping[str, object]], object]] = {
    "agents.list": _agents,
    "agents.show": _agent,
    "chats.list": _chats,
    "sessions.list": _sessions,
    "sessions.show": _session,
    "messages.list": _messages,
    "messages.show": _message,
    "settings.list": _settings,
    "tasks.list": _tasks,
    "tasks.show": _task,
}
