"""The orchestrator: which sessions have a live sandbox, from wake to exit.

One task per live session does everything for it, so nothing here needs a lock. A sandbox that ends is judged at once; a
live one is never judged by its age, only by its beat. Stops made by the host are no try.
"""

import asyncio
import contextlib
import os
import socket
import sqlite3
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from host.db.sessions import ContainerStatus
from host.items import SessionRef
from host.postmaster import Postmaster, Pulled
from host.runtime.base import (
    Exit,
    Found,
    Runtime,
    RuntimeName,
    RuntimeUnavailable,
    Sandbox,
    SandboxRefused,
    SandboxSpec,
)
from host.settings import CurrentSettings
from host.untrusted import BadFile, JournalActive, TornSnapshot
from mailboxes import bell
from mailboxes.clock import Clock
from mailboxes.crash import crash_at
from mailboxes.limits import BEAT_LOST_SECONDS, LIVE_POLL_SECONDS
from mailboxes.rows import Activity, RunnerState

STOP_SECONDS = 5.0
"""Between SIGTERM and SIGKILL: the runner flushes its transcript and releases its claims."""

STALL_SECONDS = 5.0
"""A tick that comes so late means that the host itself was held up: no beat could be heard, so none is missed."""

START_BACK_OFF = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds before a start is tried again while the engine is away."""

NOTICE_AFTER = 3
"""Failed starts in a row before the chat hears of it, once."""

RECOVER_SECONDS = 30.0
JUDGE_TRIES = 3

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
    counter: bytes
    """The change counter of outbound.db now: until it moves the runner has said nothing."""


class Ground(Protocol):
    """What the fleet stands on: folders, settings, the session's row, the broker."""

    async def prepare(self, key: SessionRef) -> Prepared:
        """Makes a session's folders whole and says how to start it. Raises SandboxRefused, RuntimeUnavailable."""
        ...

    async def open_door(self, key: SessionRef, spec: SandboxSpec) -> Door:
        """Opens the session's broker socket."""
        ...

    def preferred(self) -> RuntimeName:
        """The runtime that a session would be started in now."""
        ...

    async def set_status(self, statuses: Sequence[tuple[SessionRef, ContainerStatus]]) -> None:
        """Writes sessions.container_status."""
        ...


@dataclass(slots=True, eq=False)
class Live:
    """A session with a sandbox, or on its way to one."""

    key: SessionRef
    adopted: Sandbox | None = None
    runtime: Runtime | None = None
    sandbox: Sandbox | None = None
    spec: SandboxSpec | None = None
    line: bell.Line | None = None
    look: asyncio.Event = field(default_factory=asyncio.Event)
    known: bytes | None = None
    state: RunnerState | None = None
    stopping: str | None = None
    beat_at: float = 0.0
    idle_since: float = 0.0
    claimed: bool = False
    written: ContainerStatus = ContainerStatus.STOPPED
    task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether its runner said last that it works on a turn, or has not said anything yet."""
        return self.state is None or self.state.state != Activity.IDLE

    @property
    def status(self) -> ContainerStatus:
        """What belongs into the session's row."""
        return ContainerStatus.RUNNING if self.busy else ContainerStatus.IDLE

    def ring(self) -> None:
        """Asks the runner to look."""
        if self.line is not None:
            self.line.ring()


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a sandbox ended whose claims are not judged yet."""

    reason: str
    counted: bool


class Fleet:
    """See the module. The cap and the idle time are the settings' of the moment."""

    def __init__(self, ground: Ground, postmaster: Postmaster, clock: Clock, settings: CurrentSettings) -> None:
        self._ground = ground
        self._postmaster = postmaster
        self._clock = clock
        self._settings = settings
        self._live: dict[SessionRef, Live] = {}
        self._queue: deque[SessionRef] = deque()
        self._failures: dict[SessionRef, int] = {}
        self._held_back: dict[SessionRef, asyncio.Task[None]] = {}
        self._unjudged: dict[SessionRef, _Ending] = {}
        self._closing = False
        self._last_tick: float | None = None
        self._changed = asyncio.Event()
        self.problems: dict[SessionRef, str] = {}

    # -- wake

    def notify(self, key: SessionRef) -> None:
        """A session has something to do: its runner is rung, or a sandbox is started for it."""
        live = self._live.get(key)
        if live is not None and live.stopping is None:
            live.idle_since = self._clock.monotonic()
            live.ring()
        else:
            self.wake(key)

    def wake(self, key: SessionRef) -> None:
        """Queues a session for a sandbox unless it has one, waits for one, or is held back."""
        if self._closing or key in self._live or key in self._held_back or key in self._queue:
            return
        self._queue.append(key)
        self._pump()

    def _pump(self) -> None:
        while self._queue and len(self._live) < self._settings.value.max_sandboxes and not self._closing:
            self._launch(Live(self._queue.popleft()))

    def _launch(self, live: Live) -> None:
        live.idle_since = live.beat_at = self._clock.monotonic()
        self._live[live.key] = live
        live.task = asyncio.create_task(self._run(live), name=f"session {live.key.session_id}")

    def live(self) -> dict[SessionRef, Live]:
        """The sessions that have a sandbox now."""
        return dict(self._live)

    def knows(self, sandbox_id: str, session_id: str) -> bool:
        """Whether a sandbox is a live session's, or may be one that is starting just now."""
        return any(
            live.key.session_id == session_id and (live.sandbox is None or live.sandbox.id == sandbox_id)
            for live in self._live.values()
        )

    def queued(self) -> list[SessionRef]:
        """The sessions that wait for a free place, first come first."""
        return list(self._queue)

    # -- one sandbox, from start to exit

    async def _run(self, live: Live) -> None:
        key = live.key
        try:
            await self._start_and_follow(live)
            self._failures.pop(key, None)
            self.problems.pop(key, None)
        except (RuntimeUnavailable, OSError) as error:
            await self._start_failed(key, str(error))
        except SandboxRefused as error:
            self.problems[key] = str(error)
            log.error("a sandbox cannot start", session=key.session_id, reason=str(error))  # noqa: TRY400  the sentence says it all
            await self._postmaster.fail_start(key, f"The sandbox cannot start: {error}", retryable=False)
        except Exception as error:
            # The outermost edge of one session: whatever broke, the others go on, and this one is tried again later.
            log.exception("a session broke", session=key.session_id)
            await self._start_failed(key, f"{type(error).__name__}: {error}")
        finally:
            await self._leave(live)

    async def _leave(self, live: Live) -> None:
        self._postmaster.forget(live.key)
        del self._live[live.key]
        self._changed.set()
        if live.written != ContainerStatus.STOPPED and not self._closing:
            await self._ground.set_status([(live.key, ContainerStatus.STOPPED)])
        if not self._closing:
            with contextlib.suppress(OSError, sqlite3.Error):  # a session whose folder is gone has no work
                if live.key not in self._held_back and await self._postmaster.has_work(live.key):
                    self.wake(live.key)
            self._pump()

    async def _start_failed(self, key: SessionRef, reason: str) -> None:
        """The engine is away: no try is counted, the start is repeated with growing pauses, and the chat hears of it
        once."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        self.problems[key] = reason
        pause = START_BACK_OFF[min(failures, len(START_BACK_OFF)) - 1]
        log.error("a sandbox did not start", session=key.session_id, reason=reason, failures=failures, again_in=pause)
        if failures == NOTICE_AFTER:
            await self._postmaster.tell(
                key, f"start {self._clock.now():%Y%m%dT%H%M%S}", f"I cannot start now: {reason} I keep trying."
            )
        self._hold_back(key, pause)

    def _hold_back(self, key: SessionRef, pause: float) -> None:
        self._held_back[key] = asyncio.create_task(self._wake_later(key, pause))

    async def _wake_later(self, key: SessionRef, pause: float) -> None:
        await self._clock.sleep(pause)
        del self._held_back[key]
        self.wake(key)

    async def _start_and_follow(self, live: Live) -> None:
        prepared = await self._ground.prepare(live.key)
        if (unjudged := self._unjudged.get(live.key)) is not None:
            await self._judge(live.key, unjudged, prepared.runtime, prepared.spec)
        live.runtime, live.spec = prepared.runtime, prepared.spec
        live.known = None if live.adopted else prepared.counter
        spec = prepared.spec
        group = spec.gid if os.geteuid() == 0 else None
        listener = bell.bind(spec.run / "bell.sock", 0o660 if group else 0o600, group)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(listener.close)
            door = await self._ground.open_door(live.key, spec)
            stack.push_async_callback(door.close)
            await self._ground.set_status([(live.key, ContainerStatus.RUNNING)])
            live.written = ContainerStatus.RUNNING
            crash_at("before_start")
            live.sandbox = live.adopted or await prepared.runtime.start(spec)
            crash_at("after_start")
            self._failures.pop(live.key, None)
            self.problems.pop(live.key, None)
            live.beat_at = live.idle_since = self._clock.monotonic()
            log.info(
                "a sandbox is live",
                session=live.key.session_id,
                runtime=prepared.runtime.name,
                adopted=bool(live.adopted),
            )
            helpers = [
                asyncio.create_task(self._answer_bell(live, listener)),
                asyncio.create_task(self._pull_on_rings(live)),
            ]
            try:
                end = await live.sandbox.wait()
            finally:
                for helper in helpers:
                    helper.cancel()
                await asyncio.gather(*helpers, return_exceptions=True)
                if live.line is not None:
                    live.line.close()
        await self._ended(live, end)

    async def _answer_bell(self, live: Live, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()

        def heard(packet: bytes) -> None:
            live.beat_at = self._clock.monotonic()
            if packet == bell.RING:
                live.look.set()

        while True:
            connection, _ = await loop.sock_accept(listener)
            live.line = bell.Line(connection)
            live.beat_at = self._clock.monotonic()
            live.line.ring()
            live.look.set()
            await live.line.listen(heard)
            live.line.close()
            live.line = None

    async def _pull_on_rings(self, live: Live) -> None:
        while True:
            await live.look.wait()
            live.look.clear()
            if rest := self._postmaster.rest(live.key):
                await self._clock.sleep(rest)
            try:
                await self._pull(live)
            except (TornSnapshot, JournalActive):
                continue  # the next ring or poll sees it whole
            except BadFile as error:
                await self._give_up_mailbox(live, str(error))
                return
            except Exception as error:
                # The edge of one session's reading: the next ring or poll tries again, and nobody else is held up.
                log.exception("a mailbox could not be read", session=live.key.session_id)
                self.problems[live.key] = f"{type(error).__name__}: {error}"

    async def _pull(self, live: Live) -> None:
        pulled = await self._postmaster.pull(live.key, counted=live.stopping is None, known=live.known)
        if pulled is not None:
            self._note(live, pulled)

    def _note(self, live: Live, pulled: Pulled) -> None:
        live.known = pulled.counter
        if pulled.state is not None:
            if live.state is None or pulled.state.beat != live.state.beat:
                live.beat_at = self._clock.monotonic()
            live.state = pulled.state
            live.claimed = live.claimed or pulled.state.turn_id is not None or pulled.state.state == Activity.IDLE
        if live.busy:
            live.idle_since = self._clock.monotonic()
        if pulled.wake:
            live.ring()
        if pulled.more:
            live.known = None
            live.look.set()
        self._changed.set()

    async def _give_up_mailbox(self, live: Live, reason: str) -> None:
        """A mailbox that cannot be believed: its sandbox goes, then a fresh one is made (in `_ended`)."""
        log.error("a session's outbound mailbox is bad", session=live.key.session_id, reason=reason)
        self.problems[live.key] = reason
        if live.sandbox is not None:
            await live.sandbox.kill()

    async def _ended(self, live: Live, end: Exit) -> None:
        key = live.key
        stopped = live.stopping
        reason = end.detail or f"The sandbox ended with code {end.code}."
        log.info("a sandbox has ended", session=key.session_id, code=end.code, stopped=stopped, detail=end.detail)
        counted = stopped is None and end.code != 0
        self._unjudged[key] = _Ending(reason, counted=counted)
        assert live.runtime is not None
        assert live.spec is not None
        pulled = await self._judge(key, self._unjudged[key], live.runtime, live.spec)
        crash_at("after_judge")
        if stopped is None and end.code == 0:
            self._hold_back(key, START_BACK_OFF[0])  # it left by itself, which is no try; it must not spin either
        said_something = live.claimed or (
            pulled is not None and pulled.state is not None and pulled.counter != live.known
        )
        if counted and not said_something:
            await self._postmaster.fail_start(key, reason)

    async def _judge(self, key: SessionRef, ending: "_Ending", runtime: Runtime, spec: SandboxSpec) -> Pulled | None:
        """Reads a mailbox whose runner is gone, to its end, and judges the claims. A journal that the runner left is
        rolled back by a sandbox that does nothing else; a bad file is set aside and replaced.

        Until this has worked no runner may start, because it would drop the claims.
        """
        pulled = None
        for _ in range(JUDGE_TRIES):
            try:
                pulled = await self._postmaster.pull(key, counted=ending.counted, ended=ending.reason)
                while pulled is not None and pulled.more:
                    pulled = await self._postmaster.pull(key, counted=ending.counted, ended=ending.reason)
            except JournalActive:
                await self._roll_back(runtime, spec)
            except TornSnapshot:
                await self._clock.sleep(0.01)
            except BadFile as error:
                await self._postmaster.replace_bad(key, str(error), uid=spec.uid, gid=spec.gid)
                break
            else:
                break
        else:
            reason = "it could not be read after its runner had ended"
            await self._postmaster.replace_bad(key, reason, uid=spec.uid, gid=spec.gid)
        self._unjudged.pop(key, None)
        return pulled

    async def _roll_back(self, runtime: Runtime, spec: SandboxSpec) -> None:
        recover = replace(spec, environment={**spec.environment, "RUNNER_MODE": "recover"})
        sandbox = await runtime.start(recover)
        try:
            async with asyncio.timeout(RECOVER_SECONDS):
                await sandbox.wait()
        except TimeoutError:
            await sandbox.kill()

    # -- the clock

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            await self.tick()
            await self._clock.sleep(LIVE_POLL_SECONDS)

    async def tick(self) -> None:
        """What happens once a second: every live session is looked at (polling is the contract), a lost beat kills, a
        warm sandbox that has nothing to do is stopped, and changed states are written."""
        now = self._clock.monotonic()
        stalled = self._last_tick is not None and now - self._last_tick > STALL_SECONDS
        self._last_tick = now
        changed = []
        for live in list(self._live.values()):
            if stalled:
                live.beat_at = now
            live.look.set()
            if live.sandbox is None or live.stopping is not None:
                continue
            if live.status != live.written:
                live.written = live.status
                changed.append((live.key, live.status))
            if now - live.beat_at > BEAT_LOST_SECONDS:
                log.error("a runner gives no sign of life and is killed", session=live.key.session_id)
                live.beat_at = now
                asyncio.ensure_future(live.sandbox.kill())  # noqa: RUF006  its end is seen by the session's own task
            elif not live.busy and self._may_go(live, now) and not await self._postmaster.has_work(live.key):
                self._stop(live, "idle")
        if changed:
            await self._ground.set_status(changed)

    def _may_go(self, live: Live, now: float) -> bool:
        """Idle for long enough, or idle in a runtime that is no longer the one to use."""
        assert live.runtime is not None
        return (
            now - live.idle_since > self._settings.value.idle_minutes * 60
            or live.runtime.name != self._ground.preferred()
        )

    # -- stop

    def _stop(self, live: Live, why: str) -> None:
        live.stopping = why
        if live.sandbox is not None:
            asyncio.ensure_future(live.sandbox.stop(STOP_SECONDS))  # noqa: RUF006  its end is seen by the session's own task

    async def stop(self, key: SessionRef, why: str) -> None:
        """Stops a session's sandbox, which is no try; returns when it is gone."""
        live = self._live.get(key)
        if live is not None and live.task is not None:
            self._stop(live, why)
            await asyncio.wait([live.task])

    async def evict(self, key: SessionRef) -> None:
        """Kills a session's sandbox because it holds what is the host's; that counts as a try."""
        live = self._live.get(key)
        if live is not None and live.sandbox is not None:
            await live.sandbox.kill()

    async def close(self, grace_seconds: float) -> None:
        """Lets running turns finish for a while, then stops every sandbox. Nothing is started any more."""
        self._closing = True
        self._queue.clear()
        for task in self._held_back.values():
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while any(live.sandbox and live.busy and live.state for live in self._live.values()):
                    self._changed.clear()
                    await self._changed.wait()
        keys = []
        for live in self._live.values():
            keys.append(live.key)
            if live.sandbox is None and live.task is not None:
                live.task.cancel()
            self._stop(live, "the host stops")
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        await self._ground.set_status([(key, ContainerStatus.STOPPED) for key in keys])

    # -- after a restart of the host

    async def adopt(
        self, found: Sequence[tuple[SessionRef | None, Runtime, Found]], left: Sequence[SessionRef]
    ) -> None:
        """Takes over sandboxes that an earlier host left: one that was started as it would be today goes on, any other
        is stopped. `left`: sessions that were live by their row; those without a sandbox are judged (no try: the host
        died)."""
        kept = set()
        for key, runtime, one in found:
            if key is not None and await self._is_todays(key, runtime, one):
                kept.add(key)
                self._launch(Live(key, adopted=one.sandbox))
            else:
                log.info("a sandbox of an earlier host is removed", sandbox=one.sandbox.id, session=one.session_id)
                await one.sandbox.stop(STOP_SECONDS)
        for key in left:
            if key not in kept:
                await self._judge_left(key)

    async def _is_todays(self, key: SessionRef, runtime: Runtime, one: Found) -> bool:
        try:
            prepared = await self._ground.prepare(key)
        except (SandboxRefused, RuntimeUnavailable) as error:
            log.warning("a running sandbox cannot be adopted", session=key.session_id, reason=str(error))
            return False
        return prepared.runtime.name == runtime.name and runtime.options_hash(prepared.spec) == one.options_hash

    async def _judge_left(self, key: SessionRef) -> None:
        try:
            prepared = await self._ground.prepare(key)
            ending = _Ending("The host was restarted.", counted=False)
            await self._judge(key, ending, prepared.runtime, prepared.spec)
            await self._ground.set_status([(key, ContainerStatus.STOPPED)])
        except (RuntimeUnavailable, SandboxRefused, OSError, JournalActive) as error:
            self.problems[key] = str(error)
            log.error("a session could not be looked through at start", session=key.session_id, reason=str(error))  # noqa: TRY400  the sentence says it all
