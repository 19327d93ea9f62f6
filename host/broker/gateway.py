"""The model gateway: a rebuilt request gets the key, goes to the model API, and its answer is rebuilt on the way back.

Invariant: the key is in no answer, no error and no log line. Of the answer's headers only four pass.
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import structlog

from host.broker.keys import Key, KeyStore, Scrubber
from host.broker.rules import (
    ANY_MODEL,
    CLAUDE_MODELS,
    ModelCall,
    Refused,
    betas,
    check_head,
    rebuild,
    version,
)
from host.broker.usage import Meter, Usage

DEFAULT_BASE_URL = "https://api.anthropic.com"
TIMEOUT = httpx.Timeout(10.0, read=300.0, write=60.0)

_MAX_ERROR_BYTES = 65_536
_MAX_ERROR_TEXT = 2_000
_ANSWER_TYPES = ("text/event-stream", "application/json")
_PASSED_HEADERS = {"retry-after": re.compile(r"[0-9.]{1,10}"), "request-id": re.compile(r"[A-Za-z0-9_-]{1,100}")}

# httpx logs every URL at INFO (fault 124); this host's log has its own line for a request.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_log = structlog.get_logger(__name__)

OnUsage = Callable[[str, str, Usage], None]
"""Told of each finished or broken-off call: session id, model, tokens."""


class Reply(Protocol):
    """Where an answer goes. Each call returns when the client has room for more."""

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """The first line and the headers."""
        ...

    async def data(self, chunk: bytes) -> None:
        """A piece of the body."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a sandbox made it; header names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Gateway:
    """One for the whole host. `transport` is for tests of what no server can be made to do."""

    def __init__(
        self,
        keys: KeyStore,
        base_url: str = DEFAULT_BASE_URL,
        on_usage: OnUsage | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._keys = keys
        self._base_url = base_url.rstrip("/")
        self._on_usage = on_usage
        self._models = CLAUDE_MODELS if self._base_url == DEFAULT_BASE_URL else ANY_MODEL
        self._usage: dict[tuple[str, str], Usage] = {}
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._making = asyncio.Lock()

    async def close(self) -> None:
        """Lets go of connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def usage(self) -> dict[tuple[str, str], Usage]:
        """Tokens since the start of this host, by (session id, model)."""
        return dict(self._usage)

    async def handle(self, session_id: str, request: Request, reply: Reply, pool: Executor) -> None:
        """Answers one request of a session; `pool` is where its body is parsed. A cancelled call hangs up on the model
        API. Raises Refused before anything was sent, Broken after."""
        check_head(request.method, request.target, request.headers)
        loop = asyncio.get_running_loop()
        call = await loop.run_in_executor(pool, rebuild, request.target, request.body, self._models)
        key = await self._keys.current()
        if key is None:
            raise Refused("No model key is set. Run `host setup` to enter one.", 503, "no_key")
        async with self._upstream(call, request.headers, key) as response:
            if response.status_code == 200:
                await self._pass(session_id, call, response, key, reply)
            else:
                await _pass_error(response, key, reply)
            _log.debug("model call", session=session_id, model=call.model, status=response.status_code)

    async def _http(self) -> httpx.AsyncClient:
        """The one client; a thread makes it, for it reads all the certificates there are."""
        async with self._making:
            if self._client is None:
                self._client = await asyncio.to_thread(new_client, self._transport)
            return self._client

    @asynccontextmanager
    async def _upstream(self, call: ModelCall, asked: Mapping[str, str], key: Key) -> AsyncIterator[httpx.Response]:
        headers = {
            "content-type": "application/json",
            "anthropic-version": version(asked),
            "x-api-key": key.value,
            # A compressed stream would come in lumps, and a small one can unpack to a huge one.
            "accept-encoding": "identity",
            **({"anthropic-beta": ",".join(wanted)} if (wanted := betas(asked)) else {}),
        }
        started = False
        client = await self._http()
        try:
            async with client.stream("POST", self._base_url + call.path, content=call.body, headers=headers) as r:
                started = True
                yield r
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            if started:
                raise Broken(type(fault).__name__) from None
            # The kind of the error only: its text can hold the request's.
            text = f"The model service does not answer ({type(fault).__name__})."
            raise Refused(text, 502, "upstream_unreachable") from None

    async def _pass(self, session_id: str, call: ModelCall, response: httpx.Response, key: Key, reply: Reply) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _ANSWER_TYPES:
            raise Refused("The model service gave an answer of an unknown type.", 502, "api_error")
        meter, scrubber = Meter(), Scrubber(key)
        try:
            await reply.start(200, {"content-type": kind, **_passed(response)})
            async for chunk in response.aiter_bytes():
                meter.feed(chunk)
                await reply.data(scrubber.feed(chunk))
            await reply.data(scrubber.rest())
        finally:
            # Also when the client went away or the stream broke: what was used was used.
            if meter.usage != Usage():
                self._count(session_id, call.model, meter.usage)

    def _count(self, session_id: str, model: str, usage: Usage) -> None:
        known = self._usage.get((session_id, model), Usage())
        self._usage[session_id, model] = known + usage
        if self._on_usage is not None:
            self._on_usage(session_id, model, usage)


def new_client(transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """A client for the model API. Takes a tenth of a second of CPU."""
    limits = httpx.Limits(max_connections=256, max_keepalive_connections=16)
    return httpx.AsyncClient(timeout=TIMEOUT, limits=limits, follow_redirects=False, transport=transport)


class Broken(Exception):
    """The answer broke off after its beginning was sent; the text is the kind of the error."""


async def _pass_error(response: httpx.Response, key: Key, reply: Reply) -> None:
    """An error of the model API as its status and a body of our own making."""
    status = response.status_code if 400 <= response.status_code <= 599 else 502
    data = b""
    async for chunk in response.aiter_bytes():
        data += chunk
        if len(data) > _MAX_ERROR_BYTES:
            break
    kind, message = error_of(data)
    body = error_body(kind or "api_error", key.scrub(message)[:_MAX_ERROR_TEXT] or f"The answer's status was {status}.")
    await reply.start(status, {"content-type": "application/json", **_passed(response)})
    await reply.data(body)


def error_of(data: bytes) -> tuple[str, str]:
    """Type and message of an error body; empty where it has none."""
    try:
        parsed: Any = json.loads(data)
    except (ValueError, RecursionError):
        return "", ""
    error = parsed.get("error") if isinstance(parsed, dict) else None
    if not isinstance(error, dict):
        return "", ""
    kind, message = error.get("type"), error.get("message")
    known = isinstance(kind, str) and re.fullmatch(r"[a-z_]{1,40}", kind) is not None
    return str(kind) if known else "", message if isinstance(message, str) else ""


def error_body(kind: str, message: str) -> bytes:
    """An error in the API's own shape."""
    return json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()


def _passed(response: httpx.Response) -> dict[str, str]:
    return {
        name: response.headers[name]
        for name, pattern in _PASSED_HEADERS.items()
        if pattern.fullmatch(response.headers.get(name, ""))
    }
