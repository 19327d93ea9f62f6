"""A host that is killed between the steps of taking a message in loses nothing and does nothing twice."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection

from host.db import channel_offsets
from host.home import Home
from mailboxes.schema import open_inbound_to_read
from tests.fakes.clock import FakeClock
from tests.routing.world import event, luna_answers_in_7, prepare, running

VICTIM = """
import asyncio, sys
from pathlib import Path
from host.home import Home
from tests.fakes.clock import FakeClock
from tests.routing.world import event, running

async def main():
    home = Home(Path(sys.argv[2]), Path(sys.argv[2]) / "run")
    async with running(sys.argv[1], home, FakeClock()) as host:
        await host.accept(event("e1", "1"), event("e2", "2"), offset="3")
        await host.settled()

asyncio.run(main())
"""


def texts(home: Home) -> list[str]:
    """What lies in all mailboxes."""
    found = []
    for path in home.sessions.glob("*/*/inbound/inbound.db"):
        database = open_inbound_to_read(path)
        found += [
            json.loads(row["content"])["text"] for row in database.execute("SELECT * FROM messages_in ORDER BY seq")
        ]
        database.close()
    return found


@pytest.mark.req("R024", "R031")
@pytest.mark.fault(17)
@pytest.mark.parametrize(
    ("point", "written"), [("after_ingest", []), ("after_put", ["1", "2"])], ids=["after_ingest", "after_put"]
)
async def test_a_kill_between_commit_and_mailbox_loses_nothing_and_doubles_nothing(
    tmp_path: Path, home: Home, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, point: str, written: list[str]
) -> None:
    url = prepare(tmp_path / "host.db", luna_answers_in_7)
    monkeypatch.setenv("INNKEEPER_CRASH_AT", point)
    killed = subprocess.run([sys.executable, "-c", VICTIM, url, str(home.root)], check=False, timeout=50)
    assert killed.returncode == -signal.SIGKILL
    assert texts(home) == written

    def offset(connection: Connection) -> str | None:
        return channel_offsets.get(connection, "telegram", "bot")

    async with running(url, home, clock) as host:
        assert await host.database.run(offset) == "3"
        await host.accept(event("e1", "1"), event("e2", "2"))
        await host.settled()
    assert texts(home) == ["1", "2"]
