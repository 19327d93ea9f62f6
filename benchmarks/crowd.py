"""Many sessions at once: fifty that live and talk, beside ten thousand that stopped."""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence

from sqlalchemy import Connection

from benchmarks.common import Figure, percentile, report
from benchmarks.rig import TMPFS, Rig, add_sessions, ensure_image, new_home, running
from host.items import SessionRef
from mailboxes.clock import later, to_text

LIVE = 50
STOPPED = 10_000
TURNS = 10
"""Of each live session in the closed loop."""

THINKS = (0.3, 2.3)
"""Seconds that a person thinks before the next message, each as likely as any other."""

STARTS_AT_ONCE = 4
SWEEPS = 10
GOALS = (15.0, 60.0)
SWEEP_GOAL = 50.0
SEED = 1


async def start(rig: Rig) -> list[str]:
    """Fifty chats, each with its sandbox, a few at a time."""
    few = asyncio.Semaphore(STARTS_AT_ONCE)
    chats = await rig.add_chats(LIVE)

    async def first(chat: str) -> None:
        async with few:
            await rig.channel.ask(chat)

    await asyncio.gather(*map(first, chats))
    return chats


async def closed_loop(rig: Rig, chats: Sequence[str], turns: int) -> list[float]:
    """Milliseconds of every message; each chat waits for its answer, thinks, and goes on."""
    dice = random.Random(SEED)

    async def one(chat: str) -> list[float]:
        times = []
        for _ in range(turns):
            await asyncio.sleep(dice.uniform(*THINKS))
            times.append(await rig.channel.ask(chat))
        return times

    return [time for times in await asyncio.gather(*map(one, chats)) for time in times]


async def add_stopped(rig: Rig) -> None:
    """Ten thousand sessions that have stopped, each with a message that is due some day. They have rows and an entry in
    the index of due times, as after a start, and no folder: a sweep must not ask for one."""
    now = rig.host.clock.now()
    names = [f"stopped-{number}" for number in range(STOPPED)]

    def add(connection: Connection) -> list[SessionRef]:
        made = add_sessions(connection, rig.group, names, to_text(now))
        return [SessionRef(one.agent_group_id, one.id) for one in made]

    keys = await rig.host.database.run(add)
    await rig.host.routing.refresh()
    for number, key in enumerate(keys):
        rig.host.postmaster.rests(key, later(now, 86_400 + number))


async def sweep_ms() -> float:
    """Processor time of the whole host in a second in which nothing happens: one sweep over all sessions, and a look
    into each live mailbox."""
    used, began = time.process_time(), time.monotonic()
    await asyncio.sleep(SWEEPS)
    return (time.process_time() - used) * 1000 / (time.monotonic() - began)


async def measure(runtime: str, turns: int) -> tuple[list[float], float, float]:
    """The closed loop's milliseconds; what a sweep costs without the stopped sessions, and with them."""
    with new_home(TMPFS) as home:
        async with running(home, runtime, INNKEEPER_MAX_SANDBOXES=str(LIVE)) as rig:
            times = await closed_loop(rig, await start(rig), turns)
            alone = await sweep_ms()
            await add_stopped(rig)
            return times, alone, await sweep_ms()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", choices=("docker", "process"), default="process")
    parser.add_argument("--turns", type=int, default=TURNS, help="of each session in the closed loop")
    options = parser.parse_args()
    if options.runtime == "docker":
        ensure_image()
    times, alone, crowded = asyncio.run(measure(options.runtime, options.turns))
    figures = [
        Figure(f"closed loop of {LIVE}, p50", percentile(times, 50), "ms", GOALS[0]),
        Figure(f"closed loop of {LIVE}, p95", percentile(times, 95), "ms", GOALS[1]),
        Figure(f"a sweep, {LIVE} live", alone, "ms CPU"),
        Figure(f"a sweep, {LIVE} live and {STOPPED} stopped", crowded, "ms CPU", SWEEP_GOAL),
    ]
    conditions = {
        "runtime": f"{options.runtime}, max_sandboxes {LIVE}",
        "messages": str(len(times)),
        "think time": f"{THINKS[0]}-{THINKS[1]} s",
    }
    return 0 if report("crowd", figures, conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
