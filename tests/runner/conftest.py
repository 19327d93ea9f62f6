"""A mailbox for each test, and runners that are gone when it ends."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.runner.harness import HostSide, RunnerProcess

Start = Callable[..., Awaitable[RunnerProcess]]


@pytest.fixture
def host(tmp_path: Path) -> HostSide:
    return HostSide(tmp_path)


@pytest.fixture
async def start(host: HostSide) -> AsyncIterator[Start]:
    """Starts a runner over `host`; whatever still runs at the end is stopped."""
    started: list[RunnerProcess] = []

    async def start_one(*arguments: str, preload: str = "sys", **environment: str) -> RunnerProcess:
        runner = await RunnerProcess.start(host, *arguments, preload=preload, **environment)
        started.append(runner)
        return runner

    yield start_one
    for runner in started:
        if runner.process.returncode is None:
            await runner.stop(signal.SIGKILL)
        await runner.errors()
