"""The sandboxes' only door: an HTTP/1.1 server on one Unix socket per session, for clients that may be hostile.

Invariant: what one session does costs a bounded amount of memory and time, and never another session's. Every limit
is per door; nothing is shared but the event loop and the gateway's connections.
"""

import asyncio
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import h11
import structlog

from host.broker.gateway import Broken, Gateway, Request, error_body
from host.broker.rules import Refused
from mailboxes import sockets

_log = structlog.get_logger(__name__)

_READ = 65_536


@dataclass(frozen=True, slots=True)
class Caps:
    """What one session may use. Sizes in bytes, times in seconds.

    `idle_seconds` run from a connection's last answer to the end of its next request's head: a slow head has no more.
    A session holds at most `requests` bodies in memory. The API takes 32 MiB; a conversation of text never comes near.
    """

    head: int = 16 * 1024
    body: int = 8 * 1024 * 1024
    connections: int = 16
    requests: int = 4
    body_seconds: float = 30.0
    idle_seconds: float = 60.0
    total_seconds: float = 600.0
    linger_seconds: float = 1.0


class Broker:
    """Opens and closes doors."""

    def __init__(self, gateway: Gateway, caps: Caps | None = None) -> None:
        self._gateway = gateway
        self._caps = caps or Caps()
        self._doors: dict[str, Door] = {}

    async def open(self, session_id: str, path: Path, mode: int = 0o600, gid: int | None = None) -> "Door":
        """Listens at `path`, in a folder that no sandbox can write; an old socket there is replaced. Raises OSError."""
        await self.shut(session_id)
        door = Door(session_id, path, self._gateway, self._caps)
        await door.listen(mode, gid)
        self._doors[session_id] = door
        return door

    async def shut(self, session_id: str) -> None:
        """Closes a session's door, if it has one."""
        if door := self._doors.pop(session_id, None):
            await door.close()

    async def close(self) -> None:
        """Closes every door; the gateway is its maker's to close."""
        for session_id in list(self._doors):
            await self.shut(session_id)


class Door:
    """One session's socket."""

    def __init__(self, session_id: str, path: Path, gateway: Gateway, caps: Caps) -> None:
        self.session_id = session_id
        self.path = path
        self._gateway = gateway
        self._caps = caps
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._requests = 0
        # One thread: however many bodies a session sends, it parses one at a time.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="broker")

    async def listen(self, mode: int, gid: int | None) -> None:
        """Binds and starts to serve. Raises OSError."""
        bound = await asyncio.to_thread(sockets.bind, self.path, socket.SOCK_STREAM, mode, gid)
        self._server = await asyncio.start_unix_server(self._accept, sock=bound, limit=_READ)

    async def close(self) -> None:
        """Stops serving, ends what runs, removes the socket."""
        if self._server is not None:
            self._server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.path.unlink, missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._caps.connections:
            writer.close()
            return
        self._connections.add(task)
        try:
            await _Connection(self, reader, writer, self._caps).serve()
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            # The client went away, was too slow, or the door closes: nobody is left to tell.
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def answer(self, request: Request, reply: "_Reply") -> None:
        """Answers a request that has one of the session's places. Raises Refused and Broken."""
        await self._gateway.handle(self.session_id, request, reply, self._pool)

    def enter(self) -> None:
        """Takes a place. Raises Refused when there is none."""
        if self._requests >= self._caps.requests:
            text = f"This session has {self._caps.requests} model calls under way; more must wait."
            raise Refused(text, 429, "rate_limit_error")
        self._requests += 1

    def leave(self) -> None:
        """Gives the place back."""
        self._requests -= 1


class _Connection:
    """One connection: requests one after the other, each read whole, checked, answered."""

    def __init__(self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caps: Caps) -> None:
        self._door = door
        self._reader = reader
        self._writer = writer
        self._caps = caps
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=caps.head)

    async def serve(self) -> None:
        """Until either side has enough. Raises ConnectionError and TimeoutError when the client is gone or too slow."""
        while True:
            try:
                async with asyncio.timeout(self._caps.idle_seconds):
                    head = await self._event()
                if not isinstance(head, h11.Request):
                    return
                await self._one(head)
            except h11.RemoteProtocolError as fault:
                await self._refuse(Refused("The request is no valid HTTP/1.1.", fault.error_status_hint))
            except Refused as refused:
                await self._refuse(refused)
            except Broken as broken:
                _log.warning("the model's answer broke off", session=self._door.session_id, reason=str(broken))
                return
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                await self._linger()
                return
            self._http.start_next_cycle()

    async def _one(self, head: h11.Request) -> None:
        headers = _headers(head, self._caps)
        self._door.enter()
        try:
            async with asyncio.timeout(self._caps.body_seconds):
                body = await self._body()
            request = Request(head.method.decode("ascii"), head.target.decode("ascii"), headers, body)
            await self._answered_or_gone(request)
        except TimeoutError:
            raise Refused("The request took too long.", 408, "timeout_error") from None
        finally:
            self._door.leave()

    async def _answered_or_gone(self, request: Request) -> None:
        """Answers within the total time; a client that hangs up meanwhile cancels the call to the model."""
        reply = _Reply(self._http, self._writer)
        answer = asyncio.create_task(self._door.answer(request, reply))
        gone = asyncio.create_task(self._gone())
        try:
            timeout = self._caps.total_seconds
            done, _ = await asyncio.wait({answer, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if answer in done:
                answer.result()
                await reply.end()
            elif gone in done:
                raise ConnectionResetError
            elif reply.started:
                raise Broken("time over")
            else:
                raise TimeoutError
        finally:
            for task in (answer, gone):
                task.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    async def _gone(self) -> None:
        """Returns when the client has hung up. What it sends ahead (pipelining) is kept, up to one head's size; then we
        stop listening until its turn comes."""
        ahead = 0
        while ahead <= self._caps.head:
            data = await self._reader.read(self._caps.head)
            if not data:
                return
            ahead += len(data)
            self._http.receive_data(data)
        await asyncio.get_running_loop().create_future()

    async def _event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                self._writer.write(_bytes(self._http.send(h11.InformationalResponse(status_code=100, headers=[]))))
            self._http.receive_data(await self._reader.read(_READ))

    async def _body(self) -> bytes:
        body = bytearray()
        while True:
            event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                return bytes(body)
            if not isinstance(event, h11.Data):
                raise ConnectionResetError
            body += event.data
            if len(body) > self._caps.body:
                raise Refused(f"The request exceeds the maximum of {self._caps.body} bytes.", 413, "request_too_large")

    async def _refuse(self, refused: Refused) -> None:
        """Answers with an error in the API's shape, if an answer can still be begun."""
        _log.info("model call refused", session=self._door.session_id, status=refused.status, reason=str(refused))
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        reply = _Reply(self._http, self._writer)
        closing = {} if self._http.their_state is h11.DONE else {"connection": "close"}
        await reply.start(refused.status, {"content-type": "application/json", **closing})
        await reply.data(error_body(refused.kind, str(refused)))
        await reply.end()

    async def _linger(self) -> None:
        """Reads on for a moment: closing with unread bytes would take the answer from the client."""
        with suppress(OSError, TimeoutError):
            if self._writer.can_write_eof():
                self._writer.write_eof()
            async with asyncio.timeout(self._caps.linger_seconds):
                while await self._reader.read(_READ):
                    pass


class _Reply:
    """Implements gateway.Reply over h11; `drain` is the back-pressure."""

    def __init__(self, http: h11.Connection, writer: asyncio.StreamWriter) -> None:
        self._http = http
        self._writer = writer
        self.started = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        await self._send(h11.Response(status_code=status, headers=list(headers.items())))

    async def data(self, chunk: bytes) -> None:
        await self._send(h11.Data(data=chunk))

    async def end(self) -> None:
        """The body is whole."""
        await self._send(h11.EndOfMessage())

    async def _send(self, event: h11.Event) -> None:
        self._writer.write(_bytes(self._http.send(event)))
        await self._writer.drain()


def _bytes(data: bytes | None) -> bytes:
    return data or b""


def _headers(head: h11.Request, caps: Caps) -> dict[str, str]:
    """The headers, none of them twice. Raises Refused for every doubt about where the body ends."""
    if head.http_version != b"1.1":
        raise Refused("Only HTTP/1.1 is spoken here.", 505)
    if len(head.target) + sum(len(name) + len(value) for name, value in head.headers) > caps.head:
        raise Refused(f"The request's head exceeds {caps.head} bytes.", 431)
    headers: dict[str, str] = {}
    for name, value in head.headers:
        key = name.decode("ascii")
        if key in headers:
            raise Refused(f"The header {key[:60]} comes twice.")
        headers[key] = value.decode("latin-1")
    if "transfer-encoding" in headers and "content-length" in headers:
        raise Refused("A request has a content length or a transfer encoding, not both.")
    if int(headers.get("content-length", "0")) > caps.body:
        raise Refused(f"The request exceeds the maximum of {caps.body} bytes.", 413, "request_too_large")
    return headers
