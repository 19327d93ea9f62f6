"""Worker threads for what blocks: a queue, and the loop's own futures.

The standard executor goes through a future of its own for each call, which costs as much as a small write of a mailbox.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

T = TypeVar("T")
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_Job = tuple[Callable[[], object], "asyncio.Future[object] | None"]


class Threads:
    """`count` threads, started with the first call. Calls are taken in order."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """What `work` returns or raises, by a future of the running loop. Cancelling it does not stop the work."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._add(work, future)  # type: ignore[arg-type]  # T and object meet in the future
        return future

    def post(self, work: Callable[[], None]) -> None:
        """Has `work` done and tells nobody; it must raise nothing."""
        self._add(work, None)

    def _add(self, work: Callable[[], object], future: "asyncio.Future[object] | None") -> None:
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._serve, name=f"{self._name} {number}", daemon=True)
                for number in range(self._count)
            ]
            for thread in self._threads:
                thread.start()
        self._jobs.put((work, future))

    def close(self) -> None:
        """Lets the calls that wait finish, and ends the threads. Blocks."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(*job)
            del job  # an idle thread keeps nothing alive


def _do(work: Callable[[], object], future: "asyncio.Future[object] | None") -> None:
    result: object = None
    error: BaseException | None = None
    try:
        result = work()
    except BaseException as raised:  # noqa: BLE001  the edge of the thread: whoever called gets it
        error = raised
    if future is None:
        if error is not None:
            log.error("work of a thread broke", exc_info=error)
        return
    try:
        future.get_loop().call_soon_threadsafe(_settle, future, result, error)
    except RuntimeError:
        log.warning("the loop closed before a result reached it")


def _settle(future: "asyncio.Future[object]", result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
