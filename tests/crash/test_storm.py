"""Seeded storms: messages go on while host and runners are killed at random moments. `make crash` runs 300 seeds."""

import asyncio
import contextlib
import os
import random
import signal

import pytest

from host.home import Home
from tests.whole.harness import Forge, HostProcess, Terminal, rows

SAYS = "(rehearsal, no model) "
MESSAGES = 12
STORM_SECONDS = 60.0


@pytest.mark.storm
@pytest.mark.req("R024", "R026", "R274")
async def test_nothing_is_lost_and_nothing_comes_twice(ready_home: Home, forge: Forge, storm_seed: int) -> None:
    dice = random.Random(storm_seed)
    host, terminal = HostProcess(ready_home, {"INNKEEPER_RUNTIME": "process"}, forge), Terminal(ready_home)
    await host.start()
    await terminal.attach()
    try:
        keys = []
        for number in range(MESSAGES):
            keys.append(await terminal.send(f"message {number}"))
            await asyncio.sleep(dice.uniform(0, 0.05))  # the storm's own weather: kills fall at any moment of the path
            await _strike(host, dice)
        await terminal.until(lambda: all(key in terminal.settled for key in keys), STORM_SECONDS)
        assert terminal.notices == []
        assert sorted(terminal.texts) == sorted(f"{SAYS}message {number}" for number in range(MESSAGES))
        assert await host.stop() == 0
        states = {row["state"] for row in rows(ready_home, "SELECT state FROM deliveries")}
        assert states == {"sent"}
    finally:
        await terminal.close()
        await host.kill()


async def _strike(host: HostProcess, dice: random.Random) -> None:
    what = dice.random()
    if what < 0.12:
        await host.kill()
        await host.start()
    elif what < 0.3:
        for pid in await host.runner_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
