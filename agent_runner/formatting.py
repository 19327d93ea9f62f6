"""Rows of the inbox as a prompt: one formatter per kind. No routing value ever gets into one.

Everything that people wrote is escaped, so that no text can close its element, open another message, or pass for a
section: SEPARATOR and every tag hold a `<`, which text never does.
"""

import json
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from agent_runner.scripts import Failed, Verdict
from agent_runner.transcript import Record
from mailboxes.clock import from_text
from mailboxes.ids import is_row_id
from mailboxes.layout import FILES, SANDBOX
from mailboxes.rows import CONTINUE_TURN, Kind, MessageIn

SEPARATOR = "\n\n<!-- next section -->\n\n"

_GO_ON = """[CONTINUE]
Your work on the messages below was interrupted after a part of your answer had been sent. Go on from there: do not
repeat what was sent, and do not run a tool again that has done its work."""

_OLD = timedelta(minutes=15)
_MAX_NESTED_CONTINUATIONS = 5
_SHOWN_TOOL_CHARACTERS = 2000
_MAX_ATTACHMENTS = 50
_MAX_NAME = 300
_FILE = re.compile(r"\d{1,4}-[^/\0]{1,200}")
"""A file of a row, as the host names it: one component of a path."""


class Malformed(Exception):
    """A row that cannot be worked on, now or later; the text is the reason."""

    def __init__(self, row: MessageIn, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Context:
    """What a formatter may look at: the time and zone, the original rows by id (raises HostAway), the records of a turn
    that was cut off, what the scripts of tasks said by row id, the folder of what comes in."""

    now: datetime
    zone: tzinfo
    lookup: Callable[[Sequence[str]], list[MessageIn]]
    cut_records: Callable[[str], list[Record]]
    scripts: Mapping[str, Verdict] = field(default_factory=dict)
    depth: int = 0
    inbound: Path = SANDBOX.inbound


@dataclass(frozen=True, slots=True)
class _Part:
    """One row's share of a prompt. Parts of messages are put together into one block."""

    text: str
    in_messages: bool = False


def escape(text: str) -> str:
    """Text for the inside of an element or a quoted attribute. Characters that no XML holds become U+FFFD."""
    cleaned = "".join(char if _is_plain(char) else "\ufffd" for char in text)
    return cleaned.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _is_plain(char: str) -> bool:
    return char in "\n\t" or (char >= " " and not "\ud800" <= char <= "\udfff")


def _attribute(text: str) -> str:
    return escape(" ".join(text.split()))


def _json(value: object) -> str:
    return _plain_json(json.dumps(value, ensure_ascii=True, indent=1))


def _plain_json(text: str) -> str:
    """JSON that holds no angle bracket, and so no tag and no separator."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e")


def _parse(row: MessageIn) -> dict[str, Any]:
    try:
        content = json.loads(row.content)
    except (ValueError, RecursionError) as error:
        raise Malformed(row, f"the content of this {row.kind} row is no JSON") from error
    if not isinstance(content, dict):
        raise Malformed(row, f"the content of this {row.kind} row is no JSON object")
    return content


def _text(row: MessageIn, content: dict[str, Any], key: str, *, required: bool = True) -> str:
    value = content.get(key)
    if isinstance(value, str):
        return value
    if value is None and not required:
        return ""
    raise Malformed(row, f"the content of this {row.kind} row has no text {key!r}")


def _time(row: MessageIn, context: Context) -> str:
    """The attributes `time` and, for a row that has waited, `age`."""
    try:
        moment = from_text(row.timestamp)
    except ValueError as error:
        raise Malformed(row, "the time of this row is no time") from error
    shown = f'time="{moment.astimezone(context.zone).isoformat(timespec="minutes")}"'
    waited = context.now - moment
    return f'{shown} age="{_age(waited)}"' if waited > _OLD else shown


def _age(waited: timedelta) -> str:
    minutes = int(waited.total_seconds() // 60)
    if minutes < 120:
        return f"{minutes} minutes"
    return f"{minutes // 60} hours" if minutes < 48 * 60 else f"{minutes // 1440} days"


def _attachments(row: MessageIn, content: dict[str, Any], context: Context) -> str:
    """One element per file: what its sender called it, its type, and the path of what lies in the row's own folder, or
    why nothing does. An address of the platform (`url`) is none of the model's business."""
    # The host lists what it has fetched under `files` in a row whose `attachments` are the platform's own words.
    listed = content.get("files") or content.get("attachments")
    found = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    shown = [_attachment(row, item, context) for item in found[:_MAX_ATTACHMENTS]]
    if len(found) > _MAX_ATTACHMENTS:
        shown.append(f'<attachment note="{len(found) - _MAX_ATTACHMENTS} more are not listed"/>')
    return "".join(f"\n{element}" for element in shown)


def _attachment(row: MessageIn, item: dict[str, Any], context: Context) -> str:
    name = next((item[key] for key in ("name", "filename") if isinstance(item.get(key), str)), "")
    kind = next((item[key] for key in ("type", "mimeType") if isinstance(item.get(key), str)), "") or "file"
    told = [("name", name[:_MAX_NAME]), ("type", kind[:_MAX_NAME])]
    if isinstance(error := item.get("error"), str):
        told.append(("note", error[:_MAX_NAME]))
    elif isinstance(file := item.get("file"), str) and _FILE.fullmatch(file) and is_row_id(row.id):
        path = context.inbound / FILES / row.id / file
        told += [("path", str(path))] if _is_regular(path) else [("note", "not kept any longer")]
    return "<attachment " + " ".join(f'{key}="{_attribute(value)}"' for key, value in told) + "/>"


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _message(row: MessageIn, context: Context, sender: str, text: str, content: dict[str, Any]) -> _Part:
    mine = ' from_me="true"' if content.get("isFromMe") is True else ""
    opening = f'<message id="{row.seq}" sender="{_attribute(sender)}" {_time(row, context)}{mine}>'
    return _Part(f"{opening}{escape(text)}{_attachments(row, content, context)}</message>", in_messages=True)


def _chat(row: MessageIn, context: Context) -> _Part:
    content = _parse(row)
    sender = _text(row, content, "sender", required=False) or "unknown"
    return _message(row, context, sender, _text(row, content, "text", required=False), content)


def _chat_sdk(row: MessageIn, context: Context) -> _Part:
    content = _parse(row)
    author = content.get("author")
    names: dict[str, Any] = author if isinstance(author, dict) else {"name": author}
    given = (names[key] for key in ("fullName", "name", "userName") if isinstance(names.get(key), str))
    sender: str = next(given, "unknown")
    return _message(row, context, sender, _text(row, content, "text", required=False), content)


def _task(row: MessageIn, context: Context) -> _Part:
    content = _parse(row)
    prompt = escape(_text(row, content, "prompt"))
    _text(row, content, "script", required=False)
    told = _script(context.scripts.get(row.id))
    return _Part(f'[SCHEDULED TASK]\n<task id="{row.seq}" {_time(row, context)}>\n{prompt}\n{told}</task>')


def _script(verdict: Verdict | None) -> str:
    """What a task's own script brought, as an element inside the task."""
    if isinstance(verdict, Failed):
        return f'<script-failed reason="{_attribute(verdict.reason)}">\n{escape(verdict.output)}\n</script-failed>\n'
    if verdict is None or verdict.data is None:
        return ""
    return f"<script-data>\n{_plain_json(verdict.data)}\n</script-data>\n"


def _webhook(row: MessageIn, context: Context) -> _Part:
    content = _parse(row)
    source, event = (_attribute(_text(row, content, key)) for key in ("source", "event"))
    # A body that is no JSON arrives as its text: shown as it is, not as one long quoted line.
    payload = content.get("payload")
    body = escape(payload) if isinstance(payload, str) else _json(payload)
    told = f"{body}{_attachments(row, content, context)}"
    return _Part(f'[WEBHOOK: {source}/{event}]\n<webhook id="{row.seq}" {_time(row, context)}>\n{told}\n</webhook>')


def _system(row: MessageIn, context: Context) -> _Part:
    content = _parse(row)
    if "questionId" in content:
        return _Part(_late_answer(row, content, context))
    action = _text(row, content, "action")
    if action == CONTINUE_TURN:
        return _Part(_continuation(row, content, context))
    status = _attribute(_text(row, content, "status", required=False))
    body = _json(content.get("result"))
    attributes = f'id="{row.seq}" action="{_attribute(action)}" status="{status}" {_time(row, context)}'
    return _Part(f"[SYSTEM CONTEXT]\n<system {attributes}>\n{body}\n</system>")


def _late_answer(row: MessageIn, content: dict[str, Any], context: Context) -> str:
    """What somebody chose, for an agent that no longer waits for it."""
    asked = " ".join(filter(None, (_text(row, content, name, required=False) for name in ("title", "question"))))
    chosen = _text(row, content, "label", required=False) or _text(row, content, "selectedOption", required=False)
    body = f"<question>{escape(asked)}</question>\n" + (
        f'<answer value="{_attribute(str(content.get("selectedOption", "")))}">{escape(chosen)}</answer>'
        if chosen
        else "It was not answered in time."
    )
    return f'[SYSTEM CONTEXT]\n<system id="{row.seq}" action="question" {_time(row, context)}>\n{body}\n</system>'


@dataclass(frozen=True, slots=True)
class _Interrupted:
    turn_id: str
    message_ids: tuple[str, ...]
    sent: tuple[str, ...]


def _interrupted(row: MessageIn, content: dict[str, Any]) -> _Interrupted:
    result = content.get("result")
    if not isinstance(result, dict):
        raise Malformed(row, "this continuation says nothing of the turn it continues")
    ids = result.get("message_ids")
    sent = result.get("sent")
    return _Interrupted(
        turn_id=str(result.get("turn_id", "")),
        message_ids=tuple(i for i in ids if isinstance(i, str)) if isinstance(ids, list) else (),
        sent=tuple(
            f'<sent id="{item.get("seq")}">{escape(str(item.get("text", "")))}</sent>'
            for item in sent
            if isinstance(item, dict) and isinstance(item.get("seq"), int)
        )
        if isinstance(sent, list)
        else (),
    )


def _continuation(row: MessageIn, content: dict[str, Any], context: Context) -> str:
    """The messages again, what was said already, which tools had run, and the request to go on."""
    told = _interrupted(row, content)
    parts = [_GO_ON]
    if context.depth < _MAX_NESTED_CONTINUATIONS:
        inner = replace(context, depth=context.depth + 1)
        originals = [original for original in context.lookup(told.message_ids) if original.id != row.id]
        try:
            parts += [format_rows(originals, inner)] if originals else []
        except Malformed as fault:
            raise Malformed(row, f"a message that this continuation speaks of is malformed: {fault.reason}") from fault
    if told.sent:
        parts.append("<already-sent>\n" + "\n".join(told.sent) + "\n</already-sent>")
    tools = list(_tool_lines(context.cut_records(told.turn_id)))
    if tools:
        parts.append("<tools-already-run>\n" + "\n".join(tools) + "\n</tools-already-run>")
    return "\n\n".join(parts)


def _tool_lines(records: Iterable[Record]) -> Iterable[str]:
    """One element per tool call of a cut turn: its input, and its result where it had one."""
    records = list(records)
    results = {record["tool_use_id"]: record for record in records if record["type"] == "tool_result"}
    for record in records:
        if record["type"] != "tool_use":
            continue
        call = escape(json.dumps(record["input"])[:_SHOWN_TOOL_CHARACTERS])
        result = results.get(record["id"])
        outcome = "(no result: it may have run)"
        if result is not None:
            outcome = escape(_plain(result.get("content"))[:_SHOWN_TOOL_CHARACTERS])
        yield f'<tool name="{_attribute(record["name"])}"><input>{call}</input><result>{outcome}</result></tool>'


def _plain(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return content if isinstance(content, str) else ""


FORMATTERS: dict[str, Callable[[MessageIn, Context], _Part]] = {
    Kind.CHAT: _chat,
    Kind.CHAT_SDK: _chat_sdk,
    Kind.TASK: _task,
    Kind.WEBHOOK: _webhook,
    Kind.SYSTEM: _system,
}


def format_rows(rows: Sequence[MessageIn], context: Context, omitted: int = 0) -> str:
    """A batch as one prompt: all messages in one <messages> block in order of arrival, every other row a section of its
    own, sections in the order in which they first appear, SEPARATOR between them.

    Raises Malformed for the first row that cannot be formatted.
    """
    sections: list[str] = []
    messages: list[str] = []
    place = 0
    for row in rows:
        formatter = FORMATTERS.get(row.kind)
        if formatter is None:
            raise Malformed(row, f"there is no kind of row called {row.kind[:40]!r}")
        part = formatter(row, context)
        if not part.in_messages:
            sections.append(part.text)
            continue
        if not messages:
            place = len(sections)
        messages.append(part.text)
    if messages:
        left_out = [f'<omitted count="{omitted}"/>'] if omitted else []
        sections.insert(place, "\n".join(["<messages>", *left_out, *messages, "</messages>"]))
    return SEPARATOR.join(sections)
