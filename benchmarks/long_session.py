"""A session that has gone on for long answers as soon as a new one."""

import argparse
import asyncio
import sys

from benchmarks.common import Figure, percentile, report
from benchmarks.rig import TMPFS, Rig, ensure_image, new_home, running

TURNS = 2000
WARM = 120
PAUSE_SECONDS = 0.02
GOAL = 1.2


async def warm(rig: Rig, chats: list[str]) -> list[list[float]]:
    """Milliseconds of messages to these chats, in turns: the machine's moods meet all of them alike."""
    times: list[list[float]] = [[] for _ in chats]
    for _ in range(WARM):
        for chat, measured in zip(chats, times, strict=True):
            await asyncio.sleep(PAUSE_SECONDS)
            measured.append(await rig.channel.ask(chat))
    return times


async def measure(runtime: str, turns: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of an old session and of a fresh one; and a cold first reply of the old one."""
    with new_home(TMPFS) as home:
        async with running(home, runtime) as rig:
            old, fresh = await rig.add_chats(2)
            for _ in range(turns):
                await rig.channel.ask(old)
            await rig.stop(old)
            cold = await rig.channel.ask(old)
            await rig.channel.ask(fresh)
            of_old, of_fresh = await warm(rig, [old, fresh])
            return of_old, of_fresh, cold


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runtime", choices=("docker", "process"), default="docker")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    if options.runtime == "docker":
        ensure_image()
    old, fresh, cold = asyncio.run(measure(options.runtime, options.turns))
    figures = [
        Figure("warm p50, a fresh session", percentile(fresh, 50), "ms"),
        Figure("warm p95, a fresh session", percentile(fresh, 95), "ms"),
        Figure(f"p50 after {options.turns} turns, times", percentile(old, 50) / percentile(fresh, 50), "", GOAL),
        Figure(f"p95 after {options.turns} turns, times", percentile(old, 95) / percentile(fresh, 95), "", GOAL),
        Figure(f"cold first reply after {options.turns} turns", cold, "ms"),
    ]
    conditions = {"runtime": options.runtime, "messages of each": str(WARM)}
    return 0 if report("long session", figures, conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
