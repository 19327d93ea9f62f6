"""Waits for a host to end, or to come back: what `down` and `restart` share."""

import time
from pathlib import Path

from host.control_client import ControlClient
from host.failure import Code, Failure
from host.home import Home
from host.lock import holder

_STEP = 0.05


def wait_until_gone(home: Home, seconds: float) -> None:
    """Returns when the home's lock is free. Raises Failure after `seconds`."""
    deadline = time.monotonic() + seconds
    while (process := holder(home.lock_file)) is not None:
        if time.monotonic() > deadline:
            raise Failure(
                Code.FAILED,
                f"The host (process {process}) has not stopped within {seconds:g} s: a turn may still be running.",
                "Wait and look with `host status`, or give more time with --timeout.",
            )
        time.sleep(_STEP)


def wait_until_back(socket: Path, before: object, seconds: float) -> None:
    """Returns when a host that began after `before` answers. Raises Failure after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with ControlClient(socket) as client:
                if began(client) != before:
                    return
        except Failure:
            pass  # away, or still starting
        time.sleep(_STEP)
    raise Failure(Code.FAILED, f"The host has not come back within {seconds:g} s.", "See `host logs`.")


def began(client: ControlClient) -> object:
    """When the running host began, as text."""
    status = client.call("status")
    return status.get("host", {}).get("since") if isinstance(status, dict) else None
