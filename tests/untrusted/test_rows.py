"""Rows of a well-formed file: the bad are set aside with a reason, the good go on."""

import json
import sqlite3

import pytest

from host.reader import BadRow, Reader
from mailboxes.limits import MAX_CONTENT_BYTES, MAX_JSON_DEPTH, MAX_ROWS_PER_READ
from mailboxes.rows import Address, Claim, MessageOut, RunnerState
from mailboxes.schema import outbound_template
from tests.untrusted.images import GOOD, insert_out, with_rows, with_sql, written

_INVALID_UTF8 = "CAST(x'c328' AS TEXT)"


def _nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_a_fresh_file_holds_nothing(reader: Reader) -> None:
    snapshot = reader.read(outbound_template(), 0)

    assert (snapshot.rows, snapshot.claims, snapshot.state, snapshot.bad_rows) == ((), (), None, ())
    assert not snapshot.more
    assert snapshot.highest_seq is None


def test_a_row_arrives_as_it_was_written_with_its_time_and_content_in_canonical_form(reader: Reader) -> None:
    image = with_rows(
        {
            "timestamp": "2026-01-01T08:00:00+08:00",
            "deliver_after": "2026-01-02T00:00:00.123456Z",
            "recurrence": "0 9 * * *",
            "thread_id": "7",
            "content": ' { "text" : "h\\u00e9", "n": 1.0 } ',
        }
    )

    assert reader.read(image, 0).rows == (
        MessageOut(
            id="o-0",
            seq=1,
            turn_id="t-1",
            in_reply_to="m-1",
            timestamp="2026-01-01T00:00:00.000Z",
            kind="chat",
            content='{"text":"hé","n":1.0}',
            address=Address("telegram", "bot", "42", "7"),
            deliver_after="2026-01-02T00:00:00.123Z",
            recurrence="0 9 * * *",
        ),
    )


@pytest.mark.req("R019", "R030")
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("chat", {"text": "hi", "files": [{"name": "a.txt"}]}),
        ("chat-sdk", {"markdown": "*hi*", "attachments": []}),
        ("chat-sdk", {"card": {"type": "card"}, "fallbackText": "hi"}),
        ("task", {"result": "done", "status": "ok"}),
        ("webhook", {"response": {"status": 200, "body": {"a": None}}}),
        ("system", {"action": "register_agent", "payload": {"name": "x"}}),
    ],
)
def test_every_kind_is_let_through_with_its_content(reader: Reader, kind: str, content: dict[str, object]) -> None:
    (row,) = reader.read(with_rows({"kind": kind, "content": json.dumps(content)}), 0).rows

    assert row.kind == kind
    assert json.loads(row.content) == content


BAD_ROWS: dict[str, tuple[dict[str, object], str]] = {
    "unknown kind": ({"kind": "zzz"}, "kind is none of chat, chat-sdk, task, webhook, system"),
    "id is a way out": ({"id": "../x"}, "id is no row id"),
    "id is an absolute path": ({"id": "/etc/passwd"}, "id is no row id"),
    "id is two dots": ({"id": ".."}, "id is no row id"),
    "id holds NUL": ({"id": "o-1\0"}, "id is no row id"),
    "id ends a line": ({"id": "o-1\n"}, "id is no row id"),
    "id is empty": ({"id": ""}, "id is no row id"),
    "id is long": ({"id": "x" * 65}, "id is no row id"),
    "id is missing": ({"id": None}, "id is no text"),
    "id is a blob": ({"id": b"o-1"}, "id is no text"),
    "turn id is a way out": ({"turn_id": "../../x"}, "turn_id is no row id"),
    "reply id holds a slash": ({"in_reply_to": "a/b"}, "in_reply_to is no row id"),
    "seq is even": ({"seq": 1000}, "seq is even"),
    "seq is text": ({"seq": "many"}, "seq is no number"),
    "seq is a fraction": ({"seq": 99.5}, "seq is no number"),
    "seq is a blob": ({"seq": b"\1"}, "seq is no number"),
    "time is no time": ({"timestamp": "yesterday"}, "timestamp is no time"),
    "time has no zone": ({"timestamp": "2026-01-01T00:00:00"}, "timestamp is no time with a zone"),
    "time is before all time": ({"timestamp": "0001-01-01T00:00:00+23:59"}, "timestamp is no time"),
    "time is a number": ({"deliver_after": 17}, "deliver_after is no time"),
    "time is long": ({"timestamp": "2" * 300}, "timestamp is longer"),
    "content is a blob": ({"content": b'{"text":"x"}'}, "content is no text"),
    "content is no JSON": ({"content": "{"}, "content is no valid JSON"),
    "content is a list": ({"content": "[]"}, "content is no JSON object"),
    "content is text": ({"content": '"x"'}, "content is no JSON object"),
    "a key twice": ({"content": '{"a":1,"a":2}'}, "content names a field twice"),
    "a key twice, written in two ways": ({"content": '{"x":{"a":1,"\\u0061":2}}'}, "content names a field twice"),
    "too deep": ({"content": _nested(MAX_JSON_DEPTH + 1)}, "content is nested deeper than 64"),
    "much too deep": ({"content": '{"a":' + "[" * 100_000}, "content is nested deeper than 64"),
    "much too deep and whole": ({"content": _nested(20_000)}, "content is nested deeper than 64"),
    "half a surrogate pair": ({"content": '{"a":"\\ud800"}'}, "content holds half a surrogate pair"),
    "half a surrogate pair in a key": ({"content": '{"\\udfff":1}'}, "content holds half a surrogate pair"),
    "NaN": ({"content": '{"a":NaN}'}, "content holds NaN"),
    "Infinity": ({"content": '{"a":-Infinity}'}, "content holds -Infinity"),
    "a number beyond all numbers": ({"content": '{"a":1e999}'}, "content holds a number that is no JSON"),
    "an integer of a hundred thousand digits": ({"content": '{"a":' + "9" * 100_000 + "}"}, "content is no valid JSON"),
    "content is long": ({"content": '{"a":"' + "x" * MAX_CONTENT_BYTES + '"}'}, "content is longer than"),
    "content grows long": ({"content": '{"a":[' + "1e15," * 15_000 + "1]}"}, "content is longer than"),
    "half an address": ({"account_id": None}, "account_id is no text"),
    "a thread without a chat": (
        {"channel_type": None, "account_id": None, "platform_id": None, "thread_id": "7"}, "channel_type is no text",
    ),
    "an address part is long": ({"platform_id": "4" * 513}, "platform_id is longer"),
    "an address part is a blob": ({"platform_id": b"42"}, "platform_id is no text"),
    "recurrence is long": ({"recurrence": "* " * 200}, "recurrence is longer"),
}  # fmt: skip


@pytest.mark.req("R019")
@pytest.mark.fault(110)
@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_set_aside_and_its_neighbours_go_on(reader: Reader, name: str) -> None:
    values, reason = BAD_ROWS[name]
    image = with_rows({}, {"id": "o-bad"} | values, {"id": "o-after", "seq": 5})

    snapshot = reader.read(image, 0)

    assert sorted(row.id for row in snapshot.rows) == ["o-0", "o-after"]
    (bad,) = snapshot.bad_rows
    assert bad.reason.startswith(reason)
    assert bad.table == "messages_out"
    assert bad.id.isprintable()
    assert len(bad.id) <= 80


@pytest.mark.parametrize("column", ["id", "timestamp", "kind", "content", "platform_id", "turn_id"])
def test_text_that_is_not_utf8_is_a_bad_row(reader: Reader, column: str) -> None:
    def write(connection: sqlite3.Connection) -> None:
        insert_out(connection, GOOD)
        insert_out(connection, GOOD | {"id": "o-bad", "seq": 3})
        connection.execute(f"UPDATE messages_out SET {column} = {_INVALID_UTF8} WHERE seq = 3")

    snapshot = reader.read(written(write), 0)

    assert [row.id for row in snapshot.rows] == ["o-good"]
    assert [(bad.seq, bad.reason) for bad in snapshot.bad_rows] == [(3, f"{column} is not UTF-8")]


def test_json_of_the_allowed_depth_is_let_through(reader: Reader) -> None:
    wide = '{"a":[' + ",".join(["[]"] * 500) + "]}"

    snapshot = reader.read(with_rows({"content": _nested(MAX_JSON_DEPTH)}, {"content": wide}), 0)

    assert [row.content for row in snapshot.rows] == [_nested(MAX_JSON_DEPTH), wide]


def test_at_most_two_hundred_rows_come_at_once_in_order_of_seq(reader: Reader) -> None:
    count = MAX_ROWS_PER_READ + 1
    image = with_rows(*[{"id": f"o-{n}", "seq": 2 * (count - n) - 1} for n in range(count)])

    first = reader.read(image, 0)
    rest = reader.read(image, first.highest_seq or 0)

    assert [row.seq for row in first.rows] == list(range(1, 2 * MAX_ROWS_PER_READ, 2))
    assert first.more
    assert [row.seq for row in rest.rows] == [2 * count - 1]
    assert not rest.more


def test_at_most_a_mebibyte_comes_at_once(reader: Reader) -> None:
    image = with_rows(*[{"content": '{"text":"' + "x" * 250_000 + '"}'}] * 6)
    seqs: list[list[int]] = []
    after, more = 0, True
    while more:
        snapshot = reader.read(image, after)
        seqs.append([row.seq for row in snapshot.rows])
        after, more = snapshot.highest_seq or 0, snapshot.more

    assert seqs == [[1, 3, 5, 7], [9, 11]]


def test_bad_rows_alone_still_lead_on(reader: Reader) -> None:
    image = with_rows(*[{"kind": "zzz"}] * MAX_ROWS_PER_READ, {})

    first = reader.read(image, 0)

    assert not first.rows
    assert first.more
    assert [row.seq for row in reader.read(image, first.highest_seq or 0).rows] == [2 * MAX_ROWS_PER_READ + 1]


def test_json_of_very_many_values_is_cut_into_several_reads_and_is_no_bad_file(reader: Reader) -> None:
    image = with_rows(*[{"content": '{"a":[' + "[]," * 80_000 + "1]}"}] * 4)
    ids: list[str] = []
    after, more = 0, True
    while more:
        snapshot = reader.read(image, after)
        ids += [row.id for row in snapshot.rows]
        after, more = snapshot.highest_seq or 0, snapshot.more

    assert ids == ["o-0", "o-1", "o-2", "o-3"]


def test_claims_and_state_arrive_typed(reader: Reader) -> None:
    image = with_sql(
        "INSERT INTO claims VALUES ('m-1', 2, 't-1', 'released', 'overloaded', 0)",
        "INSERT INTO claims VALUES ('m-2', 0, 't-1', 'processing', NULL, 1)",
        "INSERT INTO runner_state VALUES (1, 'busy', 7, 3, 'abc', 't-1', 1, 2)",
    )

    snapshot = reader.read(image, 0)

    assert snapshot.claims == (
        Claim("m-1", 2, "t-1", "released", "overloaded", retryable=False),
        Claim("m-2", 0, "t-1", "processing"),
    )
    assert snapshot.state == RunnerState("busy", 7, 3, "abc", "t-1", open_questions=1, active_tools=2)


def test_a_long_reason_of_a_claim_is_cut_and_costs_the_claim_nothing(reader: Reader) -> None:
    image = with_sql(("INSERT INTO claims VALUES ('m-1', 0, 't', 'released', ?, 1)", ("x" * 9000,)))

    assert reader.read(image, 0).claims == (Claim("m-1", 0, "t", "released", "x" * 2000),)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (("../m", 0, "t", "completed", None, 1), "message_id is no row id"),
        (("m-2", -1, "t", "completed", None, 1), "attempt is no number"),
        (("m-2", "one", "t", "completed", None, 1), "attempt is no number"),
        (("m-2", 2**40, "t", "completed", None, 1), "attempt is no number"),
        (("m-2", 0, "t t", "completed", None, 1), "turn_id is no row id"),
        (("m-2", 0, "t", "done", None, 1), "state is none of"),
        (("m-2", 0, "t", "released", b"\0", 1), "reason is no text"),
        (("m-2", 0, "t", "released", None, 2), "retryable is no number"),
    ],
)
def test_a_bad_claim_is_set_aside_and_the_others_count(reader: Reader, values: tuple[object, ...], reason: str) -> None:
    image = with_sql(
        "INSERT INTO claims VALUES ('m-1', 0, 't', 'completed', NULL, 1)",
        ("INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?)", values),
    )

    snapshot = reader.read(image, 0)

    assert [claim.message_id for claim in snapshot.claims] == ["m-1"]
    (bad,) = snapshot.bad_rows
    assert bad.table == "claims"
    assert bad.reason.startswith(reason)


@pytest.mark.parametrize(
    ("column", "value"),
    [("state", "asleep"), ("next_seq", "x"), ("beat", -1), ("runner_hash", b"x"), ("active_tools", 2**31)],
)
def test_a_bad_state_is_no_state(reader: Reader, column: str, value: object) -> None:
    image = with_sql(
        "INSERT INTO runner_state VALUES (1, 'busy', 7, 3, 'abc', NULL, 0, 0)",
        (f"UPDATE runner_state SET {column} = ?", (value,)),
    )

    snapshot = reader.read(image, 0)

    assert snapshot.state is None
    assert [(bad.table, bad.seq) for bad in snapshot.bad_rows] == [("runner_state", None)]


def test_a_second_state_row_makes_the_file_bad_or_is_impossible(reader: Reader) -> None:
    image = with_sql(
        "PRAGMA ignore_check_constraints=ON",
        "INSERT INTO runner_state VALUES (1, 'busy', 7, 3, 'abc', NULL, 0, 0)",
        "INSERT INTO runner_state VALUES (2, 'idle', 7, 3, 'abc', NULL, 0, 0)",
    )

    with pytest.raises(Exception, match="more than one row in runner_state"):
        reader.read(image, 0)


def test_what_is_shown_of_a_bad_row_is_short_and_printable(reader: Reader) -> None:
    image = with_rows({"id": "\x1b[2J" + "x" * 10_000})

    (bad,) = reader.read(image, 0).bad_rows

    assert bad == BadRow("messages_out", bad.id, 1, "id is longer than 256 bytes")
    assert bad.id.startswith(r"b'\x1b[2J")
    assert len(bad.id) == 80
