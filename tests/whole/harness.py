"""A host process that a test starts, kills and starts again, and a terminal that talks to it."""

import asyncio
import contextlib
import json
import os
import queue
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from host.control import AsyncControlClient
from host.control_client import ConnectionLost, HostAbsent
from host.failure import Failure
from host.home import Home

DEADLINE = 30.0


class Forge:
    """The process that host processes are forked from (tests/whole/forge.py); one serves every loop of a test run."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.whole.forge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._started: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._codes: dict[int, int] = {}
        self._waiting: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[int]]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def close(self) -> None:
        """Ends the forge; the hosts that it made have ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "started" in told:
                self._codes.pop(told["started"], None)  # of an earlier process that had this number
                self._started.put(told["started"])
                continue
            pid, code = told["ended"]
            with self._lock:
                self._codes[pid] = code
                waiting = self._waiting.pop(pid, None)
            if waiting is not None:
                loop, future = waiting
                loop.call_soon_threadsafe(_settle, future, code)

    async def start(self, environment: Mapping[str, str], output: Path) -> tuple[int, "asyncio.Future[int]"]:
        """A new host process, and its exit code to come."""
        assert self._process.stdin is not None
        request = {"environment": dict(environment), "output": str(output)}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        pid = await asyncio.to_thread(self._started.get)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with self._lock:
            if (code := self._codes.get(pid)) is not None:
                future.set_result(code)
            else:
                self._waiting[pid] = (asyncio.get_running_loop(), future)
        return pid, future


def _settle(future: "asyncio.Future[int]", code: int) -> None:
    if not future.done():
        future.set_result(code)


class HostProcess:
    """`host up` of one home. `environment` is added to the test's own; a forge makes it start faster."""

    def __init__(self, home: Home, environment: Mapping[str, str], forge: Forge | None = None) -> None:
        self.home = home
        self.environment = dict(environment)
        self._forge = forge
        self._ended: asyncio.Future[int] | None = None
        self.pid = 0
        self._output = home.root.parent / "host-output.txt"

    async def start(self, **extra: str) -> None:
        """Starts it without waiting for anything."""
        environment = {**os.environ, "INNKEEPER_HOME": str(self.home.root), **self.environment, **extra}
        if self._forge is not None:
            self.pid, self._ended = await self._forge.start(environment, self._output)
            return
        with self._output.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "host",
                "up",
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.pid, self._ended = process.pid, asyncio.ensure_future(process.wait())

    async def wait(self) -> int:
        """Its exit code, within the deadline."""
        assert self._ended is not None
        async with asyncio.timeout(DEADLINE):
            return await asyncio.shield(self._ended)

    def signal(self, number: int) -> None:
        """Sends it a signal unless it has ended."""
        if self._ended is not None and not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """SIGTERM and the orderly end."""
        self.signal(signal.SIGTERM)
        return await self.wait()

    def output(self) -> str:
        """What it printed, and its log."""
        log = self.home.logs / "host.log"
        return self._output.read_text() + (log.read_text() if log.exists() else "")

    def events(self, event: str) -> list[dict[str, object]]:
        """The lines of the log that tell of `event`."""
        log = self.home.logs / "host.log"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line for line in lines if line["event"] == event]

    async def runner_pids(self) -> list[int]:
        """The processes that run `agent_runner` below this host (process runtime)."""
        return await asyncio.to_thread(_descendants_running, self.pid, b"agent_runner")


def _descendants_running(root: int, marker: bytes) -> list[int]:
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_bytes()
    found = []
    for pid in parents:
        ancestor = pid
        while ancestor in parents and ancestor != root:
            ancestor = parents[ancestor]
        if ancestor == root and pid != root and marker in commands[pid] and commands[pid].startswith(b"/"):
            found.append(pid)
    return found


class Terminal:
    """A terminal that survives hosts: it attaches again, sends again what nobody confirmed, and drops what it has
    shown."""

    def __init__(self, home: Home, chat: str = "cli") -> None:
        self._home = home
        self._chat = chat
        self._client: AsyncControlClient | None = None
        self._follower: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._shown: set[tuple[str, int]] = set()
        self.texts: list[str] = []
        self.notices: list[str] = []
        self.settled: dict[str, bool] = {}
        self.open: dict[str, str] = {}
        self.redelivered = 0

    async def attach(self) -> None:
        """Follows the chat for as long as a host is there, and the next one's after that."""
        self._follower = asyncio.create_task(self._follow_for_ever())

    async def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)

    async def _follow_for_ever(self) -> None:
        while True:
            with contextlib.suppress(HostAbsent, ConnectionLost, Failure, OSError):
                async with await AsyncControlClient.connect(self._home.control_socket) as client:
                    await self._follow(client)
            self._client = None
            await asyncio.sleep(0.02)  # between two attempts to reach a host that is being started

    async def _follow(self, client: AsyncControlClient) -> None:
        events = client.stream("chat.attach", chat=self._chat, waiting=list(self.open.values()))
        async for event in events:
            assert isinstance(event, dict)
            self._client = client
            if event["type"] == "text":
                await self._show(client, event)
            elif event["type"] == "settled":
                async with self._changed:
                    self.settled[event["event_key"]] = event["failed"]
            async with self._changed:
                self._changed.notify_all()

    async def _show(self, client: AsyncControlClient, event: Mapping[str, object]) -> None:
        chunk = (str(event["delivery_id"]), int(str(event["chunk"])))
        if chunk in self._shown:
            self.redelivered += 1
        else:
            self._shown.add(chunk)
            (self.notices if event["notice"] else self.texts).append(str(event["text"]))
        await client.call("chat.ack", chat=self._chat, delivery_id=chunk[0], chunk=chunk[1])

    async def send(self, text: str, files: Sequence[Path] = ()) -> str:
        """Sends a line, and files along, until a host has confirmed it; the event key."""
        key = secrets.token_hex(8)
        async with asyncio.timeout(DEADLINE):
            while True:
                client = self._client
                if client is not None:
                    with contextlib.suppress(ConnectionLost, OSError, Failure):
                        self.open[text] = f"{self._chat}:message:{key}"
                        paths = [str(file) for file in files]
                        await client.call("chat.send", chat=self._chat, text=text, key=key, files=paths)
                        return self.open[text]
                await asyncio.sleep(0.01)  # no host to talk to: it is being started

    async def until(self, done: Callable[[], bool], seconds: float = DEADLINE) -> None:
        """Waits for events until `done`."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(done)
        except TimeoutError:
            raise AssertionError(f"texts {self.texts[-20:]}, notices {self.notices}, settled {self.settled}") from None

    async def ask(self, text: str, seconds: float = DEADLINE, *, files: Sequence[Path] = ()) -> list[str]:
        """Sends a line and returns what came until it was settled."""
        before = len(self.texts)
        key = await self.send(text, files)
        await self.until(lambda: key in self.settled, seconds)
        return self.texts[before:]


@contextlib.asynccontextmanager
async def running(
    home: Home, environment: Mapping[str, str], forge: Forge | None = None
) -> AsyncIterator[tuple[HostProcess, Terminal]]:
    """A host and a terminal that is attached to it; an orderly end."""
    host, terminal = HostProcess(home, environment, forge), Terminal(home)
    await host.start()
    await terminal.attach()
    try:
        yield host, terminal
        code = await host.stop()
        assert code == 0, host.output()
    finally:
        await terminal.close()
        await host.kill()


def rows(home: Home, statement: str) -> list[sqlite3.Row]:
    """A query over every session's inbound.db of a home whose host has ended, or that a host has open (read only)."""
    found = []
    for path in sorted(home.sessions.glob("*/*/inbound/inbound.db")):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
        connection.row_factory = sqlite3.Row
        found += connection.execute(statement).fetchall()
        connection.close()
    return found


async def wait_until(done: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Polls a fact that no event tells of."""
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.02)
