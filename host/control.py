"""The control socket: how a person of this machine reaches the running host.

A Unix stream socket (0600) that serves our own user and root, and nobody else; the kernel says who it is (SO_PEERCRED),
and that is the actor of every change. Lines of JSON: ``{"id", "method", "params"}`` in; ``{"id", "event"}`` any number
of times, then ``{"id", "result"}`` or ``{"id", "error": {"code", "message", "next"}}`` out. Many requests may run on
one connection.
"""

import asyncio
import contextlib
import json
import os
import pwd
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from host.control_client import MAX_LINE, ConnectionLost, HostAbsent
from host.failure import Code, Failure
from mailboxes import sockets

MAX_CONNECTIONS = 64
MAX_REQUESTS = 32
"""Requests that run at once on one connection."""

_CREDENTIALS = struct.Struct("3i")

_log: structlog.stdlib.BoundLogger = structlog.get_logger("host.control")


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks, by the kernel's word."""

    uid: int
    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """One request, parsed. `emit` sends an event to whoever asked and waits while they are slow to read."""

    method: str
    params: Mapping[str, object]
    actor: Actor
    emit: Callable[[object], Awaitable[None]]

    def text(self, name: str, default: str | None = None) -> str:
        """A parameter that must be text. Raises Failure."""
        value = self.params.get(name, default)
        if not isinstance(value, str):
            raise Failure(Code.USAGE, f"{self.method} needs the text {name!r}.")
        return value

    def flag(self, name: str) -> bool:
        """A parameter that must be true or false; false where it is missing. Raises Failure."""
        value = self.params.get(name, False)
        if not isinstance(value, bool):
            raise Failure(Code.USAGE, f"{self.method} takes true or false for {name!r}.")
        return value


Handler = Callable[[Call], Awaitable[object]]
"""Returns what can be written as JSON, or raises Failure."""


@dataclass(frozen=True, slots=True)
class _Method:
    handler: Handler
    stream: bool


class ControlServer:
    """Serves `path` between `start` and `stop`. The caller holds the home lock, so a socket that lies there is a dead
    one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._methods: dict[str, _Method] = {}
        self._server: asyncio.Server | None = None
        self._names: dict[int, str] = {}
        self._connections: set[asyncio.Task[None]] = set()

    def register(self, name: str, handler: Handler, *, stream: bool = False) -> None:
        """Serves `name`. A stream is cancelled when who asked has gone; any other call runs to its end."""
        self._methods[name] = _Method(handler, stream)

    def method(self, name: str, *, stream: bool = False) -> Callable[[Handler], Handler]:
        """`register` as a decorator."""

        def decorate(handler: Handler) -> Handler:
            self.register(name, handler, stream=stream)
            return handler

        return decorate

    async def start(self) -> None:
        """Listens from here on."""
        listening = await asyncio.to_thread(self._bind)
        self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=MAX_LINE)

    async def stop(self) -> None:
        """Hangs up on everybody and removes the socket."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    def _bind(self) -> socket.socket:
        self._names = {uid: _user_name(uid) for uid in {0, os.geteuid()}}
        return sockets.bind(self._path, socket.SOCK_STREAM, 0o600)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = _Connection(reader, writer, self._methods)
        try:
            actor = self._admit(writer)
            await connection.serve(actor)
        except Failure as refused:
            with contextlib.suppress(OSError):
                await connection.write({"id": None, "error": refused.to_json()})
        except asyncio.CancelledError:
            # Only `stop` cancels us; asyncio would report a cancelled handler as an error of ours.
            connection.cancel(streams_only=False)
        finally:
            self._connections.discard(task)
            await connection.close()

    def _admit(self, writer: asyncio.StreamWriter) -> Actor:
        peer = writer.get_extra_info("socket")
        pid, uid, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        name = self._names.get(uid)
        if name is None:
            _log.warning("control connection refused", uid=uid, pid=pid)
            raise Failure(Code.REFUSED, "This host belongs to another user.", "Use --home for yours.")
        if len(self._connections) > MAX_CONNECTIONS:
            raise Failure(
                Code.REFUSED, f"{MAX_CONNECTIONS} connections are open already.", "Close a terminal, then try again."
            )
        return Actor(uid, pid, name)


class _Connection:
    """One peer: reads requests, runs each as a task, writes whole lines."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, methods: Mapping[str, _Method]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._methods = methods
        self._running: dict[asyncio.Task[None], bool] = {}

    async def write(self, message: dict[str, object]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")
        await self._writer.drain()

    async def serve(self, actor: Actor) -> None:
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:
                raise Failure(Code.USAGE, f"A request may hold {MAX_LINE} bytes.") from None
            except OSError:
                return
            if not line:
                return
            await self._take(line, actor)

    async def close(self) -> None:
        """Ends the streams, lets the other calls finish, and hangs up."""
        self.cancel(streams_only=True)
        await asyncio.gather(*self._running, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def cancel(self, *, streams_only: bool) -> None:
        """Ends what runs for this peer."""
        for task, is_stream in self._running.items():
            if is_stream or not streams_only:
                task.cancel()

    async def _take(self, line: bytes, actor: Actor) -> None:
        request_id: object = None
        try:
            request = _parse(line)
            request_id = request.get("id")
            name, params = request.get("method"), request.get("params", {})
            if not isinstance(params, dict):
                raise Failure(Code.USAGE, "params must be an object.")
            method = self._methods.get(name) if isinstance(name, str) else None
            if method is None:
                raise Failure(
                    Code.USAGE,
                    f"This host has no method {name!r}.",
                    "Are command and host of one version? See `host version`.",
                )
            if len(self._running) >= MAX_REQUESTS:
                raise Failure(Code.REFUSED, f"{MAX_REQUESTS} requests are running on this connection.")
        except Failure as failure:
            await self._answer({"id": request_id, "error": failure.to_json()})
            return

        async def emit(event: object) -> None:
            await self.write({"id": request_id, "event": event})

        call = Call(str(name), params, actor, emit)
        task = asyncio.create_task(self._run(request_id, method, call), name=f"control {name}")
        self._running[task] = method.stream
        task.add_done_callback(self._running.pop)

    async def _run(self, request_id: object, method: _Method, call: Call) -> None:
        try:
            result = await method.handler(call)
        except Failure as failure:
            await self._answer({"id": request_id, "error": failure.to_json()})
        except OSError as error:
            # A stream whose reader has gone ends here; anything else of this class has gone wrong on our side.
            _log.debug("control call ended", method=call.method, error=repr(error))
            await self._answer({"id": request_id, "error": Failure(Code.FAILED, str(error)).to_json()})
        except Exception:  # noqa: BLE001  a request's outermost edge: one bad method must not end the connection
            _log.exception("control call failed", method=call.method, actor=call.actor.name)
            inside = Failure(Code.FAILED, f"{call.method} failed inside the host.", "See `host logs`.")
            await self._answer({"id": request_id, "error": inside.to_json()})
        else:
            await self._answer({"id": request_id, "result": result})

    async def _answer(self, message: dict[str, object]) -> None:
        """Writes an answer; who asked may have gone meanwhile, which is their right."""
        with contextlib.suppress(OSError):
            await self.write(message)


def _parse(line: bytes) -> dict[str, object]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        raise Failure(Code.USAGE, "A request must be one line of JSON.") from None
    if not isinstance(request, dict):
        raise Failure(Code.USAGE, "A request must be an object.")
    return request


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


class AsyncControlClient:
    """Many requests at once over one connection: what `host chat` uses. An async context manager."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._count = 0
        self._waiting: dict[int, asyncio.Queue[dict[str, object] | None]] = {}
        self._lost: Failure | None = None
        self._receiver = asyncio.create_task(self._receive())

    @classmethod
    async def connect(cls, path: Path) -> Self:
        """Raises HostAbsent when nobody listens."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(path), limit=MAX_LINE)
        except (FileNotFoundError, ConnectionRefusedError):
            raise HostAbsent from None
        return cls(reader, writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Hangs up."""
        self._receiver.cancel()
        await asyncio.gather(self._receiver, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def call(self, method: str, **params: object) -> object:
        """The result of `method`. Raises the host's Failure, or ConnectionLost."""
        request_id, answers = await self._send(method, params)
        try:
            while True:
                answer = await self._next(answers)
                if "event" not in answer:
                    return answer.get("result")
        finally:
            del self._waiting[request_id]

    async def stream(self, method: str, **params: object) -> AsyncIterator[object]:
        """Yields the events of `method` until it is done. Raises as `call` does."""
        request_id, answers = await self._send(method, params)
        try:
            while True:
                answer = await self._next(answers)
                if "event" not in answer:
                    return
                yield answer["event"]
        finally:
            del self._waiting[request_id]

    async def _send(
        self, method: str, params: dict[str, object]
    ) -> tuple[int, asyncio.Queue[dict[str, object] | None]]:
        if self._lost is not None:
            raise self._lost
        self._count += 1
        answers: asyncio.Queue[dict[str, object] | None] = asyncio.Queue()
        self._waiting[self._count] = answers
        request_id = self._count
        try:
            self._writer.write(json.dumps({"id": request_id, "method": method, "params": params}).encode() + b"\n")
            await self._writer.drain()
        except OSError:
            del self._waiting[request_id]
            raise ConnectionLost from None
        return request_id, answers

    async def _next(self, answers: asyncio.Queue[dict[str, object] | None]) -> dict[str, object]:
        answer = await answers.get()
        if answer is None:
            raise self._lost or ConnectionLost()
        if "error" in answer:
            raise Failure.from_json(answer["error"])
        return answer

    async def _receive(self) -> None:
        try:
            while line := await self._reader.readline():
                answer = json.loads(line)
                if answer.get("id") is None:
                    self._lost = Failure.from_json(answer.get("error"))
                elif waiting := self._waiting.get(answer["id"]):
                    waiting.put_nowait(answer)
        except (OSError, ValueError):
            pass
        finally:
            self._lost = self._lost or ConnectionLost()
            for answers in self._waiting.values():
                answers.put_nowait(None)
