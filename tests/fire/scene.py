"""A house full of agents: one host, a calm neighbour, and as many hostile agents as the tests name."""

import asyncio
import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from host.control import AsyncControlClient
from host.control_client import ConnectionLost, HostAbsent
from host.db import migrate
from host.db.engine import url_for
from host.home import Home, find_home
from tests.whole.harness import Forge, HostProcess, Terminal

SAYS = "(rehearsal, no model) "
CALM = "calm"
NEIGHBOUR_SECONDS = 8.0
"""Within this the neighbour has its answer, whatever goes on beside it (on a loaded machine of two cores)."""

QUICK: Mapping[str, object] = {
    "host.judging:RETRY_SECONDS": [0.1, 0.1, 0.1, 0.1],
    "host.backoff:SECONDS": [0.1],
    "host.life:BEAT_LOST_SECONDS": 4.0,
}
"""The waits of production, cut short. Honest runners of these tests beat three times a second."""


class House:
    """The running host and what a test asks of it."""

    def __init__(self, host: HostProcess) -> None:
        self.host = host
        self.home = host.home
        self._terminals: dict[str, Terminal] = {}

    async def agent(self, folder: str) -> Terminal:
        """The terminal of an agent, which is made if it is new. Its folder's name says what its sandbox does."""
        if folder not in self._terminals:
            await self.call("agents.add", name=folder, folder=folder)
            self._terminals[folder] = Terminal(self.home, f"cli-{folder}")
            await self._terminals[folder].attach()
        return self._terminals[folder]

    async def call(self, method: str, **params: object) -> Any:
        """One call over the control socket."""
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(HostAbsent, ConnectionLost):
                    async with await AsyncControlClient.connect(self.home.control_socket) as client:
                        return await client.call(method, **params)
                await asyncio.sleep(0.02)  # no host to talk to: it is being started

    async def session(self, folder: str) -> str:
        """The id of the agent's session, once it has one."""
        async with asyncio.timeout(30):
            while True:
                for row in await self.call("sessions.list"):
                    if row["agent"] == folder:
                        return str(row["id"])
                await asyncio.sleep(0.02)  # no event tells of a new session

    async def folder(self, folder: str) -> Path:
        """The folder of the agent's session, once it is made."""
        session = await self.session(folder)
        async with asyncio.timeout(30):
            while not (found := list(self.home.sessions.glob(f"*/{session}/inbound/inbound.db"))):
                await asyncio.sleep(0.02)  # no event tells of a new folder
        return found[0].parent.parent

    async def rows(self, folder: str, statement: str) -> list[Any]:
        """A query over the inbound.db of the agent's session."""
        path = await self.folder(folder) / "inbound" / "inbound.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
        connection.row_factory = sqlite3.Row
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    async def log(self, folder: str, event: str) -> list[Mapping[str, Any]]:
        """The lines of host.log with that event about the agent's session."""
        session = await self.session(folder)
        return [line for line in self.host.events(event) if line.get("session") == session]

    async def said(self, folder: str, kind: str = "warnings") -> list[str]:
        """What `host status` says of the agent's session; every line has a next step."""
        session = await self.session(folder)
        lines = [line for line in (await self.call("status"))[kind] if session in line["what"]]
        assert all(line["next"] for line in lines)
        return [line["what"] for line in lines]

    async def neighbour_answers(self) -> None:
        """The calm agent answers in time, from the sandbox that it has had all along."""
        terminal = await self.agent(CALM)
        word = f"word {len(terminal.texts)}"
        assert await terminal.ask(word, NEIGHBOUR_SECONDS) == [f"{SAYS}{word}"]

    async def neighbour_was_never_touched(self) -> None:
        """Over the whole life of the house nothing happened to the calm agent."""
        assert (await self.agent(CALM)).notices == []
        assert len(await self.log(CALM, "a sandbox is live")) == 1
        assert {row["tries"] for row in await self.rows(CALM, "SELECT tries FROM messages_in")} == {0}

    async def works_on(self, folder: str) -> None:
        """Returns when the agent's runner has claimed a message, as far as the host knows."""
        await self.until_there(folder, "SELECT 1 FROM messages_in WHERE status='processing'")

    async def until_there(self, folder: str, statement: str) -> None:
        """Returns when the query over the inbound.db of the agent's session finds something."""
        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(sqlite3.OperationalError):  # there may be no mailbox yet
                    if await self.rows(folder, statement):
                        return
                await asyncio.sleep(0.02)  # no event tells of a row

    async def runners(self, session: str) -> list[int]:
        """The runner of a session (process runtime), and what it has forked."""
        mount = f"/{session}/outbound"

        def look() -> list[int]:
            found = []
            for entry in Path("/proc").iterdir():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                    is_runner = command.startswith(b"/") and b"agent_runner" in command
                    if is_runner and mount in (entry / "mountinfo").read_text():
                        found.append(int(entry.name))
            return found

        return await asyncio.to_thread(look)

    async def close(self) -> None:
        """Lets the terminals go."""
        for terminal in self._terminals.values():
            await terminal.close()


@contextlib.asynccontextmanager
async def house(
    forge: Forge,
    runtime: str = "process",
    seams: Mapping[str, object] = QUICK,
    root: Path | None = None,
    **environment: str,
) -> AsyncIterator[House]:
    """A forged host with its own home (in `root` where one is given), the calm agent warm."""
    short = Path(tempfile.mkdtemp(prefix="fire-", dir="/tmp"))
    variables = {
        "XDG_RUNTIME_DIR": str(short),
        "INNKEEPER_HOME": str((root or short) / "home"),
        "INNKEEPER_RUNTIME": runtime,
        "INNKEEPER_MAX_SANDBOXES": "32",
        "INNKEEPER_TEST_SEAMS": json.dumps(dict(seams)),
        **environment,
    }
    home = find_home(None, os.environ | variables)
    await asyncio.to_thread(_migrated, home)
    host = HostProcess(home, variables, forge)
    made = House(host)
    try:
        await host.start()
        await (await made.agent(CALM)).ask("warm up")
        yield made
        assert await host.stop() == 0, host.output()
    finally:
        await made.close()
        await host.kill()
        await asyncio.to_thread(shutil.rmtree, short)


def _migrated(home: Home) -> None:
    home.prepare()
    migrate.migrate(home, url_for(home, {}))
