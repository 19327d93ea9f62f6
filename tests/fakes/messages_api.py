"""A wire-level fake of the Messages API: a real HTTP server, in threads of its own: no event loop is kind to it.

It keeps the API's rules (key, version, roles, tool_use and tool_result in pairs, max_tokens) with the API's error
shapes. What it answers is, in this order: the next of the queued behaviours; what the prompt's last line asks for
(`USE:tool {json}` calls a tool, `SAY:text` says it); else an echo.
"""

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Block = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """A finished message. `stop_reason` None ends the stream's message without one."""

    text: str = ""
    stop_reason: str | None = "end_turn"
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Use:
    """Tool calls, each (name, input); several are one message with several blocks."""

    calls: tuple[tuple[str, dict[str, Any]], ...]
    text: str = ""


@dataclass(frozen=True)
class Fail:
    """An error answer."""

    status: int
    kind: str = "api_error"
    message: str = "it went wrong"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Truncate:
    """Begins a message and drops the connection."""


@dataclass(frozen=True)
class EndEarly:
    """Begins a message and ends the body cleanly, without message_delta and message_stop."""


@dataclass(frozen=True)
class ErrorEvent:
    """An `error` event within the stream."""

    kind: str = "overloaded_error"


@dataclass
class Hold:
    """Begins a message, sets `begun`, and goes on with `then` when `release` is set; `finished` is set when all of it
    was taken, `dropped` when the client hangs up before."""

    then: Say = field(default_factory=lambda: Say("after all"))
    begun: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)
    dropped: threading.Event = field(default_factory=threading.Event)


Behaviour = Say | Use | Fail | Truncate | EndEarly | ErrorEvent | Hold
Chooser = Callable[[dict[str, Any]], Behaviour]


@dataclass(frozen=True)
class Recorded:
    """A request as it arrived; header names in lower case."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)


class MessagesApi:
    """`with MessagesApi(key="...") as api:` serves at `api.url`. Behaviours queue with `api.next(...)`; `api.always`
    takes the body and decides where the queue is empty."""

    def __init__(self, key: str = "test-key") -> None:
        self.key = key
        self.requests: list[Recorded] = []
        self.always: Chooser = from_prompt
        self.input_tokens = 10
        self.output_tokens = 5
        self._queue: deque[Behaviour] = deque()
        self._lock = threading.Lock()
        self._count = 0
        self._holds: list[Hold] = []
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def next(self, *behaviours: Behaviour) -> None:
        """Queues what the next requests get."""
        self._queue.extend(behaviours)
        self._holds.extend(b for b in behaviours if isinstance(b, Hold))

    @property
    def calls(self) -> list[Recorded]:
        """The requests for messages, without those for token counts."""
        return [request for request in self.requests if request.path == "/v1/messages"]

    def take(self, recorded: Recorded) -> Behaviour:
        with self._lock:
            self.requests.append(recorded)
            if fault := self._fault(recorded):
                return fault
            return self._queue.popleft() if self._queue else self.always(recorded.body)

    def identifier(self, prefix: str) -> str:
        with self._lock:
            self._count += 1
            return f"{prefix}_{self._count:06d}"

    def _fault(self, recorded: Recorded) -> Fail | None:
        if recorded.headers.get("x-api-key") != self.key:
            return Fail(401, "authentication_error", "invalid x-api-key")
        if recorded.headers.get("anthropic-version") not in ("2023-06-01", "2026-10-21"):
            return Fail(400, "invalid_request_error", "anthropic-version: header is required")
        text = broken_rule(recorded.path, recorded.body)
        return Fail(400, "invalid_request_error", text) if text else None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hold in self._holds:
            hold.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def broken_rule(path: str, body: dict[str, Any]) -> str | None:
    """The API's complaint about a body, or None. Alternating roles are this house's rule; the API merges them."""
    if path not in ("/v1/messages", "/v1/messages/count_tokens"):
        return f"unknown path {path}"
    if path == "/v1/messages" and not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    if not body.get("model"):
        return "model: Field required"
    messages = body.get("messages")
    if not messages:
        return "messages: at least one message is required"
    marks = json.dumps(body).count('"cache_control"')
    if marks > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."
    open_calls: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[index % 2]:
            return f"messages.{index}: roles must alternate, starting with user"
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            return f"messages.{index}: content must not be empty"
        if any(b["type"] == "text" and not b["text"].strip() for b in blocks):
            return f"messages.{index}: text content blocks must contain non-whitespace text"
        results = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        if set(results) != open_calls or len(results) != len(open_calls):
            return f"messages.{index}: `tool_use` ids were found without `tool_result` blocks right after, or reverse"
        if results and [b["type"] for b in blocks[: len(results)]] != ["tool_result"] * len(results):
            return f"messages.{index}: tool_result blocks must come first"
        open_calls = {b["id"] for b in blocks if b["type"] == "tool_use"}
    if open_calls or messages[-1]["role"] != "user":
        return "messages: the final message must be a user message"
    return None


def last_text(body: dict[str, Any]) -> str:
    """The text of the last message; empty where its last block is none."""
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return content[-1].get("text", "") if content else ""


def from_prompt(body: dict[str, Any]) -> Behaviour:
    """The behaviour that the last message asks for."""
    content = body["messages"][-1]["content"]
    if not isinstance(content, str) and content[-1]["type"] == "tool_result":
        return Say(f"the tool said: {content[-1]['content']}")
    text = last_text(body)
    for line in reversed(text.splitlines()):
        if line.startswith("USE:"):
            name, _, arguments = line[4:].strip().partition(" ")
            return Use(((name, json.loads(arguments or "{}")),))
        if line.startswith("SAY:"):
            return Say(line[4:].strip())
    return Say(f"you said: {text}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: MessagesApi

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        pass

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        recorded = Recorded(self.path, headers, raw)
        behaviour = self.server.api.take(recorded)
        if isinstance(behaviour, Fail):
            self._error(behaviour)
        elif self.path.endswith("/count_tokens"):
            self._json(200, {"input_tokens": len(raw) // 4}, {})
        elif recorded.body.get("stream"):
            self._stream(behaviour, recorded.body["model"])
        else:
            self._error(Fail(400, "invalid_request_error", "this fake streams only"))

    def _error(self, fail: Fail) -> None:
        error = {"type": "error", "error": {"type": fail.kind, "message": fail.message}, "request_id": "req_fake"}
        self._json(fail.status, error, dict(fail.headers))

    def _json(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "request-id": "req_fake", **headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, behaviour: Behaviour, model: str) -> None:
        self.send_response(200)
        for name, value in (
            ("content-type", "text/event-stream; charset=utf-8"),
            ("request-id", "req_fake"),
            ("transfer-encoding", "chunked"),
            ("anthropic-organization-id", "org-secret"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self._begin(model)
        match behaviour:
            case Truncate():
                self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})
                self.close_connection = True
                return
            case EndEarly():
                self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            case ErrorEvent(kind):
                self._event("error", error={"type": kind, "message": "Overloaded"})
            case Hold():
                self._hold(behaviour)
            case Say() | Use():
                self._message(behaviour)
        self.wfile.write(b"0\r\n\r\n")

    def _hold(self, hold: Hold) -> None:
        hold.begun.set()
        while not hold.release.wait(0.01):
            try:
                self._event("ping")
            except OSError:
                hold.dropped.set()
                raise
        self._message(hold.then)
        hold.finished.set()

    def _begin(self, model: str) -> None:
        api = self.server.api
        usage = {
            "input_tokens": api.input_tokens,
            "output_tokens": 1,
            "cache_creation_input_tokens": 3,
            "cache_read_input_tokens": 7,
        }
        message = {"id": api.identifier("msg"), "type": "message", "role": "assistant", "model": model, "content": []}
        self._event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage})

    def _message(self, behaviour: Say | Use) -> None:
        blocks: list[Block] = [{"type": "text", "text": behaviour.text}] if behaviour.text else []
        if isinstance(behaviour, Say):
            blocks += behaviour.blocks
            stop_reason = behaviour.stop_reason
        else:
            new = self.server.api.identifier
            blocks += [{"type": "tool_use", "id": new("toolu"), "name": n, "input": i} for n, i in behaviour.calls]
            stop_reason = "tool_use"
        for index, block in enumerate(blocks):
            self._block(index, block)
        delta = {"stop_reason": stop_reason, "stop_sequence": None}
        self._event("message_delta", delta=delta, usage={"output_tokens": self.server.api.output_tokens})
        self._event("message_stop")

    def _block(self, index: int, block: Block) -> None:
        match block["type"]:
            case "text":
                start, deltas = {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
            case "tool_use":
                start = {**block, "input": {}}
                deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
            case "thinking":
                start = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
                if block.get("signature"):
                    deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case _:
                start, deltas = block, []
        self._event("content_block_start", index=index, content_block=start)
        for delta in deltas:
            self._event("content_block_delta", index=index, delta=delta)
        self._event("content_block_stop", index=index)

    def _event(self, kind: str, **fields: Any) -> None:
        data = f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
