"""What a host and a container cost while nothing happens: memory and processor time."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Figure, percentile, report
from benchmarks.rig import DISK, TMPFS, ensure_image, new_home, running
from host.control_client import ControlClient
from host.failure import Failure
from host.home import Home
from host.runtime.engine import connect

SESSIONS = 1000
SERVES_WITHIN_SECONDS = 120.0
SETTLED_SECONDS = 5.0
STARTS = 3


TURNS = 20


async def container_kib(seconds: float) -> tuple[int, int, int]:
    """A container's proportional share of memory: so long after its start, after its first turn, and after 20."""
    with new_home(TMPFS) as home:
        async with running(home, "docker") as rig:
            [chat] = await rig.add_chats(1)
            key = rig.chats[chat]
            rig.host.fleet.wake(key)
            while not ((live := rig.host.fleet.live().get(key)) and live.line):
                await asyncio.sleep(0.05)
            await asyncio.sleep(seconds)
            assert live.sandbox is not None
            pids = await asyncio.to_thread(_pids_in, live.sandbox.id)
            before = sum(_field_kib(pid, "smaps_rollup", "Pss") for pid in pids)
            await rig.channel.ask(chat)
            after = sum(_field_kib(pid, "smaps_rollup", "Pss") for pid in pids)
            for _ in range(TURNS - 1):
                await rig.channel.ask(chat)
            return before, after, sum(_field_kib(pid, "smaps_rollup", "Pss") for pid in pids)


def _pids_in(container_id: str) -> list[int]:
    return [int(row[1]) for row in connect(None, 10).top(container_id)["Processes"]]


def _field_kib(pid: int, file: str, name: str) -> int:
    lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _processor_seconds(pid: int) -> float:
    """Of all its threads, exact to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


@dataclass(frozen=True, slots=True)
class AtRest:
    """A host with nothing to do. `first`: seconds from `host up` to its first answer with one session; `served`: with
    all of them, after an orderly stop; `read`: after a kill, when it has to look into every mailbox."""

    resident_kib: int
    percent: float
    first: float
    served: float
    read: float


async def host_at_rest(seconds: float, sessions: int, runtime: str) -> AtRest:
    """With that many stopped sessions."""
    with new_home(DISK) as home:
        async with running(home, "process") as rig:
            await rig.add_chats(1)
        first = await _served(home, runtime)
        async with running(home, "process") as rig:
            await rig.add_chats(sessions - 1)
        served = await _served(home, runtime)
        (home.root / "mailboxes.json").unlink()
        began = time.monotonic()
        async with _host_up(home, runtime) as pid:
            read = time.monotonic() - began
            await asyncio.sleep(SETTLED_SECONDS)
            before = _processor_seconds(pid)
            await asyncio.sleep(seconds)
            used = _processor_seconds(pid) - before
            return AtRest(_field_kib(pid, "status", "VmRSS"), used / seconds * 100, first, served, read)


async def _served(home: Home, runtime: str) -> float:
    """The median of some starts."""
    took = []
    for _ in range(STARTS):
        began = time.monotonic()
        async with _host_up(home, runtime):
            took.append(time.monotonic() - began)
    return percentile(took, 50)


@asynccontextmanager
async def _host_up(home: Home, runtime: str) -> AsyncIterator[int]:
    """`host up` as a process of its own; its id once it answers."""
    environment = {"INNKEEPER_HOME": str(home.root), "INNKEEPER_RUNTIME": runtime, "INNKEEPER_PROVIDER": "rehearsal"}
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "host", "up", env={**os.environ, **environment},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SERVES_WITHIN_SECONDS):
            while not await asyncio.to_thread(_answers, home):
                await asyncio.sleep(0.1)
        yield host.pid
    finally:
        host.terminate()
        await host.wait()


def _answers(home: Home) -> bool:
    try:
        with ControlClient(home.control_socket) as client:
            client.call("status")
    except Failure:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="container after 60 s, host over 120 s (else 10 s and 20 s)"
    )
    full = parser.parse_args().full
    container_seconds, host_seconds = (60, 120) if full else (10, 20)
    ensure_image()
    before, after, later = asyncio.run(container_kib(container_seconds))
    rest = asyncio.run(host_at_rest(host_seconds, SESSIONS, "docker"))
    figures = [
        Figure("container PSS before a turn", before / 1024, "MiB", 25),
        Figure("container PSS after one", after / 1024, "MiB"),
        Figure(f"container PSS after {TURNS} turns", later / 1024, "MiB"),
        Figure(f"host RSS, {SESSIONS} stopped sessions", rest.resident_kib * 1024 / 1e6, "MB", 90),
        Figure("host processor at rest", rest.percent, "%", 0.2),
        Figure("from host up to its first answer, 1 session", rest.first * 1000, "ms"),
        Figure(f"the same, {SESSIONS} sessions", rest.served * 1000, "ms", 1000),
        Figure(f"{SESSIONS} sessions add, after an orderly stop", (rest.served - rest.first) * 1000, "ms", 250),
        Figure("after a kill", (rest.read - rest.first) * 1000, "ms", 1000),
    ]
    conditions = {"container": f"{container_seconds} s after its start", "host": f"over {host_seconds} s"}
    return 0 if report("footprint", figures, conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
