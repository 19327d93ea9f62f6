"""The conversation on disk: one JSON record a line, only ever appended, and rebuilt into a history that the model
accepts.

Records are user, assistant, tool_use, tool_result, and turn_end, which the loop writes after the commit that
completed a turn. A tool_use is a record of its own and lies in no other. Every record carries the turn it belongs to,
so that a turn that came to no end can be cut off. The agent can write this file (it is in its own sandbox): nothing in
it is trusted to be whole.
"""

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent_runner.log import log
from mailboxes.clock import to_text
from mailboxes.ids import is_row_id

Record = dict[str, Any]
Block = dict[str, Any]
Message = dict[str, Any]

INTERRUPTED = "Error: this tool call was interrupted; its result is not known."

_INDEX = "sessions.json"
_CUT_KEPT = 20
_TRANSCRIPT_ID = re.compile(r"[0-9a-f]{12}")


def _is_record(value: object) -> bool:
    """Whether a parsed line has the shape of its type."""
    if not isinstance(value, dict) or not isinstance(value.get("turn"), str):
        return False
    kind, content = value.get("type"), value.get("content")
    if kind in ("user", "assistant"):
        return isinstance(content, str) or (isinstance(content, list) and all(isinstance(b, dict) for b in content))
    if kind == "tool_use":
        return all(isinstance(value.get(key), str) for key in ("id", "name")) and isinstance(value.get("input"), dict)
    if kind == "tool_result":
        return isinstance(value.get("tool_use_id"), str)
    return kind == "turn_end"


def _blocks(content: str | list[Block]) -> list[Block]:
    """Content as blocks, without the empty text that the API refuses."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [block for block in blocks if block.get("type") != "text" or str(block.get("text", "")).strip()]


def _result_block(record: Record) -> Block:
    kept = {key: record[key] for key in ("tool_use_id", "content", "is_error") if key in record}
    return {"type": "tool_result"} | kept


class _History:
    """Builds messages out of records: roles alternate, each tool_use is answered in the very next message, once."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.repairs = 0
        self._seen: set[str] = set()
        self._open: list[str] = []
        self._results: list[Block] = []

    def add(self, record: Record) -> None:
        kind = record["type"]
        if kind == "tool_use":
            self._tool_use(record)
        elif kind == "tool_result":
            self._tool_result(record)
        elif kind == "assistant":
            self._assistant(record["content"])
        elif kind == "user":
            self._user(record["content"])

    def finish(self) -> list[Message]:
        self._close_tools()
        return self.messages

    def _assistant(self, content: str | list[Block]) -> None:
        # A tool_use hidden in an assistant record would appear twice: it has a record of its own.
        blocks = [block for block in _blocks(content) if block.get("type") != "tool_use"]
        if not blocks:
            return
        self._before_assistant()
        if self.messages:
            self._extend("assistant", blocks)
        else:
            self.repairs += 1

    def _tool_use(self, record: Record) -> None:
        self._before_assistant()
        if record["id"] in self._seen or not self.messages:
            self.repairs += 1
            return
        self._seen.add(record["id"])
        self._open.append(record["id"])
        self._extend("assistant", [{"type": "tool_use"} | {key: record[key] for key in ("id", "name", "input")}])

    def _before_assistant(self) -> None:
        """Calls still without a result are closed when the assistant goes on after the first results came in."""
        if self._results:
            self._close_tools()

    def _tool_result(self, record: Record) -> None:
        answered = {block["tool_use_id"] for block in self._results}
        if record["tool_use_id"] in self._open and record["tool_use_id"] not in answered:
            self._results.append(_result_block(record))
        else:
            self.repairs += 1

    def _user(self, content: str | list[Block]) -> None:
        self._close_tools()
        blocks = [block for block in _blocks(content) if block.get("type") != "tool_result"]
        if not blocks:
            return
        if isinstance(content, str) and (not self.messages or self.messages[-1]["role"] != "user"):
            self.messages.append({"role": "user", "content": content})
        else:
            self._extend("user", blocks)

    def _close_tools(self) -> None:
        if not self._open:
            return
        answered = {block["tool_use_id"] for block in self._results}
        for missing in (tool_id for tool_id in self._open if tool_id not in answered):
            self.repairs += 1
            self._results.append(
                {"type": "tool_result", "tool_use_id": missing, "content": INTERRUPTED, "is_error": True}
            )
        self._extend("user", self._results)
        self._open, self._results = [], []

    def _extend(self, role: str, blocks: list[Block]) -> None:
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": list(blocks)})
            return
        last = self.messages[-1]
        if isinstance(last["content"], str):
            last["content"] = _blocks(last["content"])
        last["content"].extend(blocks)


def history(records: Iterable[Record]) -> tuple[list[Message], int]:
    """Records as a list for the Messages API, and how many repairs that took: roles alternate from user on, each
    tool_use appears once and its result opens the next message, a missing one is a made-up error."""
    building = _History()
    for record in records:
        building.add(record)
    return building.finish(), building.repairs


@dataclass(slots=True)
class _Line:
    offset: int
    record: Record


def _load(path: Path) -> list[_Line]:
    """The records of a file with their places. A line that is no record is skipped; a last line without its end is kept
    where it is whole and cut off where it is not."""
    data = path.read_bytes()
    lines: list[_Line] = []
    skipped, offset = 0, 0
    for raw in data.splitlines(keepends=True):
        record = _parse(raw)
        if record is not None:
            lines.append(_Line(offset, record))
        elif raw.endswith(b"\n"):
            skipped += 1
        offset += len(raw)
    last_line = data[data.rfind(b"\n") + 1 :]
    if last_line and _parse(last_line) is not None:
        with path.open("ab") as file:
            file.write(b"\n")
    elif last_line:
        os.truncate(path, len(data) - len(last_line))
    if skipped or last_line:
        log("transcript_repaired", "warning", transcript=path.stem, skipped=skipped, partial=bool(last_line))
    return lines


def _parse(raw: bytes) -> Record | None:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if _is_record(value) else None


class Transcript:
    """One conversation. The loop says which turn is running; the provider appends to it."""

    def __init__(self, path: Path, cut_folder: Path, now: Callable[[], datetime]) -> None:
        """Opens or makes the file. Raises OSError where it is no readable regular file."""
        self.path = path
        self.turn_id = ""
        self._cut_folder = cut_folder
        self._now = now
        path.touch()
        if not path.is_file() or path.is_symlink():
            raise OSError(f"{path} is no regular file")
        self._lines = _load(path)
        self._said = _count(self._lines)
        self._mark = len(self._lines)
        self._size = path.stat().st_size

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits."""
        return self.path.stem

    @property
    def message_count(self) -> int:
        """Records of people and of the agent, tools apart; counted along, for it is asked for in every turn."""
        return self._said

    @property
    def has_open_records(self) -> bool:
        """Whether something was appended since `begin` that no `end_turn` has closed."""
        return self._mark < len(self._lines)

    def messages(self) -> list[Message]:
        """The history for the Messages API: see `history`."""
        messages, repairs = history(line.record for line in self._lines)
        if repairs:
            log("history_repaired", "warning", transcript=self.id, repairs=repairs)
        return messages

    def append_user(self, content: str | list[Block]) -> None:
        """What a person (or the mailbox) said: text or content blocks."""
        self._append({"type": "user", "content": content})

    def append_assistant(self, blocks: list[Block]) -> None:
        """One answer of the model as content blocks, tool_use among them."""
        run: list[Block] = []
        for block in blocks:
            if block.get("type") != "tool_use":
                run.append(block)
                continue
            if run:
                self._append({"type": "assistant", "content": run})
                run = []
            self._append({"type": "tool_use"} | {key: block[key] for key in ("id", "name", "input")})
        if run:
            self._append({"type": "assistant", "content": run})

    def append_tool_results(self, blocks: list[Block]) -> None:
        """The results of one answer's tools, as tool_result blocks; other blocks in between count as the person's."""
        for block in blocks:
            if block.get("type") == "tool_result":
                self._append({"type": "tool_result"} | {key: value for key, value in block.items() if key != "type"})
            else:
                self._append({"type": "user", "content": [block]})

    def begin(self, turn_id: str) -> None:
        """What is appended from now on belongs to this turn (or to the open rest of one)."""
        self.turn_id = turn_id
        self._mark = len(self._lines)

    def end_turn(self, turn_id: str) -> None:
        """Marks the turn as complete; it is never cut again."""
        self.turn_id = turn_id
        self._append({"type": "turn_end"})
        self._mark = len(self._lines)

    def roll_back(self) -> None:
        """Takes the open turn out again and keeps its records aside for a continuation."""
        self._cut_from(self._mark)

    def cut_incomplete(self, completed: Collection[str]) -> None:
        """What a fresh runner does: an unmarked turn at the end is marked if a completed claim vouches for it, else
        cut."""
        ends = (index for index, line in enumerate(self._lines) if line.record["type"] == "turn_end")
        start = max(ends, default=-1) + 1
        tail = self._lines[start:]
        whole = next((n for n, line in enumerate(tail) if line.record["turn"] not in completed), len(tail))
        if whole < len(tail):
            self._cut_from(start + whole)
        if whole:
            self.end_turn(tail[whole - 1].record["turn"])

    def _append(self, record: Record) -> None:
        stamped = {**record, "turn": self.turn_id, "ts": to_text(self._now())}
        data = (json.dumps(stamped) + "\n").encode()
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.write(handle, data) != len(data):
                raise OSError(errno.ENOSPC, "the disk is full", str(self.path))
        finally:
            os.close(handle)
        self._lines.append(_Line(self._size, stamped))
        self._said += _is_said(stamped)
        self._size += len(data)

    def _cut_from(self, index: int) -> None:
        cut = self._lines[index:]
        if not cut:
            return
        _keep_cut(self._cut_folder, [line.record for line in cut])
        os.truncate(self.path, cut[0].offset)
        self._size = cut[0].offset
        del self._lines[index:]
        self._said -= _count(cut)
        self._mark = min(self._mark, index)


def _is_said(record: Record) -> bool:
    return record["type"] in ("user", "assistant")


def _count(lines: Iterable[_Line]) -> int:
    return sum(_is_said(line.record) for line in lines)


def _keep_cut(folder: Path, records: list[Record]) -> None:
    """Keeps the records of a turn that was cut for the row that may tell the agent to go on; the newest few are
    kept."""
    turn_id = records[-1]["turn"]
    if not is_row_id(turn_id):
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{turn_id}.json").write_text(json.dumps(records), encoding="utf-8")
    by_age = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in by_age[:-_CUT_KEPT]:
        path.unlink(missing_ok=True)


class Transcripts:
    """The transcripts of one session below `state/`, and which of them is current."""

    def __init__(self, state: Path, now: Callable[[], datetime]) -> None:
        self._folder = state / "transcripts"
        self._cut_folder = state / "cut"
        self._now = now
        self._folder.mkdir(parents=True, exist_ok=True)

    def open_latest(self) -> Transcript:
        """The one used last, or a new one. One that cannot be read is passed over: it must not lock the session."""
        for transcript_id in self._newest_first():
            with contextlib.suppress(OSError):
                return self._open(transcript_id)
        return self.start_new()

    def start_new(self) -> Transcript:
        """A new conversation; the files of earlier ones stay."""
        transcript = self._open(secrets.token_hex(6))
        self.touch(transcript)
        return transcript

    def touch(self, transcript: Transcript) -> None:
        """Writes the index: this one is current. The index is a convenience: losing it loses nothing."""
        index = self._read_index()
        now = to_text(self._now())
        entry = index.setdefault(transcript.id, {"label": transcript.id, "created_at": now})
        entry |= {"last_active": now, "message_count": transcript.message_count}
        building = self._folder / f".{_INDEX}.new"
        building.write_text(json.dumps(index, indent=1), encoding="utf-8")
        building.replace(self._folder / _INDEX)

    def cut_records(self, turn_id: str) -> list[Record]:
        """The records of a turn that was cut off; empty where nothing was kept."""
        if not is_row_id(turn_id):
            return []
        try:
            records = json.loads((self._cut_folder / f"{turn_id}.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return []
        return [record for record in records if _is_record(record)] if isinstance(records, list) else []

    def _open(self, transcript_id: str) -> Transcript:
        return Transcript(self._folder / f"{transcript_id}.jsonl", self._cut_folder, self._now)

    def _newest_first(self) -> Iterator[str]:
        index = self._read_index()
        found: list[tuple[str, str, str]] = []
        for path in self._folder.glob("*.jsonl"):
            if not _TRANSCRIPT_ID.fullmatch(path.stem):
                continue
            entry = index.get(path.stem, {})
            changed = to_text(datetime.fromtimestamp(path.stat().st_mtime, UTC))
            found.append((entry.get("last_active", changed), entry.get("created_at", changed), path.stem))
        return (transcript_id for _, _, transcript_id in sorted(found, reverse=True))

    def _read_index(self) -> dict[str, dict[str, Any]]:
        try:
            index = json.loads((self._folder / _INDEX).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(index, dict):
            return {}
        return {
            key: value
            for key, value in index.items()
            if isinstance(value, dict) and all(isinstance(value.get(k), str) for k in ("last_active", "created_at"))
        }
