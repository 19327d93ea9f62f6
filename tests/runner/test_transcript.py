"""A transcript survives what happens to files, and is rebuilt into a history that the model accepts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.transcript import Transcript, Transcripts, history
from mailboxes.clock import SystemClock
from tests.fakes.clock import FakeClock

NOW = SystemClock().now


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(tool_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_id, "name": "bash", "input": {"command": "ls"}}


def outcome(tool_id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_id, "content": "ok", "is_error": False}


def check(messages: list[dict[str, Any]]) -> None:
    """What the Messages API asks of a history."""
    seen: set[str] = set()
    due: list[str] = []
    for index, message in enumerate(messages):
        assert message["role"] == ("user", "assistant")[index % 2]
        blocks = message["content"] if isinstance(message["content"], list) else [text(message["content"])]
        assert blocks
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert results == due or sorted(results) == sorted(due)
        assert [block["type"] for block in blocks[: len(results)]] == ["tool_result"] * len(results)
        due = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert not seen & set(due)
        seen |= set(due)
        assert message["role"] == "assistant" or not due
    assert not due


def conversation(folder: Path) -> Transcript:
    made = Transcripts(folder, NOW).start_new()
    for number in range(2):
        made.begin(f"t-{number}")
        made.append_user(f"question {number} \N{CAT FACE}")
        made.append_assistant([text("let me look"), use(f"a{number}"), use(f"b{number}")])
        made.append_tool_results([outcome(f"a{number}"), outcome(f"b{number}"), text("pushed meanwhile")])
        made.append_assistant([use(f"c{number}")])
        made.append_tool_results([outcome(f"c{number}")])
        made.append_assistant([text(f"answer {number}")])
        made.end_turn(f"t-{number}")
    return made


@pytest.mark.req("R207")
def test_a_turn_with_tools_comes_back_as_the_live_list_was(tmp_path: Path) -> None:
    live = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [text("look"), use("a"), use("b")]},
        {"role": "user", "content": [outcome("a"), outcome("b")]},
        {"role": "assistant", "content": [text("done")]},
    ]
    made = Transcripts(tmp_path, NOW).start_new()
    made.begin("t-1")
    made.append_user("q")
    made.append_assistant([text("look"), use("a"), use("b")])
    made.append_tool_results([outcome("a"), outcome("b")])
    made.append_assistant([text("done")])
    assert made.messages() == live
    assert Transcripts(tmp_path, NOW).open_latest().messages() == live


@pytest.mark.req("R206")
def test_a_record_is_a_line_with_its_type_turn_and_time(tmp_path: Path) -> None:
    records = [json.loads(line) for line in conversation(tmp_path).path.read_text().splitlines()]
    assert {record["type"] for record in records} == {"user", "assistant", "tool_use", "tool_result", "turn_end"}
    assert all(record["turn"] in ("t-0", "t-1") and record["ts"].endswith("Z") for record in records)
    assert sum(record["type"] == "tool_use" for record in records) == 6
    said = [record["content"] for record in records if record["type"] == "assistant"]
    assert "tool_use" not in {block["type"] for content in said for block in content}


@pytest.mark.req("R206", "R207")
@pytest.mark.fault(96)
def test_cut_at_any_byte_a_transcript_is_a_valid_history_and_goes_on(tmp_path: Path) -> None:
    whole = conversation(tmp_path / "whole").path.read_bytes()
    folder = tmp_path / "state" / "transcripts"
    folder.mkdir(parents=True)
    path = folder / "0123456789ab.jsonl"
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        opened = Transcript(path, tmp_path / "state" / "cut", NOW)
        check(opened.messages())
        opened.begin("t-9")
        opened.append_user("and then?")
        check(opened.messages())
        again = Transcript(path, tmp_path / "state" / "cut", NOW)
        assert again.messages() == opened.messages()
        assert again.messages()[-1]["role"] == "user"


@pytest.mark.fault(96)
@given(st.lists(st.sampled_from(["user", "blank", "assistant", "a", "b", "ra", "rb", "rx", "both"]), max_size=25))
def test_records_in_any_order_make_a_valid_history(words: list[str]) -> None:
    made: dict[str, dict[str, Any]] = {
        "user": {"type": "user", "content": "hi"},
        "blank": {"type": "user", "content": ""},
        "assistant": {"type": "assistant", "content": [text("x")]},
        "both": {"type": "assistant", "content": [text("y"), use("a")]},
        "a": {**use("a")},
        "b": {**use("b")},
        "ra": {**outcome("a")},
        "rb": {**outcome("b")},
        "rx": {**outcome("x")},
    }
    messages, _ = history(made[word] for word in words)
    check(messages)


@pytest.mark.fault(96)
def test_a_tool_call_without_its_result_gets_an_error_for_one(tmp_path: Path) -> None:
    made = Transcripts(tmp_path, NOW).start_new()
    made.append_user("q")
    made.append_assistant([use("a"), use("b")])
    made.append_tool_results([outcome("b")])
    made.append_user("still there?")
    results = made.messages()[-1]["content"]
    assert [(block["tool_use_id"], block["is_error"]) for block in results[:2]] == [("b", False), ("a", True)]
    assert results[2] == text("still there?")


@pytest.mark.req("R206")
def test_lines_that_are_no_records_are_skipped(tmp_path: Path) -> None:
    made = conversation(tmp_path)
    good = made.messages()
    lines = made.path.read_bytes().splitlines(keepends=True)
    rubbish = [b"\xff\xfe\n", b"[]\n", b'{"type": "user"}\n', b"{" * 5000 + b"\n", b'{"type":"tool_use","id":1}\n']
    made.path.write_bytes(b"".join(piece for line in lines for piece in (*rubbish, line)))
    assert Transcripts(tmp_path, NOW).open_latest().messages() == good


@pytest.mark.req("R206")
def test_the_one_used_last_is_resumed_and_a_lost_index_loses_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    transcripts = Transcripts(tmp_path, clock.now)
    first = transcripts.start_new()
    clock.jump(5)
    second = transcripts.start_new()
    clock.jump(5)
    transcripts.touch(first)
    assert Transcripts(tmp_path, clock.now).open_latest().id == first.id
    index_path = tmp_path / "transcripts" / "sessions.json"
    index = json.loads(index_path.read_text())
    assert set(index[second.id]) == {"label", "created_at", "last_active", "message_count"}
    index_path.write_text("not json")
    assert Transcripts(tmp_path, clock.now).open_latest().id in (first.id, second.id)


def test_a_transcript_that_is_no_file_does_not_lock_the_session(tmp_path: Path) -> None:
    (tmp_path / "transcripts" / "0123456789ab.jsonl").mkdir(parents=True)
    (tmp_path / "transcripts" / "ba9876543210.jsonl").symlink_to("/etc/hostname")
    opened = Transcripts(tmp_path, NOW).open_latest()
    assert opened.messages() == []
    assert opened.path.is_file()


@pytest.mark.req("R198")
def test_a_failed_turn_is_rolled_back_to_what_was_before_it(tmp_path: Path) -> None:
    transcripts = Transcripts(tmp_path, NOW)
    made = conversation(tmp_path)
    before = made.messages()
    made.begin("t-9")
    made.append_user("q")
    made.append_assistant([use("z")])
    made.roll_back()
    assert made.messages() == before
    assert transcripts.open_latest().messages() == before
    assert [record["type"] for record in transcripts.cut_records("t-9")] == ["user", "tool_use"]


def test_an_unfinished_turn_is_cut_off_at_the_start_and_a_completed_one_is_marked(tmp_path: Path) -> None:
    made = conversation(tmp_path)
    before = made.messages()
    made.begin("t-2")
    made.append_user("q2")
    made.append_assistant([text("a2")])
    made.begin("t-3")
    made.append_user("q3")
    opened = Transcripts(tmp_path, NOW).open_latest()
    opened.cut_incomplete({"t-2"})
    assert len(opened.messages()) == len(before) + 2
    assert json.loads(opened.path.read_text().splitlines()[-1])["type"] == "turn_end"
    assert Transcripts(tmp_path, NOW).cut_records("t-3")[0]["content"] == "q3"
    assert Transcripts(tmp_path, NOW).open_latest().messages() == opened.messages()


def test_only_a_row_id_leads_to_the_records_of_a_cut_turn(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text(json.dumps([{"type": "turn_end", "turn": "t"}]))
    assert Transcripts(tmp_path, NOW).cut_records("../secret") == []


def test_the_count_of_what_was_said_follows_a_roll_back_and_a_new_start(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t.jsonl", tmp_path / "cut", NOW)
    transcript.begin("t-1")
    transcript.append_user("list it")
    transcript.append_assistant([text("at once"), use("u-1")])
    transcript.append_tool_results([outcome("u-1")])
    transcript.end_turn("t-1")
    assert transcript.message_count == 2
    transcript.begin("t-2")
    transcript.append_user("and again")
    assert transcript.message_count == 3
    transcript.roll_back()
    assert transcript.message_count == 2
    assert Transcript(tmp_path / "t.jsonl", tmp_path / "cut", NOW).message_count == 2
