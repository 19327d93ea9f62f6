"""The door as a hostile client finds it: bytes on a socket, and what they may cost."""

import asyncio
import os
import stat
import time
from pathlib import Path

import pytest

from host.broker.gateway import Gateway
from host.broker.server import Broker, Caps
from tests.broker.conftest import KEY
from tests.fakes.doors import ask, body_of, broker_to, exchange, read_answer, request_of
from tests.fakes.messages_api import Hold, MessagesApi, Say


def _status(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1]) if raw else 0


HEAD = b"POST /v1/messages HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\n"

SMUGGLED: dict[str, bytes] = {
    "two content lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a list of content lengths": HEAD + b"content-length: 2, 3\r\n\r\n{}",
    "a negative content length": HEAD + b"content-length: -1\r\n\r\n",
    "a content length with a sign": HEAD + b"content-length: +2\r\n\r\n{}",
    "a content length of thousands of digits": HEAD + b"content-length: " + b"9" * 8000 + b"\r\n\r\n",
    "a length and chunks": HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunks of another coding": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a chunk size that is no number": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a folded header": HEAD + b"x-a: b\r\n\tc\x00d\r\n\r\n",
    "a blank before the colon": HEAD + b"content-length : 2\r\n\r\n{}",
    "no host": b"POST /v1/messages HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
    "two hosts": b"POST /v1/messages HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 2\r\n\r\n{}",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a huge header": HEAD + b"x-a: " + b"a" * 20_000 + b"\r\n\r\n",
    "endless headers": HEAD + b"".join(b"x-%d: y\r\n" % n for n in range(2000)) + b"\r\n",
    "an endless first line": b"POST /" + b"a" * 40_000,
}


@pytest.mark.parametrize("attack", SMUGGLED)
async def test_no_doubtful_request_gets_through(door: Path, api: MessagesApi, attack: str) -> None:
    raw = await exchange(door, SMUGGLED[attack])
    assert 400 <= _status(raw) < 500 or _status(raw) in (501, 505)
    assert all(400 <= int(part[:3]) < 600 for part in raw.split(b"\r\nHTTP/1.1 ")[1:]), "no rest is taken for a request"
    assert api.requests == []
    assert (await ask(door, request_of(body_of()))).status == 200, "the door still works"


async def test_pipelined_requests_are_answered_one_after_the_other(door: Path, api: MessagesApi) -> None:
    def say(text: str) -> bytes:
        return request_of(body_of(messages=[{"role": "user", "content": f"SAY:{text}"}]))

    reader, writer = await asyncio.open_unix_connection(str(door))
    writer.write(say("first") + say("second") + request_of({"bad": 1}) + say("fourth"))
    answers = [await read_answer(reader) for _ in range(4)]
    writer.close()
    assert [answer.status for answer in answers] == [200, 200, 400, 200]
    assert [word in answers[n].body for n, word in ((0, b"first"), (1, b"second"), (3, b"fourth"))] == [True] * 3


async def test_a_chunked_request_is_taken_and_sent_on_with_a_length(door: Path, api: MessagesApi) -> None:
    data = request_of(body_of()).partition(b"\r\n\r\n")[2]
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data)
    answer = await ask(door, HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks)
    assert answer.status == 200
    assert "transfer-encoding" not in api.requests[0].headers


async def test_a_client_may_ask_before_it_sends(door: Path) -> None:
    request = request_of(body_of(), headers="expect: 100-continue\r\n")
    head, _, data = request.partition(b"\r\n\r\n")
    reader, writer = await asyncio.open_unix_connection(str(door))
    writer.write(head + b"\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    writer.write(data)
    assert (await read_answer(reader)).status == 200
    writer.close()


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(door: Path, caps: Caps) -> None:
    answer = await ask(door, HEAD + b"content-length: %d\r\n\r\n" % (caps.body + 1))
    assert answer.status == 413
    assert answer.error == ("request_too_large", f"The request exceeds the maximum of {caps.body} bytes.")


async def test_a_body_that_grows_too_large_is_refused(door: Path, caps: Caps) -> None:
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    raw = await exchange(door, HEAD + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 3)
    assert _status(raw) == 413


@pytest.mark.parametrize("piece", [b"", b"POST /v1/mess", HEAD, HEAD + b"content-length: 10\r\n\r\n", b"\r\n"])
async def test_a_client_that_hangs_up_anywhere_hurts_nobody(door: Path, piece: bytes) -> None:
    _, writer = await asyncio.open_unix_connection(str(door))
    writer.write(piece)
    writer.close()
    await writer.wait_closed()
    assert (await ask(door, request_of(body_of()))).status == 200


async def test_a_slow_head_and_a_slow_body_have_a_deadline(api: MessagesApi, env_file: Path, run_folder: Path) -> None:
    broker, gateway = broker_to(api, env_file, caps=Caps(idle_seconds=0.2, body_seconds=0.2, linger_seconds=0.1))
    socket = (await broker.open("s1", run_folder / "b.sock")).path
    reader, writer = await asyncio.open_unix_connection(str(socket))
    writer.write(b"POST /v1/")
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    answer = await ask(socket, HEAD + b"content-length: 100\r\n\r\n{")
    assert answer.status == 408
    await broker.close()
    await gateway.close()


async def test_an_answer_that_takes_too_long_is_cut(api: MessagesApi, env_file: Path, run_folder: Path) -> None:
    broker, gateway = broker_to(api, env_file, caps=Caps(total_seconds=0.3, linger_seconds=0.1))
    socket = (await broker.open("s1", run_folder / "b.sock")).path
    hold = Hold()
    api.next(hold)
    with pytest.raises(asyncio.IncompleteReadError):
        await ask(socket, request_of(body_of()))
    assert await asyncio.to_thread(hold.dropped.wait, 10), "the model's side was hung up too"
    await broker.close()
    await gateway.close()


async def test_a_session_has_four_calls_at_once_and_no_more(door: Path, api: MessagesApi) -> None:
    holds = [Hold() for _ in range(4)]
    api.next(*holds)
    asked = [asyncio.create_task(ask(door, request_of(body_of()))) for _ in range(4)]
    for hold in holds:
        assert await asyncio.to_thread(hold.begun.wait, 10)
    fifth = await ask(door, request_of(body_of()))
    assert fifth.status == 429
    assert fifth.error[0] == "rate_limit_error"
    for hold in holds:
        hold.release.set()
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * 4
    assert (await ask(door, request_of(body_of()))).status == 200, "the places are free again"


async def test_a_session_has_sixteen_connections_and_no_more(door: Path) -> None:
    held = [await asyncio.open_unix_connection(str(door)) for _ in range(16)]
    await asyncio.sleep(0)
    reader, writer = await asyncio.open_unix_connection(str(door))
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    held.pop()[1].close()
    async with asyncio.timeout(5):
        while True:
            try:
                assert (await ask(door, request_of(body_of()))).status == 200
                break
            except (asyncio.IncompleteReadError, ConnectionError):
                await asyncio.sleep(0)
    for _, writer in held:
        writer.close()


async def test_a_hostile_neighbour_disturbs_nobody(
    pair: tuple[Broker, Gateway], door: Path, api: MessagesApi, run_folder: Path, caps: Caps
) -> None:
    """One session takes all it can take, in every way; the other is answered as before."""
    neighbour = (await pair[0].open("s2", run_folder / "two.sock")).path
    holds = [Hold() for _ in range(2)]
    api.next(*holds)
    asked = [asyncio.create_task(ask(door, request_of(body_of()))) for _ in range(2)]
    for hold in holds:
        assert await asyncio.to_thread(hold.begun.wait, 10)
    idle = [await asyncio.open_unix_connection(str(door)) for _ in range(30)]
    for _, writer in idle[:8]:
        writer.write(HEAD + b"content-length: %d\r\n\r\n[" % caps.body)
    bombs = [asyncio.create_task(exchange(door, b"[" * caps.body)) for _ in range(4)]
    started = time.monotonic()
    answers = await asyncio.gather(*(ask(neighbour, request_of(body_of())) for _ in range(4)))
    assert [answer.status for answer in answers] == [200] * 4
    assert time.monotonic() - started < 5
    for hold in holds:
        hold.release.set()
    await asyncio.gather(*asked, *bombs, return_exceptions=True)
    for _, writer in idle:
        writer.close()


async def test_a_client_that_hangs_up_cancels_the_call_to_the_model(door: Path, api: MessagesApi) -> None:
    hold = Hold()
    api.next(hold)
    _, writer = await asyncio.open_unix_connection(str(door))
    writer.write(request_of(body_of()))
    assert await asyncio.to_thread(hold.begun.wait, 10)
    writer.close()
    assert await asyncio.to_thread(hold.dropped.wait, 10)


async def test_a_client_that_does_not_read_holds_the_model_back(door: Path, api: MessagesApi) -> None:
    long = Hold(Say("x" * 16_000_000))
    long.release.set()
    api.next(long)
    reader, writer = await asyncio.open_unix_connection(str(door), limit=1024)
    writer.write(request_of(body_of()))
    await reader.readexactly(1024)
    taken = await asyncio.to_thread(long.finished.wait, 1.0)
    assert not taken, "the model cannot get rid of its answer, so it lies nowhere in between"
    rest = 0
    while rest < 16_000_000:
        rest += len(await reader.read(1_000_000))
    assert await asyncio.to_thread(long.finished.wait, 10)
    writer.close()


async def test_a_socket_is_for_its_sandbox_alone(pair: tuple[Broker, Gateway], run_folder: Path) -> None:
    path = run_folder / "three.sock"
    path.write_text("what a dead host left here")
    before = os.umask(0)
    try:
        await pair[0].open("s3", path, mode=0o660, gid=os.getgid())
    finally:
        os.umask(before)
    status = path.stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o660
    assert status.st_gid == os.getgid()


async def test_a_closed_door_is_gone_and_ends_what_ran(
    pair: tuple[Broker, Gateway], door: Path, api: MessagesApi
) -> None:
    hold = Hold()
    api.next(hold)
    asked = asyncio.create_task(ask(door, request_of(body_of())))
    assert await asyncio.to_thread(hold.begun.wait, 10)
    await pair[0].shut("s1")
    assert not door.exists()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await asked
    assert await asyncio.to_thread(hold.dropped.wait, 10)


async def test_a_door_can_be_opened_again_at_the_same_place(pair: tuple[Broker, Gateway], door: Path) -> None:
    await pair[0].open("s1", door)
    assert (await ask(door, request_of(body_of()))).status == 200


@pytest.mark.req("R089")
async def test_no_answer_of_the_door_ever_holds_the_key(door: Path, api: MessagesApi) -> None:
    answers = [(await ask(door, request_of(body_of(), headers=f"x-api-key: {KEY}\r\n"))).raw]
    answers += [await exchange(door, attack) for attack in SMUGGLED.values()]
    api.key = "another"
    answers.append((await ask(door, request_of(body_of()))).raw)
    assert KEY.encode() not in b"".join(answers)
