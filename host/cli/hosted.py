"""A host for as long as one talks: `host chat` runs it as a child when none runs on its home.

The child leads a session of its own, so Ctrl-C reaches the chat alone; its standard input is the chat's life line: end
of file there (the chat ended, or was killed) stops it as SIGTERM does. It says one line on standard output: ``{}`` when
it is ready, or the error.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from host.failure import Code, Failure
from host.home import Home, find_home

STOP_SECONDS = 60.0
"""Running turns finish first; a host that has not stopped by then is killed, and the next one cleans up after it."""

# The package's folder goes to the end of the path, for a tree that is not installed; -P keeps the current folder off
# it.
_BOOT = "import sys; sys.path.append(sys.argv[1]); from host.cli.hosted import main; main(sys.argv[2])"


@contextlib.contextmanager
def hosted(home: Home, waiting: Callable[[str], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Runs a host until the end of the block. `waiting` shows that something goes on. Raises Failure when it cannot
    start."""
    package = str(Path(__file__).resolve().parents[2])
    home.prepare()
    with (home.logs / "host.stderr").open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, package, str(home.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    assert child.stdin is not None and child.stdout is not None  # noqa: PT018  both are pipes
    try:
        with waiting("Starting the host"):
            said = child.stdout.readline()
        _check(said, home)
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()
        with waiting("Stopping the host"):
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        child.stdout.close()


def _check(said: bytes, home: Home) -> None:
    try:
        answer = json.loads(said)
    except ValueError:
        raise Failure(
            Code.FAILED, "The host ended before it was ready.", f"See {home.logs / 'host.stderr'} and `host logs`."
        ) from None
    if answer:
        raise Failure.from_json(answer)


def main(root: str) -> None:
    """The child."""
    from host.cli.serving import serve

    def say(answer: dict[str, str]) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(answer), flush=True)

    threading.Thread(target=_stop_at_end_of_input, name="life line", daemon=True).start()
    try:
        sys.exit(serve(find_home(root, os.environ), ready=lambda: say({})))
    except Failure as failure:
        say(failure.to_json())
        sys.exit(1)


def _stop_at_end_of_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
