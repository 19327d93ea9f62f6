"""The control socket, through real sockets."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from host.control import AsyncControlClient, Call, ControlServer
from host.control_client import MAX_LINE, ControlClient, HostAbsent
from host.failure import Code, Failure
from host.home import Home
from host.log import HostLog, Secrets


@pytest.fixture
async def server(home: Home) -> AsyncIterator[ControlServer]:
    made = ControlServer(home.control_socket)

    async def echo(call: Call) -> object:
        return {"params": call.params, "uid": call.actor.uid, "name": call.actor.name}

    async def count(call: Call) -> object:
        for number in range(3):
            await call.emit(number)
        return "done"

    async def refuse(_call: Call) -> object:
        raise Failure(Code.NOT_FOUND, "There is no such thing.", "Look elsewhere.")

    async def break_down(_call: Call) -> object:
        raise ZeroDivisionError

    made.register("echo", echo)
    made.register("count", count, stream=True)
    made.register("refuse", refuse)
    made.register("break", break_down)
    # The log of a real host: structlog's own default paints tracebacks on the loop, which takes too long there.
    with HostLog(home.logs, Secrets()):
        await made.start()
        try:
            yield made
        finally:
            await made.stop()


def _ask(path: Path, method: str, **params: object) -> object:
    with ControlClient(path) as client:
        return client.call(method, **params)


async def _raw(path: Path, sent: bytes, answers: int = 1) -> list[dict[str, object]]:
    reader, writer = await asyncio.open_unix_connection(str(path), limit=2 * MAX_LINE)
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(10):
            return [json.loads(await reader.readline()) for _ in range(answers)]
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_call_is_answered_and_the_actor_is_who_the_kernel_says(server: ControlServer, home: Home) -> None:
    answer = await asyncio.to_thread(_ask, home.control_socket, "echo", a=1)
    assert answer == {"params": {"a": 1}, "uid": os.geteuid(), "name": _own_name()}


def _own_name() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


async def test_only_we_may_open_the_socket(server: ControlServer, home: Home) -> None:
    assert stat.S_IMODE(home.control_socket.stat().st_mode) == 0o600


async def test_a_stream_gives_its_events_and_then_its_result(server: ControlServer, home: Home) -> None:
    def ask() -> tuple[list[object], object]:
        events = []
        with ControlClient(home.control_socket) as client:
            stream = client.stream("count")
            while True:
                try:
                    events.append(next(stream))
                except StopIteration as end:
                    return events, end.value

    assert await asyncio.to_thread(ask) == ([0, 1, 2], "done")


async def test_one_connection_serves_many_requests_at_once(server: ControlServer, home: Home) -> None:
    held = asyncio.Event()

    async def wait(_call: Call) -> object:
        await held.wait()
        return "late"

    server.register("wait", wait)
    async with await AsyncControlClient.connect(home.control_socket) as client:
        late = asyncio.create_task(client.call("wait"))
        assert [event async for event in client.stream("count")] == [0, 1, 2]
        held.set()
        assert await late == "late"


async def test_a_failure_arrives_with_its_code_its_reason_and_the_next_step(server: ControlServer, home: Home) -> None:
    with pytest.raises(Failure) as caught:
        await asyncio.to_thread(_ask, home.control_socket, "refuse")
    assert (caught.value.code, caught.value.message, caught.value.next) == (
        Code.NOT_FOUND,
        "There is no such thing.",
        "Look elsewhere.",
    )


async def test_a_method_that_breaks_tells_nothing_of_its_inside(server: ControlServer, home: Home) -> None:
    with pytest.raises(Failure, match="break failed inside the host") as caught:
        await asyncio.to_thread(_ask, home.control_socket, "break")
    assert "ZeroDivision" not in caught.value.message
    assert await asyncio.to_thread(_ask, home.control_socket, "echo")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"hello\n", "must be one line of JSON"),
        (b"\xff\xfe\n", "must be one line of JSON"),
        (b"[" * 100_000 + b"\n", "must be one line of JSON"),
        (b"[1]\n", "must be an object"),
        (b'{"id": 1, "method": "echo", "params": [1]}\n', "params must be an object"),
        (b'{"id": 1, "method": "nothing"}\n', "no method 'nothing'"),
        (b'{"id": 1, "method": {"a": 1}}\n', "no method"),
    ],
)
async def test_a_bad_request_is_answered_and_the_connection_goes_on(
    server: ControlServer, home: Home, sent: bytes, said: str
) -> None:
    bad, good = await _raw(home.control_socket, sent + b'{"id": 2, "method": "echo"}\n', answers=2)
    assert said in str(bad["error"])
    assert good["id"] == 2
    assert "result" in good


async def test_a_line_over_the_cap_is_refused(server: ControlServer, home: Home) -> None:
    (answer,) = await _raw(home.control_socket, b"x" * (MAX_LINE + 1024))
    assert str(MAX_LINE) in str(answer["error"])


async def test_more_connections_than_the_cap_are_refused_with_the_reason(
    server: ControlServer, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.control.MAX_CONNECTIONS", 1)
    async with await AsyncControlClient.connect(home.control_socket) as first:
        await first.call("echo")
        with pytest.raises(Failure, match="1 connections are open already"):
            await asyncio.to_thread(_ask, home.control_socket, "echo")
        async with await AsyncControlClient.connect(home.control_socket) as second:
            with pytest.raises(Failure, match="1 connections are open already"):
                await second.call("echo")


async def test_a_stream_ends_when_who_asked_has_gone(server: ControlServer, home: Home) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def watch(_call: Call) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    server.register("watch", watch, stream=True)
    _reader, writer = await asyncio.open_unix_connection(str(home.control_socket))
    writer.write(b'{"id": 1, "method": "watch"}\n')
    async with asyncio.timeout(10):
        await begun.wait()
        writer.close()
        await ended.wait()


async def test_a_change_that_was_asked_for_runs_to_its_end_even_when_who_asked_has_gone(
    server: ControlServer, home: Home
) -> None:
    begun, held, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def change(_call: Call) -> object:
        begun.set()
        await held.wait()
        ended.set()
        return None

    server.register("change", change)
    _reader, writer = await asyncio.open_unix_connection(str(home.control_socket))
    writer.write(b'{"id": 1, "method": "change"}\n')
    async with asyncio.timeout(10):
        await begun.wait()
        writer.close()
        await writer.wait_closed()
        held.set()
        await ended.wait()


async def test_without_a_host_a_client_says_so_and_what_to_do(home: Home) -> None:
    with pytest.raises(HostAbsent) as caught:
        ControlClient(home.control_socket)
    assert caught.value.code is Code.NO_HOST
    assert "host up" in caught.value.next


async def test_a_socket_that_a_killed_host_left_is_replaced(home: Home) -> None:
    first = ControlServer(home.control_socket)
    listening = first._bind()
    listening.close()
    assert home.control_socket.exists()
    with pytest.raises(HostAbsent):
        ControlClient(home.control_socket)
    second = ControlServer(home.control_socket)
    await second.start()
    await second.stop()
    assert not home.control_socket.exists()
