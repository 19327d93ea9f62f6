import asyncio
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mailboxes.bell import BEAT, RING, Line, bind, connect
from mailboxes.layout import MAX_SOCKET_PATH


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: a socket's path is."""
    made = Path(tempfile.mkdtemp(prefix="ik-", dir="/tmp"))
    yield made
    shutil.rmtree(made)


@asynccontextmanager
async def _pair(folder: Path) -> AsyncIterator[tuple[Line, Line]]:
    """The host's end and the runner's."""
    listener = bind(folder / "bell.sock", 0o600)
    try:
        runner = await connect(folder / "bell.sock")
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
    finally:
        listener.close()
    host = Line(accepted)
    try:
        yield host, runner
    finally:
        host.close()
        runner.close()


@pytest.mark.timeout(10)
async def test_a_ring_is_heard_on_either_side_and_a_beat_is_told_apart(folder: Path) -> None:
    async with _pair(folder) as (host, runner):
        for sender, listener in ((host, runner), (runner, host)):
            heard: asyncio.Queue[bytes] = asyncio.Queue()
            listening = asyncio.create_task(listener.listen(heard.put_nowait))
            assert sender.ring()
            assert await heard.get() == RING
            assert sender.ring(BEAT)
            assert await heard.get() == BEAT
            listening.cancel()


@pytest.mark.timeout(10)
async def test_the_end_of_the_other_side_ends_the_listening_and_fails_the_ring(folder: Path) -> None:
    async with _pair(folder) as (host, runner):
        heard: list[bytes] = []
        listening = asyncio.create_task(host.listen(heard.append))
        runner.close()

        await listening

        assert heard == []
        assert not host.ring()


@pytest.mark.timeout(10)
async def test_ringing_somebody_who_does_not_listen_never_blocks_and_is_no_failure(folder: Path) -> None:
    async with _pair(folder) as (host, _runner):
        assert all(host.ring() for _ in range(10_000))


@pytest.mark.timeout(20)
async def test_a_flood_costs_the_ringer_alone(folder: Path) -> None:
    """A ringer without end is heard at the pace of the window (64 packets in 100 ms), and the loop stays free."""
    async with _pair(folder) as (host, runner):
        heard, turns = 0, 0
        enough = asyncio.Event()

        def count(_: bytes) -> None:
            nonlocal heard
            heard += 1
            if heard == 5 * 64:
                enough.set()

        listening = asyncio.create_task(host.listen(count))
        started = time.monotonic()
        while not enough.is_set():
            runner.ring()
            turns += 1
            await asyncio.sleep(0)
        took = time.monotonic() - started
        listening.cancel()

        assert took >= 0.39  # four whole windows had to pass, however fast it rang
        assert turns > heard


@pytest.mark.timeout(10)
async def test_the_socket_has_the_mode_that_was_asked_for_and_replaces_an_older_one(folder: Path) -> None:
    path = folder / "bell.sock"
    bind(path, 0o600).close()

    listener = bind(path, 0o660, os.getegid())
    try:
        status = path.stat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o660
        assert status.st_gid == os.getegid()
        assert listener.type == socket.SOCK_SEQPACKET
    finally:
        listener.close()


def test_a_path_that_is_too_long_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=f"longer than {MAX_SOCKET_PATH} bytes"):
        bind(folder / ("x" * MAX_SOCKET_PATH), 0o600)


async def test_connecting_where_no_host_listens_is_an_oserror(folder: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        await connect(folder / "bell.sock")
    bind(folder / "bell.sock", 0o600).close()
    with pytest.raises(ConnectionRefusedError):
        await connect(folder / "bell.sock")
