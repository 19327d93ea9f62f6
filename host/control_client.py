"""How a command reaches the running host: plain sockets, nothing that is slow to import."""

import contextlib
import json
import socket
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import Self

from host.failure import Code, Failure

MAX_LINE = 1024 * 1024
"""The longest line in either direction, in bytes."""


class HostAbsent(Failure):
    """No host listens on this home's control socket."""

    def __init__(self) -> None:
        super().__init__(Code.NO_HOST, "No host runs on this home.", "Start one with `host up` (or talk: `host chat`).")


class ConnectionLost(Failure):
    """The host closed the connection, or died, before it answered."""

    def __init__(self) -> None:
        super().__init__(Code.NO_HOST, "The host went away before it answered.", "See `host logs`, then `host up`.")


class ControlClient:
    """One connection, one request at a time. A context manager. Raises HostAbsent when nobody listens.

    `timeout` is how many seconds a single answer or event may take.
    """

    def __init__(self, path: Path, *, timeout: float = 10.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout)
        self._timeout = timeout
        self._count = 0
        try:
            self._socket.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            self._socket.close()
            raise HostAbsent from None
        except PermissionError:
            self._socket.close()
            raise Failure(
                Code.REFUSED, f"The host on {path} belongs to another user.", "Use --home for yours."
            ) from None
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up; a stream that still runs ends on the host's side as well."""
        self._lines.close()
        self._socket.close()

    def call(self, method: str, **params: object) -> object:
        """The result of `method`; its events, if it has any, are skipped. Raises the host's Failure, or
        ConnectionLost."""
        events = self.stream(method, **params)
        while True:
            try:
                next(events)
            except StopIteration as end:
                return end.value

    def stream(self, method: str, **params: object) -> Generator[object, None, object]:
        """Yields the events of `method`; the generator's return value is the result. Raises as `call` does."""
        self._count += 1
        request = {"id": self._count, "method": method, "params": params}
        # A host that refuses the connection says why and hangs up, which may be before we have sent a thing.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = self._read()
            if answer.get("id") != self._count and "error" not in answer:
                continue
            if "event" in answer:
                yield answer["event"]
            elif "error" in answer:
                raise Failure.from_json(answer["error"])
            else:
                return answer.get("result")

    def _read(self) -> dict[str, object]:
        try:
            line = self._lines.readline(MAX_LINE + 1)
        except TimeoutError:
            raise Failure(
                Code.FAILED,
                f"The host did not answer within {self._timeout:g} s.",
                "See `host status` and `host logs`.",
            ) from None
        except OSError:
            raise ConnectionLost from None
        if not line.endswith(b"\n"):
            raise ConnectionLost
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
        raise Failure(
            Code.FAILED, "The host's answer cannot be read.", "Are command and host of one version? See `host version`."
        )
