"""Takes the bytes of an outbound.db apart: what is let through is typed, bounded and re-serialised.

Runs in the worker process only. The image is a hostile program for SQLite, so page 1 (the whole schema) must equal the
shipped template before SQLite sees a byte: a generated column ran for 20 s inside one opcode, where no deadline fires.
"""

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator

from host.strict_json import NotStrict, dump, parse
from mailboxes.clock import canonical
from mailboxes.ids import is_derived_id, is_row_id
from mailboxes.limits import MAX_CONTENT_BYTES, MAX_ROWS_PER_READ, MAX_SNAPSHOT_BYTES
from mailboxes.rows import Activity, ClaimState, Kind
from mailboxes.schema import PAGE_SIZE, masked_page1, outbound_template

MAX_BYTES_PER_READ = 1024 * 1024
MAX_CLAIMS = 2000
MAX_SEQ = 2**53
"""Beyond it a number is no longer exact for every reader of JSON."""

MAX_LEAP = 10_000_000
"""How far a seq may lie beyond all that was read. Numbers go on from the highest one ever taken over, so a row that
came near MAX_SEQ would leave its session none to go on with."""

_MAX_ADDRESS_PART = 512
_MAX_SHORT_TEXT = 256
_MAX_REASON = 2000
_MAX_SHOWN_ID = 80
_MAX_INT32 = 2**31 - 1

_STEP = 1000
_MAX_STEPS = 500
"""SQLite is interrupted after so many steps of 1,000 instructions; the largest honest read takes some thirty."""

_ENOUGH_SECONDS = 0.03
"""Past so much processor time a read ends with `more`: JSON of many small values is slow and no reason to be killed."""

_OUT = (
    "SELECT id, seq, turn_id, in_reply_to, timestamp, kind, content, channel_type, account_id, platform_id, thread_id, "
    "deliver_after, recurrence FROM messages_out WHERE seq > ? ORDER BY seq"
)
_CLAIMS = f"SELECT message_id, attempt, turn_id, state, reason, retryable FROM claims LIMIT {MAX_CLAIMS + 1}"  # noqa: S608
_STATE = "SELECT state, next_seq, beat, runner_hash, turn_id, open_questions, active_tools FROM runner_state LIMIT 2"
_TABLES = frozenset({"messages_out", "claims", "runner_state"})

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_SNAPSHOT_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1000,
    sqlite3.SQLITE_LIMIT_COLUMN: 20,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 10,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 1,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 1,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

Plain = dict[str, object]
"""A reply as JSON carries it: `rows`, `claims`, `state`, `bad`, `more` (host/reader/pool.py reads it)."""


class RefusedFile(Exception):
    """The whole file is bad; the text is the reason."""


class BadValue(ValueError):
    """One row is bad; the text is the reason."""


class Text(bytes):
    """TEXT as SQLite holds it, before anybody trusts that it is UTF-8; plain bytes are a BLOB."""


TEMPLATE_PAGE = masked_page1(outbound_template())


def prepare() -> sqlite3.Connection:
    """A connection for one `examine`: made in advance, it is no part of a reading's time."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    return connection


def examine(image: bytes | bytearray, after_seq: int, prepared: sqlite3.Connection | None = None) -> Plain:
    """All claims, the runner's state, and the next rows after `after_seq`. Raises RefusedFile for a bad file."""
    if len(image) > MAX_SNAPSHOT_BYTES:
        raise RefusedFile(f"larger than {MAX_SNAPSHOT_BYTES} bytes")
    if masked_page1(bytes(image[: len(TEMPLATE_PAGE)])) != TEMPLATE_PAGE:
        raise RefusedFile("its schema or header is not the one that the host made")
    if len(image) % PAGE_SIZE:
        raise RefusedFile("it ends in the middle of a page")
    try:
        connection = _open(image, prepared or prepare())
        try:
            return _read(connection, after_seq)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise RefusedFile(f"SQLite: {error}") from error
    except MemoryError as error:
        raise RefusedFile("it needs more memory than the reader has") from error


def _open(image: bytes | bytearray, connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.deserialize(image)
    for limit, value in _LIMITS.items():
        connection.setlimit(limit, value)
    connection.text_factory = Text
    connection.set_authorizer(_authorise)
    steps = itertools.count()
    connection.set_progress_handler(lambda: next(steps) > _MAX_STEPS, _STEP)
    return connection


def _authorise(action: int, first: str | None, _second: str | None, _database: str | None, trigger: str | None) -> int:
    if action == sqlite3.SQLITE_SELECT or (action == sqlite3.SQLITE_READ and first in _TABLES and trigger is None):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _read(connection: sqlite3.Connection, after_seq: int) -> Plain:
    bad: list[tuple[str, str, int | None, str]] = []
    rows, more = _rows(connection.execute(_OUT, (after_seq,)), after_seq, bad)
    claims = connection.execute(_CLAIMS).fetchall()
    if len(claims) > MAX_CLAIMS:
        raise RefusedFile(f"more than {MAX_CLAIMS} claims")
    states = connection.execute(_STATE).fetchall()
    if len(states) > 1:
        raise RefusedFile("more than one row in runner_state")
    good_states = list(_sift("runner_state", states, _state, bad))
    return {
        "rows": rows,
        "claims": list(_sift("claims", claims, _claim, bad)),
        "state": good_states[0] if good_states else None,
        "bad": bad,
        "more": more,
    }


Row = tuple[object, ...]


def _sift(
    table: str,
    rows: list[Row],
    parse: Callable[[Row], list[object]],
    bad: list[tuple[str, str, int | None, str]],
) -> Iterator[list[object]]:
    for row in rows:
        try:
            yield parse(row)
        except BadValue as error:
            bad.append((table, _shown(row[0]), None, str(error)))


def _rows(
    cursor: sqlite3.Cursor,
    after_seq: int,
    bad: list[tuple[str, str, int | None, str]],
) -> tuple[list[list[object]], bool]:
    good: list[list[object]] = []
    ids = set()
    last, size = after_seq, 0
    ends = time.process_time() + _ENOUGH_SECONDS
    for seen, row in enumerate(cursor):
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if seen and (seen >= MAX_ROWS_PER_READ or size > MAX_BYTES_PER_READ or time.process_time() > ends):
            return good, True
        seq = row[1] if isinstance(row[1], int) else None
        if seq is not None:
            if seq <= last:
                raise RefusedFile("the index of seq does not fit its table")
            if seq > after_seq + MAX_LEAP:
                raise RefusedFile(f"a seq lies more than {MAX_LEAP} beyond all that was read")
            last = seq
        try:
            parsed = _message_out(row)
            if parsed[0] in ids:
                raise BadValue("its id occurs twice")
        except BadValue as error:
            bad.append(("messages_out", _shown(row[0]), seq, str(error)))
        else:
            ids.add(parsed[0])
            good.append(parsed)
    return good, False


def _message_out(row: Row) -> list[object]:
    row_id, seq, turn_id, in_reply_to, timestamp, kind, content, *address, deliver_after, recurrence = row
    seq = _integer(seq, "seq", MAX_SEQ, least=1)
    if seq % 2 == 0:
        raise BadValue("seq is even: those are the host's")
    row_id = _row_id(row_id, "id")
    if is_derived_id(row_id):
        raise BadValue("id has the form of those that the host derives for rows of its own")
    return [
        row_id,
        seq,
        _optional(_row_id, turn_id, "turn_id"),
        _optional(_row_id, in_reply_to, "in_reply_to"),
        _time(timestamp, "timestamp"),
        _one_of(kind, "kind", Kind),
        _content(_text(content, "content", MAX_CONTENT_BYTES)),
        _address(*address),
        _optional(_time, deliver_after, "deliver_after"),
        _optional(_short, recurrence, "recurrence"),
    ]


def _claim(row: Row) -> list[object]:
    message_id, attempt, turn_id, state, reason, retryable = row
    cut = None if reason is None else _text(reason, "reason", MAX_CONTENT_BYTES)[:_MAX_REASON]
    return [
        _row_id(message_id, "message_id"),
        _integer(attempt, "attempt", _MAX_INT32),
        _row_id(turn_id, "turn_id"),
        _one_of(state, "state", ClaimState),
        cut,
        bool(_integer(retryable, "retryable", 1)),
    ]


def _state(row: Row) -> list[object]:
    state, next_seq, beat, runner_hash, turn_id, questions, tools = row
    return [
        _one_of(state, "state", Activity),
        _integer(next_seq, "next_seq", MAX_SEQ),
        _integer(beat, "beat", MAX_SEQ),
        _short(runner_hash, "runner_hash"),
        _optional(_row_id, turn_id, "turn_id"),
        _integer(questions, "open_questions", _MAX_INT32),
        _integer(tools, "active_tools", _MAX_INT32),
    ]


def _shown(value: object) -> str:
    return ascii(bytes(value[:_MAX_SHOWN_ID]) if isinstance(value, bytes) else value)[:_MAX_SHOWN_ID]


def _text(value: object, name: str, most: int) -> str:
    if not isinstance(value, Text):
        raise BadValue(f"{name} is no text")
    if len(value) > most:
        raise BadValue(f"{name} is longer than {most} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadValue(f"{name} is not UTF-8") from None


def _short(value: object, name: str) -> str:
    return _text(value, name, _MAX_SHORT_TEXT)


def _row_id(value: object, name: str) -> str:
    text = _short(value, name)
    if not is_row_id(text):
        raise BadValue(f"{name} is no row id")
    return text


def _optional(parse: Callable[[object, str], str], value: object, name: str) -> str | None:
    return None if value is None else parse(value, name)


def _integer(value: object, name: str, most: int, least: int = 0) -> int:
    if not isinstance(value, int) or not least <= value <= most:
        raise BadValue(f"{name} is no number from {least} to {most}")
    return value


def _one_of(value: object, name: str, values: type[Kind | ClaimState | Activity]) -> str:
    text = _short(value, name)
    try:
        return values(text)
    except ValueError:
        raise BadValue(f"{name} is none of {', '.join(values)}") from None


def _time(value: object, name: str) -> str:
    try:
        return canonical(_short(value, name))
    except BadValue:
        raise
    except (ValueError, OverflowError):
        raise BadValue(f"{name} is no time with a zone") from None


def _address(channel: object, account: object, platform: object, thread: object) -> list[str | None] | None:
    if channel is None and account is None and platform is None and thread is None:
        return None
    return [
        _text(channel, "channel_type", _MAX_ADDRESS_PART),
        _text(account, "account_id", _MAX_ADDRESS_PART),
        _text(platform, "platform_id", _MAX_ADDRESS_PART),
        None if thread is None else _text(thread, "thread_id", _MAX_ADDRESS_PART),
    ]


def _content(text: str) -> str:
    """JSON as it is acted on: parsed and written again, so that no two parsers can read two things from it."""
    try:
        value = parse(text)
        if not isinstance(value, dict):
            raise BadValue("content is no JSON object")
        again = dump(value)
    except NotStrict as error:
        raise BadValue(f"content {error}") from None
    if len(again.encode()) > MAX_CONTENT_BYTES:
        raise BadValue(f"content is longer than {MAX_CONTENT_BYTES} bytes")
    return again
