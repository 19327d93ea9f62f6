"""Both sides of one mailbox write as fast as they can."""

import asyncio
import time

import pytest

from tests.fire.scene import QUICK, SAYS, house
from tests.whole.harness import Forge

HAMMER_SECONDS = 10.0
ROWS_AHEAD = 100


@pytest.mark.req("R026", "R025")
@pytest.mark.fault(93)
async def test_host_and_runner_hammer_one_mailbox_and_neither_is_ever_locked_out(forge: Forge) -> None:
    async with house(forge, seams=QUICK) as made:
        terminal = await made.agent("honest")
        keys: list[str] = []
        ends = time.monotonic() + HAMMER_SECONDS
        while time.monotonic() < ends:
            keys.append(await terminal.send(f"row {len(keys)}"))
            # Not further ahead than this: the host writes new rows and the record of old ones at the same time.
            await terminal.until(lambda: len(terminal.texts) > len(keys) - ROWS_AHEAD)
        await terminal.until(lambda: all(key in terminal.settled for key in keys))
        assert terminal.texts == [f"{SAYS}row {number}" for number in range(len(keys))]
        assert terminal.notices == []
        assert len(keys) > ROWS_AHEAD
        states = await made.rows("honest", "SELECT status, tries, count(*) AS rows FROM messages_in GROUP BY 1, 2")
        assert [tuple(row) for row in states] == [("completed", 0, len(keys))]
        said = await made.rows("honest", "SELECT state, count(*) AS rows FROM deliveries GROUP BY 1")
        assert [tuple(row) for row in said] == [("sent", len(keys))]
        logs = sorted((made.home.logs / await made.session("honest")).glob("*.log"))
        output = await asyncio.to_thread(lambda: "".join(log.read_text() for log in logs))
        for trouble in ("locked", "HostAway", "error"):
            assert trouble not in output + made.host.output(), trouble
        [mode] = await made.rows("honest", "PRAGMA journal_mode")
        assert mode[0] == "delete"
