"""The machine of the week: hosts that come and go, a clock that leaps from one thing that is due to the next, and kills
at named points of the host's code."""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from host import delivery
from host.assembly import assemble
from host.home import Home
from host.recovery import leave, recover
from host.runtime.base import Runtime, RuntimeName
from host.serving import Host
from mailboxes import crash
from mailboxes.clock import from_text
from tests.fakes.clock import FakeClock
from tests.fakes.runner_hand import Hand
from tests.fakes.runtime import ScriptedRuntime, ScriptedSandbox
from tests.week.agents import Agents
from tests.week.platform import Platform

DEADLINE = 30.0
QUIET_TURNS = 8
"""So many turns of the loop without work mean that there is none."""

BREATH = 0.001
"""Seconds of real time in which a thread of the host's may be done; else it is looked again."""

LIVE_STEP = timedelta(seconds=65)
"""While sandboxes live the host looks this often; a week has too many seconds."""

HUNG_STEP = timedelta(seconds=4)
"""While one is silent: a later look would count as the host's own delay."""

ENVIRONMENT = {
    "INNKEEPER_RUNTIME": "process",
    "INNKEEPER_MAX_SANDBOXES": "6",
    "INNKEEPER_IDLE_MINUTES": "1",
    "INNKEEPER_TIME_ZONE": "Europe/Berlin",
}


class Killed(BaseException):
    """The host's process is gone; nothing of it may catch this."""


class KillSwitch:
    """Stands in for mailboxes.crash.crash_at: where the process would die, everything is cancelled from outside."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()
        self.hits: list[str] = []
        self.hit = asyncio.Event()
        self.on_hit: Callable[[], None] = lambda: None
        self._armed: list[str] = []
        self._loop = asyncio.get_running_loop()

    def arm(self, point: str) -> None:
        """The host dies where it passes this point next."""
        self._armed.append(point)

    def __call__(self, point: str) -> None:
        self.passed[point] += 1
        if point in self._armed and not self.hit.is_set():
            self._armed.remove(point)
            self.hits.append(point)
            self.on_hit()
            self._loop.call_soon_threadsafe(self.hit.set)
            raise Killed(point)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Every module of the host has imported the function by its name."""
        patch.setattr(crash, "crash_at", self)
        for name, module in list(sys.modules.items()):
            if name.startswith("host.") and hasattr(module, "crash_at"):
                patch.setattr(module, "crash_at", self)


class Threads:
    """Hears when a thread of the host's has done something, so that nobody has to keep asking."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tell = self._loop.call_soon_threadsafe
        self._waiting: asyncio.Future[None] | None = None

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """All of them report by this method of the loop."""
        patch.setattr(self._loop, "call_soon_threadsafe", self._heard)

    def _heard(self, *arguments: Any, **context: Any) -> asyncio.Handle:
        handle = self._tell(*arguments, **context)
        self._tell(self._wake)
        return handle

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def done(self) -> None:
        """Returns when one has, or after BREATH."""
        self._waiting = self._loop.create_future()
        timer = self._loop.call_later(BREATH, self._wake)
        await self._waiting
        timer.cancel()


class Town:
    """`host` is None while none runs."""

    def __init__(self, home: Home, clock: FakeClock, hand: Hand, platform: Platform, agents: Agents) -> None:
        self.home = home
        self.clock = clock
        self.platform = platform
        self.agents = agents
        self.switch = KillSwitch()
        self._threads = Threads()
        self.process = ScriptedRuntime(RuntimeName.PROCESS, hand, clock)
        self.docker = ScriptedRuntime(RuntimeName.DOCKER, hand, clock)
        self.host: Host | None = None
        self.hosts = 0
        self.killed: set[int] = set()
        """The numbers of the hosts that were killed."""
        self.steps = 0
        self._stack = contextlib.AsyncExitStack()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Puts what the week needs into the host's modules."""
        self.switch.install(patch)
        self._threads.install(patch)
        # Nobody sets this clock, so nothing has to look every minute whether somebody did.
        patch.setattr(delivery, "_DEFERRED_CHECK_SECONDS", 86400.0)

    # -- hosts

    async def start(self) -> bool:
        """Starts a host; False where it was killed on its way."""
        assert self.host is None
        self.hosts += 1
        self.platform.host = self.hosts
        self._stack = contextlib.AsyncExitStack()
        host = await assemble(self.home, ENVIRONMENT, self.clock, self._stack)
        runtimes = cast("dict[RuntimeName, Runtime]", host.runtimes)
        runtimes |= {RuntimeName.PROCESS: self.process, RuntimeName.DOCKER: self.docker}
        # What reading costs is real time, which this clock does not know.
        host.postmaster.rest = lambda key: 0.0  # type: ignore[method-assign]
        self.host = host
        self.switch.on_hit = lambda: setattr(host.fleet, "_closing", True)
        return await self.do(self._begin(host))

    async def _begin(self, host: Host) -> None:
        """As Host.serving does it."""
        await recover(host.database, host.postmaster, host.delivery, host.fleet, host.runtimes, host.index)
        await host.finish_moves()
        await host.open_channel(self.platform)
        await host.open_channel(host.agent_mail)
        await host.reception.recover()

    async def do(self, work: Coroutine[Any, Any, object]) -> bool:
        """Has the host do something; False where it died of it."""
        if self.switch.hit.is_set():
            work.close()
            await self.kill()
            return False
        task = asyncio.create_task(work)
        hit = asyncio.create_task(self.switch.hit.wait())
        await asyncio.wait((task, hit), return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE)
        hit.cancel()
        if self.switch.hit.is_set():
            await self.kill()
            return False
        assert task.done(), f"it did not come to an end: {task}"
        await task
        return True

    async def stop(self) -> None:
        """An orderly end."""
        host = self.host
        assert host is not None
        if not await self.do(self._end(host)):
            return
        self.platform.hang_up()
        self.host = None
        await self._stack.aclose()

    async def _end(self, host: Host) -> None:
        await host.reception.close()
        await host.fleet.close(0.0)
        await host.delivery.settle(1.0)
        await leave(host.database, host.index)

    async def kill(self) -> None:
        """The host is gone in the middle of whatever it did; its sandboxes live on."""
        host = self.host
        assert host is not None
        self.killed.add(self.hosts)
        self.host = None
        host.fleet._closing = True
        host.channels.clear()
        self.platform.hang_up()
        engines = {sandbox._listening for sandbox in self.process.sandboxes}
        doomed = asyncio.all_tasks() - engines - {asyncio.current_task()}
        while doomed:
            for task in doomed:
                task.cancel()
            done, doomed = await asyncio.wait(doomed, timeout=1.0)
            await asyncio.gather(*done, return_exceptions=True)
        host.database._riding.clear()
        await self._stack.aclose()
        self.switch.hit.clear()

    def lose_power(self) -> None:
        """The sandboxes die with the machine."""
        for sandbox in self.process.live():
            sandbox.exit(137)

    # -- time

    async def go_to(self, end: datetime) -> None:
        """Lets time pass, from one thing that is due to the next, until then or until the host dies."""
        host = self.host
        await self.settle()
        while self.clock.now() < end and self.host is host:
            await self.clock.advance((min(self._next(), end) - self.clock.now()).total_seconds())
            await self._tick()
            await self.settle()

    def _next(self) -> datetime:
        """When something may be due next; a moment later than that, and later than now."""
        now = self.clock.now()
        times = [now + timedelta(hours=6)]
        if sleepers := [due for due, _, future in self.clock._sleepers if not future.done()]:
            times.append(now + timedelta(seconds=min(sleepers) - self.clock.monotonic()))
        if (wakes := self.agents.wakes()) is not None:
            times.append(wakes)
        if self.host is not None:
            times += [from_text(time) if time else now for time in self.host.sweep._due._times.values()]
            times += [from_text(open_one.expires_at) for open_one in self.host.reception.questions.open()]
            if self.host.fleet.live() or self.host.fleet.queued():
                times.append(now + (HUNG_STEP if self.agents.hangs() else LIVE_STEP))
        return max(min(times), now + timedelta(milliseconds=1))

    async def _tick(self) -> None:
        self.steps += 1
        for sandbox in self.process.live():
            if sandbox.beats and sandbox.connected:
                sandbox._line.ring(b"b") if sandbox._line is not None else None
        host = self.host
        if host is None:
            return

        async def tick() -> None:
            await host.fleet.tick()
            await host.sweep.tick()
            await host.reception.questions.tick()

        await self.do(tick())

    async def settle(self) -> None:
        """Lets the host, the people and the agents do all that they can do at this time."""
        async with asyncio.timeout(DEADLINE):
            while True:
                await self._quiet()
                if self.switch.hit.is_set():
                    await self.kill()
                if self.host is not None and await self._bring():
                    continue
                if not await self.agents.work(self.process.live(), None if self.host is None else self.hosts):
                    return

    async def _bring(self) -> bool:
        brought = [False]

        async def bring() -> None:
            brought[0] = await self.platform.bring()

        await self.do(bring())
        return brought[0]

    async def _quiet(self) -> None:
        quiet = 0
        while quiet < QUIET_TURNS and not self.switch.hit.is_set():
            await (asyncio.sleep(0) if quiet else self._threads.done())
            quiet = quiet + 1 if self.host is None or is_quiet(self.host) else 0

    def sandbox_of(self, session_id: str) -> ScriptedSandbox | None:
        """The live one of a session."""
        return next((one for one in self.process.live() if one.session_id == session_id), None)


def is_quiet(host: Host) -> bool:
    """Whether nothing of a host is on its way: what waits, waits for a time."""
    intake, reception, lives = host.reception.intake, host.reception, host.fleet.live().values()
    writers = intake._writers
    return not (
        host.postmaster._pool._users
        or host.database._draining
        or not all(isinstance(life.sandbox, ScriptedSandbox) and life.sandbox.alive for life in lives)
        or any(life._look.is_set() for life in lives)
        or intake._committer is not None
        or writers._writers.keys() - writers._backing_off
        or any(lane.task and not lane.waiting_for for lane in host.delivery._lanes.values())
        or reception.commands._running
        or reception.errands._running
        or host.sweep._mending
    )
