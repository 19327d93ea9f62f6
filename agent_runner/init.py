"""The init of a container: process 1 keeps the runner as its child and reaps what the agent's commands leave behind.

Not every engine brings an init of its own. And the runner cannot be it: whoever waits for just any child takes from
asyncio the exit codes of those that it has started.
"""

import os
import signal
from collections.abc import Callable

_PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def run(main: Callable[[], int]) -> int:
    """Runs `main` in a child, to which it passes on SIGTERM and SIGINT; returns twice, as a fork does.

    In the child: what `main` returns. Here: the child's exit code, 128 + N where signal N killed it; process 1 then
    exits with that, and the kernel kills whatever else is left.
    """
    # Blocked, so that none is lost between two waits; process 1 would be deaf to those that it has no handler for.
    awaited = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return main()
    # Reaped before the first wait as well: what ended before the signals were blocked has told nobody.
    while (code := _reap(child)) is None:
        number = signal.sigwait(awaited)
        if number != signal.SIGCHLD:
            os.kill(child, number)
    return code


def _reap(child: int) -> int | None:
    """Reaps all that have ended by now; the exit code of `child` where it is one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if pid == 0:
            return None
