"""The program: one host of one home, from its lock to its orderly end."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable, Mapping

from host.assembly import assemble
from host.home import Home
from host.lock import home_lock
from host.methods import RESTART
from mailboxes.clock import Clock, SystemClock

TURN_GRACE_SECONDS = 30.0
"""How long an orderly stop lets running turns go on."""


async def run_host(
    home: Home,
    *,
    environment: Mapping[str, str] = os.environ,
    ready: Callable[[], None] | None = None,
    clock: Clock | None = None,
    grace_seconds: float = TURN_GRACE_SECONDS,
) -> int:
    """Runs the host of a home until SIGTERM, SIGINT or a command stops it; 0, or RESTART where it is to begin again.

    `ready` is called when it serves. Raises HomeRefused, HomeTaken, SettingRefused, MigrationFailed before it serves.
    """
    os.umask(0o077)
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.to_thread(home.prepare)
        await asyncio.to_thread(stack.enter_context, home_lock(home.lock_file))
        host = await assemble(home, environment, clock or SystemClock(), stack)
        stopping = host.stopping
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.request, False)
        async with host.serving(grace_seconds):
            gc.freeze()  # what is there now stays to the end: no collection during a message need look at it again
            gc.enable()
            if ready is not None:
                ready()
            await stopping.requested.wait()
        return RESTART if stopping.restart else 0
