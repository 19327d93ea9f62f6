"""The orchestrator: which sessions have a live sandbox, from wake to exit.

One task per live session does everything for it, so nothing here needs a lock. A sandbox that ends is judged at once,
before another one starts for its session. Stops made by the host are no try.
"""

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence

import structlog

from host import backoff
from host.db.sessions import ContainerStatus
from host.exits import Ending, Exits
from host.items import InboundHeld, SessionRef
from host.life import STOP_SECONDS, Ground, Life, Prepared
from host.places import Holder, Waiting, who_has_to_go, who_is_next
from host.postmaster import Postmaster
from host.runtime.base import AlreadyRunning, Exit, Found, Runtime, RuntimeUnavailable, SandboxRefused
from host.setbacks import Setbacks
from host.settings import CurrentSettings
from host.untrusted import JournalActive, TornSnapshot
from mailboxes.clock import Clock
from mailboxes.crash import crash_at
from mailboxes.limits import LIVE_POLL_SECONDS
from mailboxes.rows import Activity

STALL_SECONDS = 5.0
"""A tick that comes so late means that the host itself was held up: no beat could be heard, so none is missed."""

NOTICE_AFTER = 3
"""Failed starts, or sandboxes that came to nothing, in a row before a person hears of it, once."""

END_SECONDS = 25.0
"""How long the host's end waits for its sandboxes': a runtime takes up to 20 s for one."""

MAILBOX_ERRORS = (OSError, sqlite3.Error, InboundHeld)
"""What one session's damaged or missing mailbox can raise; no other session may feel it."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Fleet:
    """See the module. The cap and the idle time are the settings' of the moment."""

    def __init__(self, ground: Ground, postmaster: Postmaster, clock: Clock, settings: CurrentSettings) -> None:
        self._ground = ground
        self._postmaster = postmaster
        self._clock = clock
        self._settings = settings
        self._exits = Exits(postmaster, clock, self._note_damage)
        self._live: dict[SessionRef, Life] = {}
        self._queue: dict[SessionRef, float] = {}  # since when, in order of asking
        self._gave_way: Counter[SessionRef] = Counter()  # stops for others before a turn was done
        self._setbacks = Setbacks(clock, self._has_work, self._released)
        self.incidents: dict[SessionRef, str] = {}
        """The last thing for which a session's sandbox was killed, or its mailbox replaced; it went on since."""
        self._opened = False
        self._closing = False
        self._last_tick: float | None = None
        self._changed = asyncio.Event()

    # -- wake

    def notify(self, key: SessionRef) -> None:
        """A session has something to do: its runner is rung, or a sandbox is started for it."""
        life = self._live.get(key)
        if life is not None and life.stopping is None:
            life.idle_since = self._clock.monotonic()
            life.ring()
        else:
            self.wake(key)

    def ring(self, key: SessionRef) -> bool:
        """Rings a live session's runner, from any thread; False where there is none to ring, and `notify` is due."""
        life = self._live.get(key)
        line = life.line if life is not None and life.stopping is None else None
        if life is None or line is None:
            return False
        life.idle_since = self._clock.monotonic()
        return line.ring()

    def wake(self, key: SessionRef) -> None:
        """Queues a session for a sandbox unless it has one, waits for one, or is held back."""
        if self._closing or key in self._live or self._setbacks.holds(key) or key in self._queue:
            return
        self._queue[key] = self._clock.monotonic()
        self._pump()

    def _pump(self) -> None:
        places = self._settings.value.max_sandboxes
        while self._queue and len(self._live) < places and self._opened and not self._closing:
            key = who_is_next(list(self._queue), Counter(live.agent_group_id for live in self._live), places)
            del self._queue[key]
            self._launch(Life(key, self._ground, self._postmaster, self._clock))

    def _launch(self, life: Life) -> None:
        life.changed = self._changed.set
        self._live[life.key] = life
        life.task = asyncio.create_task(self._run(life), name=f"session {life.key.session_id}")

    def live(self) -> dict[SessionRef, Life]:
        """The sessions that have a sandbox now."""
        return dict(self._live)

    def knows(self, sandbox_id: str, session_id: str) -> bool:
        """Whether a sandbox is a live session's, or may be one that is starting just now."""
        return any(
            life.key.session_id == session_id and (life.sandbox is None or life.sandbox.id == sandbox_id)
            for life in self._live.values()
        )

    def queued(self) -> list[SessionRef]:
        """The sessions that wait for a free place, first come first."""
        return list(self._queue)

    def queued_for(self) -> dict[SessionRef, float]:
        """How many seconds each of them has waited."""
        now = self._clock.monotonic()
        return {key: now - since for key, since in self._queue.items()}

    def again_in(self, key: SessionRef) -> float | None:
        """Seconds until a session that is held back is tried again; None where it is not."""
        return self._setbacks.again_in(key)

    @property
    def problems(self) -> dict[SessionRef, str]:
        """What is wrong now with single sessions, a sentence each."""
        return {**self._setbacks.reasons, **{key: life.problem for key, life in self._live.items() if life.problem}}

    # -- one sandbox, from start to exit

    async def _run(self, life: Life) -> None:
        key = life.key
        try:
            if self._postmaster.is_full(key):
                raise RuntimeUnavailable("Too much of what I said has not been delivered yet.")
            prepared = await self._ground.prepare(key)
            await self._exits.judge(key, prepared)
            known = None if life.adopted else await self._ground.counter(prepared.spec)
            self._ended(life, await life.run(prepared, known))
            await self._judge(life, prepared)
        except AlreadyRunning as error:
            # One that nobody knew: the sweep ends it, and what it had claimed is judged before another one starts.
            self._exits.note(key, Ending("Its sandbox was lost sight of.", counted=False))
            await self._start_failed(key, str(error))
        except SandboxRefused as error:
            await self._refused(key, str(error))
        except (RuntimeUnavailable, OSError) as error:
            await self._start_failed(key, str(error))
        except Exception as error:
            # The outermost edge of one session: whatever broke, the others go on, and this one is tried again later.
            log.exception("a session broke", session=key.session_id)
            await self._start_failed(key, f"{type(error).__name__}: {error}")
        finally:
            await self._leave(life)

    def _ended(self, life: Life, end: Exit) -> None:
        log.info(
            "a sandbox has ended", session=life.key.session_id, code=end.code, stopped=life.stopping, detail=end.detail
        )
        reason = life.fault or end.detail or f"The sandbox ended with code {end.code}."
        if life.fault is not None:
            self.incidents[life.key] = life.fault
        self._exits.note(life.key, Ending(reason, counted=life.stopping is None and end.code != 0))

    def _note_damage(self, key: SessionRef, reason: str) -> None:
        self.incidents[key] = f"its outbound mailbox was damaged and set aside: {reason}."

    async def _judge(self, life: Life, prepared: Prepared) -> None:
        """Judges an exit. A runner that ended without having claimed a thing would be started for ever, were that not
        counted as a try; and whatever else it did, a session that comes to nothing again and again is held back."""
        key, ending = life.key, self._exits.of(life.key)
        known = life.known
        pulled = await self._exits.judge(key, prepared)
        crash_at("after_judge")
        claimed = life.claimed or (pulled is not None and pulled.claims and pulled.counter != known)
        if ending.counted and not claimed:
            await self._postmaster.fail_start(key, ending.reason)
        idle = pulled is not None and pulled.state is not None and pulled.state.state == Activity.IDLE
        if life.finished or (claimed and idle and not life.leaving):
            self._is_well(key)
        if life.stopping is not None:
            return
        if ending.counted:
            self._crashed(key, ending.reason)
        elif await self._has_work(key):
            await self._start_failed(key, "The agent's sandbox ended by itself before it had done its work.")
        else:
            self._hold_back(key, backoff.pause(1))  # it left by itself, which is no try; it must not spin either

    def _crashed(self, key: SessionRef, reason: str) -> None:
        """The messages wait for their next try by themselves, and the chat hears where one fails; but a session whose
        sandbox breaks at whatever comes is not started for each message that comes."""
        crashes = self._setbacks.count(key)
        if crashes == 1:
            return
        self._hold_back(key, backoff.pause(crashes - 1))
        if crashes >= NOTICE_AFTER:
            sentence = f"its sandbox broke {crashes} times in a row: {reason}"
            self._setbacks.reasons[key] = self.incidents[key] = sentence
        if crashes == NOTICE_AFTER:
            log.error("a session breaks its sandbox again and again", session=key.session_id, reason=reason)

    def _is_well(self, key: SessionRef) -> None:
        self._setbacks.forget(key)
        self._gave_way.pop(key, None)

    async def _leave(self, life: Life) -> None:
        key = life.key
        self._postmaster.forget(key)
        del self._live[key]
        self._changed.set()
        try:
            if life.written != ContainerStatus.STOPPED and not self._closing:
                await self._ground.set_status([(key, ContainerStatus.STOPPED)])
            if not self._closing and not self._setbacks.holds(key) and await self._has_work(key):
                self.wake(key)
        finally:
            self._pump()

    async def _has_work(self, key: SessionRef) -> bool:
        """Whether a due message waits in a session or is worked on. One that cannot be asked has none."""
        work = False
        with _unless_damaged(key):
            work = await self._postmaster.has_work(key)
        return work  # noqa: RET504  the block above may have been left early

    async def _refused(self, key: SessionRef, reason: str) -> None:
        """It can never start as things are: what waits fails, and its chats hear why."""
        self._setbacks.reasons[key] = reason
        log.error("a sandbox cannot start", session=key.session_id, reason=reason)
        with _unless_damaged(key):
            await self._postmaster.fail_start(key, f"The sandbox cannot start: {reason}", retryable=False)

    async def _start_failed(self, key: SessionRef, reason: str) -> None:
        """The engine is away: no try is counted, the start is repeated with growing pauses, and the chat hears of it
        once."""
        failures = self._setbacks.count(key)
        self._setbacks.reasons[key] = reason
        pause = backoff.pause(failures)
        log.error("a sandbox did not start", session=key.session_id, reason=reason, failures=failures, again_in=pause)
        self._hold_back(key, pause)
        if failures >= NOTICE_AFTER and self._setbacks.is_news(key):
            with _unless_damaged(key):
                await self._postmaster.tell(
                    key, f"start {self._clock.now():%Y%m%dT%H%M%S}", f"I cannot start now: {reason} I keep trying."
                )

    def _hold_back(self, key: SessionRef, pause: float) -> None:
        if not self._closing:
            self._setbacks.hold_back(key, pause)

    def _released(self, key: SessionRef, work: bool) -> None:
        if work:
            self.wake(key)
        else:
            self._setbacks.reasons.pop(key, None)  # the count stays: a message may wait for its next try

    # -- the clock

    async def run(self) -> None:
        """Ticks for ever."""
        while True:
            await self.tick()
            await self._clock.sleep(LIVE_POLL_SECONDS)

    async def tick(self) -> None:
        """Once a second: looks into every live mailbox, writes what changed of the states, ends what is silent, what
        takes too long and what was idle for long enough: first what was idle for the longest, should others wait."""
        now = self._clock.monotonic()
        stalled = self._last_tick is not None and now - self._last_tick > STALL_SECONDS
        self._last_tick = now
        changed = []
        self._pump()  # there may be more places by a changed setting
        wanted = len(self._queue) - sum(1 for life in self._live.values() if life.leaving)
        for life in sorted(self._live.values(), key=lambda life: life.idle_since):
            if stalled:
                life.stalled()
            life.look()
            if life.sandbox is None or life.stopping is not None:
                continue
            if life.state is not None:
                self._setbacks.reasons.pop(life.key, None)
            if life.finished:
                self._is_well(life.key)
            if not self._queue and not life.busy:
                life.held_since = now
            if life.status != life.written:
                changed.append((life, life.status))
            if life.fault is not None:
                continue
            if life.waits_too_long:
                await self._ask_about_questions(life)
            if reason := life.overdue():
                log.error("a sandbox is killed", session=life.key.session_id, reason=reason)
                life.kill(reason)
            elif self._may_go(life, wanted) and not await self._has_work(life.key) and self._may_go(life, wanted):
                life.stop("idle")
                wanted -= 1
        self._make_room()
        await self._ground.set_status([(life.key, status) for life, status in changed])
        for life, status in changed:
            life.written = status

    def _make_room(self) -> None:
        """Where one has waited for too long, whoever is furthest over its share is stopped, which is no try."""
        lives, now = list(self._live.values()), self._clock.monotonic()
        staying = [life for life in lives if not life.leaving]
        waiting = [Waiting(key, since) for key, since in self._queue.items()][len(lives) - len(staying) :]
        holders = [
            Holder(life.key, life.held_since, self._gave_way[life.key]) for life in staying if life.sandbox is not None
        ]
        held = Counter(life.key.agent_group_id for life in staying)
        key = who_has_to_go(waiting, holders, held, self._settings.value.max_sandboxes, now)
        if key is not None:
            log.info("a session gives way to one that waits", session=key.session_id, waits=waiting[0].key.session_id)
            self._gave_way[key] += 1
            self._live[key].stop("others wait for its place")

    async def _ask_about_questions(self, life: Life) -> None:
        """Asks how long it may wait, when it has waited for longer than a question does by itself."""
        until = await self._ground.questions_until(life.key)
        if until is not None:
            left = (until - self._clock.now()).total_seconds()
            life.wait_until(self._clock.monotonic() + left)

    def _may_go(self, life: Life, wanted: int) -> bool:
        """Idle for long enough, or while others want its place, or in a runtime that is no longer the one to use."""
        assert life.runtime is not None
        if life.waits and not life.waits_too_long:
            return False
        idle = self._clock.monotonic() - life.idle_since
        moves = life.runtime.name != self._ground.preferred()
        return not life.busy and (wanted > 0 or moves or idle > self._settings.value.idle_minutes * 60)

    async def mend(self, key: SessionRef) -> str | None:
        """Postmaster.mend, after the word of a live runner: what it works on, or has done, was not missed. Raises what
        Postmaster.pull raises, and MAILBOX_ERRORS."""
        life = self._live.get(key)
        if life is not None and (life.adopted is not None or life.state is not None):
            await self._postmaster.pull(key, counted=life.stopping is None, known=life.known)
            life.look()
        return await self._postmaster.mend(key)

    # -- stop

    async def stop(self, key: SessionRef, why: str) -> None:
        """Stops a session's sandbox, which is no try; returns when it is gone."""
        life = self._live.get(key)
        if life is not None and life.task is not None:
            life.stop(why)
            await asyncio.wait([life.task])

    async def evict(self, key: SessionRef) -> None:
        """Kills a session's sandbox because it holds what is the host's; that counts as a try."""
        life = self._live.get(key)
        if life is not None and life.sandbox is not None:
            life.fault = "The agent's sandbox held up the host's own file."
            await life.sandbox.kill()

    async def close(self, grace_seconds: float) -> None:
        """Lets running turns finish for a while, then stops every sandbox. Nothing is started any more."""
        self._closing = True
        self._queue.clear()
        await self._setbacks.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while any(life.sandbox and life.busy and life.state for life in self._live.values()):
                    self._changed.clear()
                    await self._changed.wait()
        tasks = {}
        for life in self._live.values():
            assert life.task is not None
            tasks[life.task] = life.key
            if life.sandbox is None:
                life.task.cancel()
            life.stop("the host stops")
        if not tasks:
            return
        ended, lasting = await asyncio.wait(tasks, timeout=END_SECONDS)
        if lasting:  # their engine is away: the next host finds them by what their rows say
            log.error("sandboxes could not be stopped", sessions=[tasks[task].session_id for task in lasting])
            for task in lasting:
                task.cancel()
            await asyncio.wait(lasting)
        await self._ground.set_status([(tasks[task], ContainerStatus.STOPPED) for task in ended])

    # -- after a restart of the host

    async def adopt(
        self, found: Sequence[tuple[SessionRef | None, Runtime, Found]], left: Sequence[SessionRef]
    ) -> None:
        """Takes over sandboxes that an earlier host left: one that was started as it would be today goes on, any other
        is stopped. `left`: sessions that were live by their row; those without a sandbox are judged (no try: the host
        died). Before this nothing is started: what was asked for meanwhile may have a sandbox."""
        kept, gone = set(), set(left)
        removed = []
        for key, runtime, one in found:
            if key is not None and await self._is_todays(key, runtime, one):
                kept.add(key)
                self._queue.pop(key, None)
                self._launch(Life(key, self._ground, self._postmaster, self._clock, one.sandbox))
            else:
                removed.append(_remove(one))
                gone |= {key} if key is not None else set()
        await asyncio.gather(*removed)
        for key in gone - kept:
            await self._judge_left(key)
        self._opened = True
        self._pump()

    async def _is_todays(self, key: SessionRef, runtime: Runtime, one: Found) -> bool:
        try:
            prepared = await self._ground.prepare(key)
        except (SandboxRefused, RuntimeUnavailable) as error:
            log.warning("a running sandbox cannot be adopted", session=key.session_id, reason=str(error))
            return False
        return prepared.runtime.name == runtime.name and runtime.options_hash(prepared.spec) == one.options_hash

    async def _judge_left(self, key: SessionRef) -> None:
        """What cannot be judged now is judged before the session's next sandbox starts."""
        self._exits.note(key, Ending("The host was restarted.", counted=False))
        try:
            await self._exits.judge(key, await self._ground.prepare(key))
        except (RuntimeUnavailable, SandboxRefused, JournalActive, TornSnapshot, *MAILBOX_ERRORS) as error:
            self._setbacks.reasons[key] = str(error)
            log.error("a session could not be looked through at start", session=key.session_id, reason=str(error))  # noqa: TRY400  the sentence says it all
        await self._ground.set_status([(key, ContainerStatus.STOPPED)])


async def _remove(one: Found) -> None:
    log.info("a sandbox of an earlier host is removed", sandbox=one.sandbox.id, session=one.session_id)
    try:
        await one.sandbox.stop(STOP_SECONDS)
    except RuntimeUnavailable as error:  # the sweep tries again, and nothing starts in its place until then
        log.error("a sandbox of an earlier host could not be removed", session=one.session_id, reason=str(error))  # noqa: TRY400


@contextlib.contextmanager
def _unless_damaged(key: SessionRef) -> Iterator[None]:
    try:
        yield
    except MAILBOX_ERRORS as error:
        log.error("a session's mailbox cannot be used", session=key.session_id, reason=str(error))  # noqa: TRY400
