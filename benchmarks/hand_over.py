"""From the event in the adapter's hands to its answer in the adapter's hands: warm, cold, and thirty at once."""

import argparse
import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.common import Figure, fsync_p50_ms, percentile, report
from benchmarks.rig import DISK, PREFIX, TMPFS, Rig, ensure_image, new_home, running

RESTART_EVERY = 6
PAUSE_SECONDS = 0.005
"""Between two messages, so that each finds the host and the runner at rest: what they do after an answer takes 2 ms."""

BURST = 30
SYNCED_MESSAGES = 20
GOALS = {"tmpfs": (3.0, 6.0), "disk": (6.0, 12.0)}
COLD_GOAL = 350.0


@dataclass(slots=True)
class Times:
    """Milliseconds; `syncs` is a count."""

    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    burst: float = 0.0
    syncs: float | None = None


async def measure(folder: Path, runtime: str, messages: int, *, syncs: bool = False) -> Times:
    """One home in this folder. The first answer after each start is a cold one and no warm one."""
    times = Times()
    with new_home(folder) as home:
        async with running(home, runtime) as rig:
            [chat] = await rig.add_chats(1)
            await rig.channel.ask(chat)  # a first start reads the image from the disk
            for _ in range(-(-messages // RESTART_EVERY)):
                await rig.stop(chat)
                times.cold.append(await rig.channel.ask(chat))
                for _ in range(RESTART_EVERY):
                    await asyncio.sleep(PAUSE_SECONDS)
                    times.warm.append(await rig.channel.ask(chat))
            await asyncio.sleep(PAUSE_SECONDS)
            times.burst = await burst(rig, chat)
            if syncs:
                times.syncs = await syncs_per_message(rig, chat)
    return times


async def burst(rig: Rig, chat: str) -> float:
    """Milliseconds until thirty messages, said without waiting, have come back. Raises RuntimeError out of order."""
    texts = [f"burst {number}" for number in range(BURST)]
    answers = [rig.channel.answer_to(text) for text in texts]
    rig.channel.texts.clear()
    began = time.perf_counter()
    await asyncio.gather(*(rig.channel.say(chat, text) for text in texts), *answers)
    took = (time.perf_counter() - began) * 1000
    if rig.channel.texts != [PREFIX + text for text in texts]:
        raise RuntimeError(f"out of order: {rig.channel.texts}")
    return took


async def syncs_per_message(rig: Rig, chat: str) -> float | None:
    """How often the host waits for the disk for one message, by strace; None where strace is missing or not allowed."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile() as calls:
        tracer = await asyncio.create_subprocess_exec(
            "strace", "-f", "-e", "trace=fsync,fdatasync", "-o", calls.name, "-p", str(os.getpid()),
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert tracer.stderr is not None
        if b"attached" not in await tracer.stderr.readline():
            await tracer.wait()
            return None
        for _ in range(SYNCED_MESSAGES):
            await asyncio.sleep(PAUSE_SECONDS)
            await rig.channel.ask(chat)
        await asyncio.sleep(PAUSE_SECONDS)
        tracer.send_signal(signal.SIGINT)
        await tracer.communicate()
        done = re.findall(r"sync(?:\(| resumed).* = 0$", calls.read().decode(), re.MULTILINE)
        return len(done) / SYNCED_MESSAGES


def docker_run_true_ms(image: str, times: int = 5) -> float:
    """What `docker run --rm` of `true` takes: the yardstick of a cold start."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(
            ["docker", "run", "--rm", "--network", "none", "--entrypoint", "/bin/true", image],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        took.append((time.perf_counter() - began) * 1000)
    return percentile(took, 50)


def warm_figures(name: str, times: Times, goals: tuple[float | None, float | None]) -> list[Figure]:
    return [
        Figure(f"warm p50, {name}", percentile(times.warm, 50), "ms", goals[0]),
        Figure(f"warm p95, {name}", percentile(times.warm, 95), "ms", goals[1]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=120, help="warm messages for each line")
    parser.add_argument("--runtime", choices=("docker", "process"), default="docker")
    options = parser.parse_args()
    conditions = {"fsync p50": f"{fsync_p50_ms(DISK):.3f} ms on {DISK}", "messages": str(options.messages)}
    figures: list[Figure] = []
    yardstick = 0.0
    if options.runtime == "docker":
        yardstick = docker_run_true_ms(ensure_image())
        figures.append(Figure("docker run true", yardstick, "ms"))
    for name, folder in (("tmpfs", TMPFS), ("disk", DISK)):
        times = asyncio.run(measure(folder, options.runtime, options.messages, syncs=name == "disk"))
        figures += warm_figures(f"{options.runtime}, {name}", times, GOALS[name])
        if times.syncs is not None:
            figures.append(Figure("syncs a message", times.syncs, "", 12))
        elif name == "disk":
            conditions["syncs a message"] = "not counted: strace is missing, or may not look at a process here"
        cold = percentile(times.cold, 50)
        figures.append(Figure(f"cold first reply p50, {name}", cold, "ms", COLD_GOAL))
        if yardstick:
            figures.append(Figure(f"the same, in docker runs, {name}", cold / yardstick, ""))
        figures.append(Figure(f"burst of {BURST}, {name}", times.burst, "ms", 1000))
    if options.runtime == "docker":
        times = asyncio.run(measure(TMPFS, "process", options.messages))
        figures += warm_figures("process, tmpfs", times, (None, None))
        figures.append(Figure("cold first reply p50, process, tmpfs", percentile(times.cold, 50), "ms"))
    return 0 if report("hand-over", figures, conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
