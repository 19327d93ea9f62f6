"""Runs the host in this process; turns what stops it from starting into a sentence."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable

from host.failure import Code, Failure
from host.home import Home, HomeRefused
from host.lock import HomeTaken
from host.methods import RESTART
from host.settings import SettingRefused


def serve(home: Home, ready: Callable[[], None] | None = None) -> int:
    """Runs until SIGTERM, SIGINT or `host down`; a `host restart` begins again as a new program with today's code.

    Raises Failure when the host refuses to start.
    """
    gc.disable()  # a start makes little garbage and looks at all that it makes again and again; run_host turns it on
    from host.app import run_host
    from host.db.migrate import MigrationFailed

    try:
        code = asyncio.run(run_host(home, environment=os.environ, ready=ready))
    except (HomeRefused, HomeTaken, SettingRefused) as refused:
        raise Failure(Code.REFUSED, str(refused)) from None
    except MigrationFailed as failed:
        raise Failure(Code.FAILED, str(failed)) from None
    if code == RESTART:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  this very program
    return code
