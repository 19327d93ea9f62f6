"""What one hostile session costs its neighbours: their p99 beside it, over their p99 without it."""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from benchmarks.common import Figure, percentile, report
from benchmarks.rig import TMPFS, Rig, ensure_image, installation_id, new_home, replace_runtime, running
from host.runtime.base import RuntimeName, SandboxSpec
from host.runtime.docker import PYTHON, DockerRuntime
from host.runtime.image import image_tag
from host.serving import Host

NEIGHBOURS = 5
ROUNDS = 3
MESSAGES = 40
"""Of each neighbour in each round."""

WARM_UP = 5
PAUSE_SECONDS = 0.05
GOAL = 1.5

FLOOD = """
import socket, sqlite3
bell = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
bell.connect("/workspace/run/bell.sock")
bell.setblocking(False)
box = sqlite3.connect("/workspace/outbound/outbound.db", isolation_level=None)
box.execute("PRAGMA synchronous=OFF")
number = 1
while True:
    box.execute("BEGIN IMMEDIATE")
    for _ in range(20):
        number += 2
        box.execute("INSERT INTO messages_out"
                    " (id, seq, timestamp, kind, channel_type, account_id, platform_id, content) VALUES"
                    " (?, ?, '2026-01-01T00:00:00.000Z', 'chat', 'b', 'only', 'elsewhere', '{\\"text\\": \\"x\\"}')",
                    (f"flood-{number}", number))
    if number % 1000 < 40:
        box.execute("DELETE FROM messages_out")
    box.execute("COMMIT")
    try:
        for _ in range(50):
            bell.send(b"r")
    except BlockingIOError:
        pass
"""
"""Rows and rings without end. The rows go where its agent does not answer, so that each is also a refusal to write."""

BURN = """
import os
for _ in range(7):
    if not os.fork():
        break
while True:
    pass
"""

QUIET = "import time\ntime.sleep(3600)\n"

PROGRAMS = {"quiet": QUIET, "flood": FLOOD, "burn": BURN}


class MixedDocker(DockerRuntime):
    """Runs `program` in place of the runner in the hostile session's container; all others are as they are."""

    program = QUIET
    hostile = ""

    def _command(self, spec: SandboxSpec) -> Sequence[str]:
        return (PYTHON, "-I", "-c", self.program) if spec.session_id == self.hostile else super()._command(spec)


async def neighbours(rig: Rig, chats: Sequence[str], messages: int) -> list[float]:
    """Milliseconds of each neighbour's messages, all neighbours at the same time."""

    async def one(chat: str) -> list[float]:
        times = []
        for _ in range(messages):
            times.append(await rig.channel.ask(chat))
            await asyncio.sleep(PAUSE_SECONDS)
        return times

    return [time for times in await asyncio.gather(*map(one, chats)) for time in times]


async def _mix(host: Host) -> None:
    replace_runtime(host, MixedDocker(await installation_id(host), image_tag(), host.home.logs, host.clock))


async def measure(rounds: int, messages: int) -> dict[str, list[float]]:
    """The neighbours' times beside each kind of session, in turns: the machine's moods meet all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with new_home(TMPFS) as home:
        async with running(home, "docker", _mix) as rig:
            runtime = rig.host.runtimes[RuntimeName.DOCKER]
            assert isinstance(runtime, MixedDocker)
            hostile, *chats = await rig.add_chats(1 + NEIGHBOURS)
            runtime.hostile = rig.chats[hostile].session_id
            await neighbours(rig, chats, 1)
            for _ in range(rounds):
                for name, program in PROGRAMS.items():
                    runtime.program = program
                    rig.host.fleet.wake(rig.chats[hostile])
                    await neighbours(rig, chats, WARM_UP)
                    times[name] += await neighbours(rig, chats, messages)
                    await rig.stop(hostile)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of each neighbour in each round")
    options = parser.parse_args()
    ensure_image()
    times = asyncio.run(measure(options.rounds, options.messages))
    alone = percentile(times["quiet"], 99)
    figures = [
        Figure("neighbours' p50 beside a quiet session", percentile(times["quiet"], 50), "ms"),
        Figure("neighbours' p99 beside a quiet session", alone, "ms"),
        Figure("beside a flood of rings and rows, times", percentile(times["flood"], 99) / alone, "", GOAL),
        Figure("beside one that burns its processor, times", percentile(times["burn"], 99) / alone, "", GOAL),
    ]
    conditions = {"neighbours": str(NEIGHBOURS), "messages of each": f"{options.rounds} x {options.messages}"}
    return 0 if report("neighbours", figures, conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
