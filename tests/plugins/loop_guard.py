"""Fails a test in which the host's code blocks the event loop's thread, or computes on it for over 50 ms at a stretch.

A call counts when the thread runs an asyncio callback, the nearest caller of ours is in `host/` (`mailboxes/` counts as
its caller), and that caller is asynchronous itself or was called by the loop: the block is the host's doing. A test
that calls a synchronous function of the host from its own coroutine blocks by its own choice.
"""

import asyncio
import gc
import socket
import sys
import threading
import time
import traceback
from asyncio import events
from collections.abc import Iterator, MutableSequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from pathlib import Path
from types import FrameType
from typing import SupportsIndex

import pytest

_ROOT = Path(__file__).resolve().parents[2]
CPU_SECONDS = 0.050

HOST_FOLDERS: MutableSequence[str] = [f"{_ROOT / 'host'}/"]
"""Whose code may not block. A test of this guard adds its own folder."""

_PASSED_THROUGH = f"{_ROOT / 'mailboxes'}/"
_OURS = f"{_ROOT}/"
_LIBRARIES = f"{_ROOT}/.venv/"

_WATCHED = {
    "fcntl.flock", "glob.glob", "open", "os.chmod", "os.chown", "os.link", "os.listdir", "os.mkdir", "os.remove",
    "os.rename", "os.rmdir", "os.scandir", "os.symlink", "os.system", "os.truncate", "os.utime", "shutil.copyfile",
    "shutil.copytree", "shutil.move", "shutil.rmtree", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname",
    "sqlite3.connect", "subprocess.Popen",
}  # fmt: skip

_ALLOWED_CALLERS = (
    "<frozen importlib",  # an import; one that takes long is found by its CPU time
    "/linecache.py",  # the source lines of a traceback that is being logged
    "/asyncio/base_subprocess.py",  # a child must be spawned from the loop's thread: it dies with that thread
    "/asyncio/unix_events.py",  # the same, and the socket file of a server that starts
    "/asyncio/selector_events.py",  # connects without blocking
)

_LOCK_NB = 4
_violations: list[str] = []
_inside = threading.local()


def take() -> list[str]:
    """What has been found since the last call, as readable text; forgets it."""
    found = _violations.copy()
    _violations.clear()
    return found


def _is_host(filename: str) -> bool:
    return filename.startswith(tuple(HOST_FOLDERS))


def _host_blocks(frame: FrameType | None) -> bool:
    """Walks outwards: libraries and mailboxes are passed through, synchronous host code is followed to its caller."""
    in_host = False
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_ALLOWED_CALLERS[0]) or code.co_filename.endswith(_ALLOWED_CALLERS[1:]):
            return False
        if _is_host(code.co_filename):
            if code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR):
                return True
            in_host = True
        elif code is _HANDLE_RUN:
            return in_host
        elif _is_ours(code.co_filename):
            return False
        frame = frame.f_back
    return False


def _is_ours(filename: str) -> bool:
    return filename.startswith(_OURS) and not filename.startswith((_PASSED_THROUGH, _LIBRARIES, __file__))


def _waits(event: str, arguments: tuple[object, ...]) -> bool:
    """False for the forms of a watched call that return at once."""
    if event == "socket.connect":
        return isinstance(arguments[0], socket.socket) and arguments[0].gettimeout() != 0
    if event == "fcntl.flock":
        return not (isinstance(arguments[1], int) and arguments[1] & _LOCK_NB)
    return True


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if getattr(_inside, "busy", False) or asyncio._get_running_loop() is None:
        return
    _inside.busy = True  # formatting the stack opens files itself
    try:
        frame = sys._getframe(2)
        if _waits(event, arguments) and _host_blocks(frame):
            stack = "".join(traceback.format_stack(frame)[-12:])
            _violations.append(f"{event}{arguments!r:.200} blocks the event loop's thread:\n{stack}")
    finally:
        _inside.busy = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event in _WATCHED:
        _note(event, arguments)


def _guarded_sleep(seconds: float | SupportsIndex, /) -> None:
    _note("time.sleep", (seconds,))
    _REAL_SLEEP(seconds)


def _guarded_run(handle: events.Handle) -> None:
    _inside.collected = 0.0
    before = time.thread_time()
    _REAL_RUN(handle)
    used = time.thread_time() - before - _inside.collected
    if used > CPU_SECONDS and (name := _host_callback(handle)):
        _violations.append(f"{name} used {used * 1000:.0f} ms of CPU on the event loop's thread in one go")


def _host_callback(handle: events.Handle) -> str | None:
    """The name of the host's coroutine or function that this callback ran; None where it is not the host's."""
    callback = handle._callback  # type: ignore[attr-defined]  # private: there is no public way to see it
    owner = getattr(callback, "__self__", None)
    runs = owner.get_coro() if isinstance(owner, asyncio.Task) else callback
    code = getattr(runs, "cr_code", None) or getattr(runs, "__code__", None)
    if code is None or not _is_host(code.co_filename):
        return None
    return f"{code.co_qualname} ({code.co_filename})"


def _time_collections(phase: str, _info: dict[str, int]) -> None:
    """The heap of a test process is the tests', so what a collection costs is not the host's doing."""
    if phase == "start":
        _inside.collection_began = time.thread_time()
    else:
        took = time.thread_time() - getattr(_inside, "collection_began", time.thread_time())
        _inside.collected = getattr(_inside, "collected", 0.0) + took


_REAL_SLEEP = time.sleep
_REAL_RUN = events.Handle._run
_HANDLE_RUN = _REAL_RUN.__code__


def pytest_configure() -> None:
    """Installs the guard for the rest of the process: an audit hook can never be removed."""
    if events.Handle._run is _REAL_RUN:
        sys.addaudithook(_audit)
        time.sleep = _guarded_sleep
        events.Handle._run = _guarded_run  # type: ignore[method-assign, assignment]
        gc.callbacks.append(_time_collections)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """The test that was running when it happened fails, after its fixtures have stopped what they started."""
    yield
    if found := take():
        pytest.fail("\n\n".join(found[:5]), pytrace=False)
