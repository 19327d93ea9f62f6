"""The life of one sandbox: started or found, heard over its bell, read, ended. The fleet says when.

A live sandbox is never judged by its age, only by its beat and by how long one turn takes.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from host.db.sessions import ContainerStatus
from host.items import SessionRef
from host.postmaster import Postmaster, Pulled
from host.runtime.base import Exit, Runtime, RuntimeName, RuntimeUnavailable, Sandbox, SandboxSpec
from host.untrusted import BadFile, JournalActive, TornSnapshot
from mailboxes import bell
from mailboxes.clock import Clock
from mailboxes.crash import crash_at
from mailboxes.layout import BELL_SOCKET
from mailboxes.limits import BEAT_LOST_SECONDS
from mailboxes.rows import Activity, RunnerState

STOP_SECONDS = 5.0
"""Between SIGTERM and SIGKILL: the runner flushes its transcript and releases its claims."""

QUESTION_SECONDS = 300.0
"""How long a question waits where nothing is known of it."""

MAX_QUESTION_SECONDS = 24 * 3600.0
"""How long a sandbox may wait for answers, whatever its questions say."""

ANSWER_GRACE_SECONDS = 60.0
"""Between the end of its questions and its own, for a runner that has yet to hear that nobody answered."""

AGAIN_SECONDS = 10.0
"""Until a sandbox that could not be ended is tried again; meanwhile no other is started for its session."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Door(Protocol):
    """A session's way to the broker."""

    async def close(self) -> None:
        """Shuts it."""
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that is needed to start a session's sandbox; its folders are there."""

    runtime: Runtime
    spec: SandboxSpec
    turn_seconds: float
    """The longest turn."""


class Ground(Protocol):
    """What a sandbox stands on: folders, settings, the session's row, the broker."""

    async def prepare(self, key: SessionRef) -> Prepared:
        """Makes a session's folders whole and says how to start it. Raises SandboxRefused, RuntimeUnavailable."""
        ...

    async def counter(self, spec: SandboxSpec) -> bytes:
        """The change counter of outbound.db, which has no runner and is judged: until it moves the next runner has said
        nothing. Raises RuntimeUnavailable."""
        ...

    async def open_door(self, key: SessionRef, spec: SandboxSpec) -> Door:
        """Opens the session's broker socket."""
        ...

    def preferred(self) -> RuntimeName:
        """The runtime that a session would be started in now."""
        ...

    async def questions_until(self, key: SessionRef) -> datetime | None:
        """When the last open question of a session ends; None where none is open."""
        ...

    async def set_status(self, statuses: Sequence[tuple[SessionRef, ContainerStatus]]) -> None:
        """Writes sessions.container_status."""
        ...


class Life:
    """A session's sandbox, or one on its way. All of it happens in the task that runs `run`, and in that one's
    helpers."""

    def __init__(
        self, key: SessionRef, ground: Ground, postmaster: Postmaster, clock: Clock, adopted: Sandbox | None = None
    ) -> None:
        self.key = key
        self.sandbox: Sandbox | None = None
        self.runtime: Runtime | None = None
        self.line: bell.Line | None = None
        self.state: RunnerState | None = None
        self.known: bytes | None = None
        self.claimed = False
        """It has got as far as a claim."""
        self.finished = False
        """A turn of its has come to an end."""
        self.stopping: str | None = None
        """Why the host ends it, which is no try."""
        self.fault: str | None = None
        """Why the host kills it, which is one."""
        self.problem: str | None = None
        self.written = ContainerStatus.STOPPED
        self.task: asyncio.Task[None] | None = None
        self.changed: Callable[[], None] = lambda: None
        self.beat_at = self.idle_since = self.turn_since = self.held_since = clock.monotonic()
        """`held_since`: since when it has kept others from its place; while it is idle and none wait it does not."""
        self.waits_since = self.waits_until = self.beat_at
        """From when, and until when at most, its open questions wait."""
        self._ground = ground
        self._postmaster = postmaster
        self._clock = clock
        self.adopted = adopted
        self._turn_seconds = 0.0
        self._look = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether its runner said last that it works on a turn, or has not said anything yet."""
        return self.state is None or self.state.state != Activity.IDLE

    @property
    def leaving(self) -> bool:
        """Whether it is being ended."""
        return self.stopping is not None or self.fault is not None

    @property
    def waits(self) -> bool:
        """Whether its runner says that a question is open."""
        return self.state is not None and (self.state.state == Activity.WAITING or self.state.open_questions > 0)

    @property
    def waits_too_long(self) -> bool:
        """Whether its questions have ended, as far as is known here."""
        return self.waits and self._clock.monotonic() >= self.waits_until

    def wait_until(self, end: float) -> None:
        """Its questions end then, on the monotonic clock; a runner waits for a day at most, whatever it asks."""
        self.waits_until = min(end, self.waits_since + MAX_QUESTION_SECONDS)

    @property
    def status(self) -> ContainerStatus:
        """What belongs into the session's row."""
        return ContainerStatus.RUNNING if self.busy else ContainerStatus.IDLE

    def ring(self) -> None:
        """Asks the runner to look."""
        if self.line is not None:
            self.line.ring()

    def look(self) -> None:
        """Has the mailbox read soon."""
        self._look.set()

    def stalled(self) -> None:
        """The host itself was held up: no beat could be heard, so none is missed, and no turn grew longer by it."""
        self.beat_at = self.turn_since = self._clock.monotonic()

    def overdue(self) -> str | None:
        """Why it has to be killed now, as a sentence."""
        now = self._clock.monotonic()
        if now - self.beat_at > BEAT_LOST_SECONDS:
            return f"The agent gave no sign of life for {BEAT_LOST_SECONDS:g} seconds."
        waiting = self.state is not None and self.state.state == Activity.WAITING
        if waiting and now > self.waits_until + ANSWER_GRACE_SECONDS:
            return "The agent waited for an answer longer than its question does."
        # One that never says a thing beats on as well.
        at_work = self.state is None or self.state.state == Activity.BUSY
        if at_work and now - self.turn_since > self._turn_seconds:
            return f"The turn took longer than {self._turn_seconds / 60:g} minutes."
        return None

    # -- from start to exit

    async def run(self, prepared: Prepared, known: bytes | None) -> Exit:
        """Starts it, or takes it over, and returns when it has ended. `known`: outbound.db's change counter as it was
        before. Raises what `Runtime.start` raises, OSError."""
        spec = prepared.spec
        self.runtime, self._turn_seconds, self.known = prepared.runtime, prepared.turn_seconds, known
        group = spec.gid if os.geteuid() == 0 else None
        listener = await asyncio.to_thread(bell.bind, spec.run / BELL_SOCKET, 0o660 if group else 0o600, group)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(listener.close)
            door = await self._ground.open_door(self.key, spec)
            stack.push_async_callback(door.close)
            await self._ground.set_status([(self.key, ContainerStatus.RUNNING)])
            self.written = ContainerStatus.RUNNING
            crash_at("before_start")
            self.sandbox = self.adopted or await prepared.runtime.start(spec)
            crash_at("after_start")
            self.beat_at = self.idle_since = self.turn_since = self.held_since = self._clock.monotonic()
            log.info(
                "a sandbox is live",
                session=self.key.session_id,
                runtime=prepared.runtime.name,
                adopted=bool(self.adopted),
            )
            if self.stopping is not None:  # asked for while it was on its way
                self.stop(self.stopping)
            return await self._follow(self.sandbox, listener)

    async def _follow(self, sandbox: Sandbox, listener: socket.socket) -> Exit:
        helpers = [asyncio.create_task(self._answer_bell(listener)), asyncio.create_task(self._pull_on_rings())]
        try:
            return await sandbox.wait()
        finally:
            if self._ending is not None:
                helpers.append(self._ending)
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if self.line is not None:
                self.line.close()

    async def _answer_bell(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()

        def heard(packet: bytes) -> None:
            self.beat_at = self._clock.monotonic()
            if packet == bell.RING:
                self.look()

        while True:
            connection, _ = await loop.sock_accept(listener)
            self.line = bell.Line(connection)
            self.beat_at = self._clock.monotonic()
            self.line.ring()
            self.look()
            await self.line.listen(heard)
            self.line.close()
            self.line = None
            await self._clock.sleep(bell.WINDOW_SECONDS)  # ringing by ever new connections costs the ringer alone, too

    async def _pull_on_rings(self) -> None:
        while True:
            await self._look.wait()
            self._look.clear()
            if rest := self._postmaster.rest(self.key):
                await self._clock.sleep(rest)
            try:
                pulled = await self._postmaster.pull(self.key, counted=self.stopping is None, known=self.known)
            except (TornSnapshot, JournalActive):
                continue  # the next ring or poll sees it whole
            except BadFile as error:
                # It cannot be believed: it goes, and a fresh one is made, and told of, when its exit is judged.
                self.kill(f"The agent's sandbox spoiled its mailbox: {error}.")
                return
            except Exception as error:
                # The edge of one session's reading: the next ring or poll tries again, and nobody else is held up.
                log.exception("a mailbox could not be read", session=self.key.session_id)
                self.problem = f"{type(error).__name__}: {error}"
                continue
            if self._ending is None:
                self.problem = None
            if pulled is not None:
                self._note(pulled)

    def _note(self, pulled: Pulled) -> None:
        now = self._clock.monotonic()
        self.known = pulled.counter
        self.claimed = self.claimed or pulled.claims
        if pulled.state is None and self.state is not None:
            # No runner takes its state back: it still writes into the folder that was there before.
            self.kill("The session's folder was replaced while its sandbox ran.")
        if pulled.state is not None:
            if self.state is None or pulled.state.beat != self.state.beat:
                self.beat_at = now
            if self.state is None or (pulled.state.state, pulled.state.turn_id) != (
                self.state.state,
                self.state.turn_id,
            ):
                self.turn_since = now
            waited = self.waits
            self.state = pulled.state
            if self.waits and not waited:
                self.waits_since, self.waits_until = now, now + QUESTION_SECONDS
            # A runner that is told to stop gives its claims back and says that it is idle: that is no end of a turn.
            idle = self.state.state == Activity.IDLE and not self.leaving
            self.finished = self.finished or (self.claimed and idle)
        if self.busy:
            self.idle_since = now
        if pulled.wake:
            self.ring()
        if pulled.more:
            self.known = None
            self.look()
        self.changed()

    # -- its end

    def stop(self, why: str) -> None:
        """Has it end in good order, which is no try."""
        self.stopping = self.stopping or why
        self._end(lambda sandbox: sandbox.stop(STOP_SECONDS))

    def kill(self, why: str) -> None:
        """Ends it for what it does, which counts as a try."""
        self.fault = self.fault or why
        self._end(lambda sandbox: sandbox.kill())

    def _end(self, way: Callable[[Sandbox], Awaitable[None]]) -> None:
        if self.sandbox is not None and (self._ending is None or self._ending.done()):
            self._ending = asyncio.create_task(self._end_for_sure(self.sandbox, way))

    async def _end_for_sure(self, sandbox: Sandbox, way: Callable[[Sandbox], Awaitable[None]]) -> None:
        """Goes on until it is gone: the engine may be away, or fail to do it."""
        while True:
            try:
                await way(sandbox)
                return
            except RuntimeUnavailable as error:
                self.problem = f"its sandbox could not be ended: {error}"
                log.error("a sandbox could not be ended", session=self.key.session_id, reason=str(error))  # noqa: TRY400
            await self._clock.sleep(AGAIN_SECONDS)
