"""A real broker in front of the fake Messages API, and a client that speaks any bytes to its socket."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host.broker.gateway import Gateway, OnUsage
from host.broker.keys import KeyStore
from host.broker.server import Broker, Caps
from tests.fakes.messages_api import MessagesApi


def broker_to(
    api: MessagesApi, env_file: Path, *, environment: dict[str, str] | None = None, caps: Caps | None = None,
    on_usage: OnUsage | None = None,
) -> tuple[Broker, Gateway]:  # fmt: skip
    """A broker whose key lies in `env_file`, or in the given environment."""
    gateway = Gateway(KeyStore(environment or {}, env_file), api.url, on_usage)
    return Broker(gateway, caps), gateway


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, taken apart."""

    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def error(self) -> tuple[str, str]:
        """Type and message."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error["type"], error["message"]


def body_of(**fields: Any) -> dict[str, Any]:
    """A request's body that passes."""
    messages = [{"role": "user", "content": "hello"}]
    return {"model": "claude-sonnet-5-5", "max_tokens": 100, "stream": True, "messages": messages, **fields}


def request_of(body: object, target: str = "/v1/messages", method: str = "POST", headers: str = "") -> bytes:
    """A request's bytes; `headers` are whole lines, each with its end."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nhost: broker\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def exchange(socket: Path, *pieces: bytes) -> bytes:
    """Sends the pieces and returns all that comes until the broker closes, or has answered and is silent."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


async def ask(socket: Path, request: bytes) -> Answer:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            return await read_answer(reader)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """The next answer of a connection, whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw, body = bytearray(head), bytearray()
    if headers.get("transfer-encoding") == "chunked":
        while True:
            size = await reader.readuntil(b"\r\n")
            chunk = await reader.readexactly(int(size, 16) + 2)
            raw += size + chunk
            if len(chunk) == 2:
                break
            body += chunk[:-2]
    else:
        body += await reader.read() if "content-length" not in headers else b""
        body += await reader.readexactly(int(headers.get("content-length", "0")))
        raw += body
    return Answer(int(first.split()[1]), headers, bytes(body), bytes(raw))
