"""What process 1 of a container says about the end of its runner."""

import asyncio
import signal
import sys

import pytest

KILLED = "import os, sys; from agent_runner import init; sys.exit(init.run(lambda: os.kill(os.getpid(), 9) or 0))"
ENDS = "import sys; from agent_runner import init; sys.exit(init.run(lambda: 78))"
TOLD = """
import signal, sys
from agent_runner import init

def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    print("ready", flush=True)
    return 5 if signal.sigwait({signal.SIGTERM}) == signal.SIGTERM else 6

sys.exit(init.run(main))
"""


async def start(program: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)


@pytest.mark.parametrize(("program", "code"), [(ENDS, 78), (KILLED, 128 + signal.SIGKILL)], ids=["exit", "kill"])
async def test_it_ends_as_the_runner_ended(program: str, code: int) -> None:
    process = await start(program)
    async with asyncio.timeout(20):
        assert await process.wait() == code


async def test_a_stop_is_passed_on_to_the_runner_and_waited_for() -> None:
    process = await start(TOLD)
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert await process.stdout.readline() == b"ready\n"
        process.terminate()
        assert await process.wait() == 5
