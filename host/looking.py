"""Looking, by name: what `agents list` and its like show, the same through the running host and from the files without
one.

Read-only. Messages are read from the sessions' inbound.db (the host's own files), each for one short moment.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from host import views
from host.failure import Code, Failure
from host.home import Home
from host.lock import holder
from host.settings import DEFAULTS, names
from host.views import Query

Row = dict[str, object]

MESSAGES_SHOWN = 50
_BUSY_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Looker:
    """What a look needs: the central database, the home, and the environment whose variables are settings."""

    query: Query
    home: Home
    environment: Mapping[str, str]


def own_version() -> str:
    """The version of this distribution; "unknown" in a tree that is not installed."""
    try:
        return version("innkeeper")
    except PackageNotFoundError:
        return "unknown"


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
            "version": own_version(),
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
            undelivered = len(_messages(Looker(query, home, {}), {"undelivered": True}))
    except sqlite3.Error as error:
        problems.append({"what": f"{home.database} cannot be read: {error}.", "next": "See `host logs`."})
        return {"agents": 0, "sessions": {}, "messages": {"arriving": 0, "undelivered": 0}}
    return {
        "agents": facts.agents,
        "sessions": dict(facts.sessions),
        "messages": {"arriving": facts.spooled, "undelivered": undelivered},
    }


def _agents(looker: Looker, _params: Mapping[str, object]) -> list[Row]:
    return views.agents(looker.query)


def _agent(looker: Looker, params: Mapping[str, object]) -> Row | None:
    return views.agent(looker.query, str(params.get("id", "")))


def _sessions(looker: Looker, params: Mapping[str, object]) -> list[Row]:
    return views.sessions(looker.query, closed=params.get("closed") is True)


def _session(looker: Looker, params: Mapping[str, object]) -> Row | None:
    return views.session(looker.query, str(params.get("id", "")))


def _settings(looker: Looker, _params: Mapping[str, object]) -> list[Row]:
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
    """The newest first. `session`: one session's; `undelivered`: what was said and has not arrived; `id`: whose id
    begins so."""
    wanted = params.get("session")
    limit = params.get("limit", MESSAGES_SHOWN)
    undelivered, beginning = params.get("undelivered") is True, params.get("id")
    rows: list[Row] = []
    for session in views.sessions(looker.query, closed=True):
        if wanted in {None, session["id"]}:
            rows += _messages_of(looker.home, session, undelivered=undelivered, beginning=beginning)
    rows += _host_messages(looker.query, undelivered=undelivered, beginning=beginning) if wanted is None else []
    rows.sort(key=lambda row: str(row["at"]), reverse=True)
    return rows if undelivered or not isinstance(limit, int) else rows[:limit]


def _message(looker: Looker, params: Mapping[str, object]) -> Row | None:
    wanted = str(params.get("id", ""))
    return next((row for row in _messages(looker, {"id": wanted}) if row["id"] == wanted), None)


_IN = """
SELECT id, 'in' AS direction, kind, status AS state, timestamp AS at, content, tries AS attempts, process_after AS
next_attempt_at, NULL AS last_error, NULL AS in_reply_to, channel_type, platform_id FROM messages_in WHERE :undelivered
= 0 AND substr(id, 1, length(:beginning)) = :beginning ORDER BY timestamp DESC LIMIT :limit
"""
_OUT = """
SELECT id, 'out' AS direction, kind, state, timestamp AS at, content, attempts, next_attempt_at, last_error,
in_reply_to, channel_type, platform_id FROM {table} WHERE (:undelivered = 0 OR state IN ('queued', 'sending', 'unknown',
'failed')) AND substr(id, 1, length(:beginning)) = :beginning ORDER BY timestamp DESC LIMIT :limit
"""
_MOST = 500


def _parameters(*, undelivered: bool, beginning: object) -> Row:
    return {"undelivered": int(undelivered), "beginning": str(beginning or ""), "limit": _MOST}


def _messages_of(home: Home, session: Mapping[str, object], *, undelivered: bool, beginning: object) -> Iterator[Row]:
    folder = home.session_folder(str(session["agent_group_id"]), str(session["id"]))
    path = folder / "inbound" / "inbound.db"
    if not path.exists():
        return
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
    connection.row_factory = sqlite3.Row
    parameters = _parameters(undelivered=undelivered, beginning=beginning)
    try:
        found = [
            dict(row) for sql in (_IN, _OUT.format(table="deliveries")) for row in connection.execute(sql, parameters)
        ]
    except sqlite3.OperationalError:
        # The host writes just now, or died in a write and rolls it back at its next start: this session is left out.
        return
    finally:
        connection.close()
    for row in found:
        yield {
            **_readable(row),
            "session": session["id"],
            "agent": session["agent"],
            "agent_group_id": session["agent_group_id"],
        }


def _host_messages(query: Query, *, undelivered: bool, beginning: object) -> Iterator[Row]:
    for row in query(_OUT.format(table="host_outbox"), _parameters(undelivered=undelivered, beginning=beginning)):
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
    "sessions.list": _sessions,
    "sessions.show": _session,
    "messages.list": _messages,
    "messages.show": _message,
    "settings.list": _settings,
}
