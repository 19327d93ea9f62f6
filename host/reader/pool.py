"""A pool of worker processes that take hostile images apart, behind one blocking call.

An image is bad when the worker says so, or when two workers in a row died or hung on it: one alone may have been the
victim of something else (the kernel's memory killer), and a file that is called bad is given up.
"""

import json
import os
import queue
import select
import socket
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

from host.reader.values import READY, REPLY, REQUEST, BadRow, Snapshot
from host.untrusted import KEPT_VARIABLES, BadFile
from mailboxes.rows import Address, Claim, MessageOut, RunnerState

ANSWER_SECONDS = 0.1
"""How long a worker may work on one image before it is killed. What counts is the worker's processor time, so that a
machine under load makes no honest file a bad one."""

STALL_SECONDS = 2.0
"""The same for a worker that does not even run."""

START_SECONDS = 30.0
"""A first start on a loaded machine reads the interpreter from the disk."""

_ADDRESS = [field.name for field in fields(MessageOut)].index("address")
_MAX_REPLY_BYTES = 16 * 1024 * 1024
_WORKER = Path(__file__).with_name("worker.py")


class ReaderUnavailable(Exception):
    """No worker process starts here, or the pool is closed: the machine's or the install's fault, not the file's."""


class _WorkerFailed(Exception):
    """It died or hung."""


class _Worker:
    """One process and our end of its socket. Used by one thread at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", str(_WORKER)],
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        self._socket = ours
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._ready = False

    def await_ready(self) -> None:
        """Returns when it has confined itself. Raises ReaderUnavailable."""
        if self._ready:
            return
        self._socket.settimeout(START_SECONDS)
        try:
            self._ready = self._socket.recv(1) == READY
        except OSError:
            self._ready = False
        if not self._ready:
            self.kill()
            raise ReaderUnavailable(
                f"The reader's worker did not start (exit {self.process.returncode}). "
                f"Try it: {sys.executable} -I {_WORKER} </dev/null"
            )

    def processor_seconds(self) -> float:
        """What the process has used since it started; infinite when it is gone."""
        try:
            return time.clock_gettime((~self.process.pid << 3) | 2)  # clock_getcpuclockid(3) of Linux
        except OSError:
            return float("inf")

    def ask(self, image: bytes, after_seq: int) -> bytes:
        """The reply's JSON. Raises _WorkerFailed."""
        self._socket.settimeout(STALL_SECONDS)
        try:
            self._socket.sendall(REQUEST.pack(after_seq, len(image)) + image)
            self._await_reply()
            (length,) = REPLY.unpack(self._receive(REPLY.size))
            if length > _MAX_REPLY_BYTES:
                raise _WorkerFailed("the reader's reply is too long")
            return self._receive(length)
        except OSError as error:
            raise _WorkerFailed(f"the reader's worker is gone ({type(error).__name__})") from error

    def _await_reply(self) -> None:
        used, ends = self.processor_seconds(), time.monotonic() + STALL_SECONDS
        while not self._poll.poll(ANSWER_SECONDS * 1000):
            if self.processor_seconds() - used >= ANSWER_SECONDS or time.monotonic() >= ends:
                raise _WorkerFailed(f"the reader did not finish within {ANSWER_SECONDS} s")

    def _receive(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                raise _WorkerFailed("the reader's worker died")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def kill(self) -> None:
        """Ends it for good."""
        self._socket.close()
        self.process.kill()
        self.process.wait()


class Reader:
    """`workers` processes. Thread-safe and blocking: call `read` from worker threads, never from the event loop."""

    def __init__(self, workers: int = 2) -> None:
        # Last in, first out: under little load one warm worker serves all. None is a worker yet to be started.
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._count = workers
        self._closed = True

    def start(self) -> Self:
        """Starts all workers and waits until they are ready. Raises ReaderUnavailable."""
        started = [_Worker() for _ in range(self._count)]
        try:
            for worker in started:
                worker.await_ready()
        except ReaderUnavailable:
            for worker in started:
                worker.kill()
            raise
        self._idle = queue.LifoQueue()
        for worker in started:
            self._idle.put(worker)
        self._closed = False
        return self

    def close(self) -> None:
        """Lets the reads that run end, and kills the workers. Later reads raise ReaderUnavailable."""
        if self._closed:
            return
        self._closed = True
        for _ in range(self._count):
            worker = self._idle.get()
            if worker is not None:
                worker.kill()
        for _ in range(self._count):
            self._idle.put(None)  # whoever still waits wakes up and finds the pool closed

    def __enter__(self) -> Self:
        """Starts."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Closes."""
        self.close()

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that are idle now."""
        with self._idle.mutex:
            return [worker.process.pid for worker in self._idle.queue if worker is not None]

    def read(self, image: bytes, after_seq: int) -> Snapshot:
        """What `image` holds beyond `after_seq`. Raises BadFile, and ReaderUnavailable when no worker can be had."""
        self._refuse_closed()
        worker = self._idle.get()
        try:
            try:
                self._refuse_closed()  # it may have been closed while we waited
                worker = self._ready(worker)
                return _charged(worker, image, after_seq)
            except _WorkerFailed:
                worker = self._replacement(worker)
                worker.await_ready()
            try:
                return _charged(worker, image, after_seq)
            except _WorkerFailed as error:
                worker = self._replacement(worker)  # not waited for: whoever comes next finds it started
                raise BadFile(str(error)) from error
        finally:
            self._idle.put(worker if worker is not None and worker.process.returncode is None else None)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise ReaderUnavailable("The reader is closed.")

    def _ready(self, worker: _Worker | None) -> _Worker:
        if worker is None:
            worker = _Worker()
        worker.await_ready()
        return worker

    def _replacement(self, worker: _Worker | None) -> _Worker:
        if worker is not None:
            worker.kill()
        return _Worker()


def _charged(worker: _Worker, image: bytes, after_seq: int) -> Snapshot:
    """One read with what it cost: the worker's processor time and this thread's."""
    theirs, ours = worker.processor_seconds(), time.thread_time()
    try:
        snapshot = _parse(json.loads(worker.ask(image, after_seq)))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _WorkerFailed("the reader's reply makes no sense") from error
    spent = worker.processor_seconds() - theirs + time.thread_time() - ours
    return replace(snapshot, spent_seconds=min(spent, STALL_SECONDS))


def _parse(reply: dict[str, Any]) -> Snapshot:
    if "refused" in reply:
        raise BadFile(reply["refused"])
    return Snapshot(
        rows=tuple(_message_out(row) for row in reply["rows"]),
        claims=tuple(Claim(*row) for row in reply["claims"]),
        state=RunnerState(*reply["state"]) if reply["state"] else None,
        bad_rows=tuple(BadRow(*row) for row in reply["bad"]),
        more=reply["more"],
        spent_seconds=0.0,
    )


def _message_out(row: list[Any]) -> MessageOut:
    address = row[_ADDRESS]
    row[_ADDRESS] = Address(*address) if address else None
    return MessageOut(*row)
