"""A runtime whose sandboxes start, work and end as the test says; their mailboxes are real."""

import asyncio
from collections import deque
from dataclasses import replace

from host.runtime.base import AlreadyRunning, Exit, Found, Probe, RuntimeName, RuntimeUnavailable, SandboxSpec
from host.runtime.cage import check, digest
from mailboxes import bell
from mailboxes.clock import Clock, to_text
from mailboxes.layout import BELL_SOCKET
from tests.fakes.runner_hand import Hand


class ScriptedSandbox:
    """Implements host.runtime.base.Sandbox. The test is its runner."""

    def __init__(self, runtime: "ScriptedRuntime", number: int, spec: SandboxSpec) -> None:
        self.id = f"{runtime.name}-{number}"
        self.session_id = spec.session_id
        self.spec = spec
        self.options = runtime.options_hash(spec)
        self.signals: list[str] = []
        self.unstoppable = 0
        """So many of the next stops and kills fail."""
        self.beats = True
        self.rings = 0
        self._begun = False
        self._runtime = runtime
        self._line: bell.Line | None = None
        self._listening: asyncio.Task[None] | None = None
        self._end: Exit | None = None
        self._ended = asyncio.Event()

    @property
    def alive(self) -> bool:
        return self._end is None

    @property
    def connected(self) -> bool:
        """Whether it has taken up the bell."""
        return self._line is not None

    # -- what the host does to it

    async def wait(self) -> Exit:
        await self._ended.wait()
        assert self._end is not None
        return self._end

    async def stop(self, grace_seconds: float) -> None:
        self._signal("stop", 143)

    async def kill(self) -> None:
        self._signal("kill", 137)

    def _signal(self, name: str, code: int) -> None:
        self.signals.append(name)
        if self.unstoppable:
            self.unstoppable -= 1
            raise RuntimeUnavailable("The engine did not do it.")
        self.exit(code)

    # -- what its runner does

    def exit(self, code: int | None, detail: str = "") -> None:
        """Ends it, however its runner is."""
        if self._end is None:
            self._do("close")
            self._hang_up()
            self._end = Exit(code, detail)
            self._ended.set()

    async def connect(self) -> None:
        """Takes up the bell, of the next host where there was one before."""
        self._hang_up()
        self._line = await bell.connect(self.spec.run / BELL_SOCKET)

        def heard(_: bytes) -> None:
            self.rings += 1

        self._listening = asyncio.create_task(self._line.listen(heard))

    def _hang_up(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
        if self._line is not None:
            self._line.close()

    def beat(self) -> None:
        """Gives the sign of life, over the bell or without one in its file."""
        if self._line is not None:
            self._line.ring(bell.BEAT)
        elif self._begun:
            self._do("write", sql="UPDATE runner_state SET beat = beat + 1")

    def ring(self) -> None:
        if self._line is not None:
            self._line.ring()

    def recover(self) -> None:
        """A runner's first word: it is there and idle."""
        self._do("recover")
        self._begun = True
        # SQLite writes nothing where nothing changes, and the host would not see that this runner is there.
        self._do("write", sql="UPDATE runner_state SET beat = beat + 1")
        self.ring()

    def claim(self, turn: str = "t-1") -> list[str]:
        """Claims what is due; the ids."""
        claimed: list[str] = self._do("claim", turn=turn, now=self._now())
        self.ring()
        return claimed

    def say(self, text: str, turn: str = "t-1") -> None:
        """Says something in the open turn."""
        self._do("say", text=text, turn=turn, now=self._now())
        self.ring()

    def answer(self, text: str, turn: str = "t-1") -> None:
        """Ends the open turn with an answer."""
        self._do("answer", text=text, turn=turn, now=self._now())
        self.ring()

    def release(self, reason: str, *, retryable: bool = True) -> None:
        self._do("release", reason=reason, retryable=retryable)
        self.ring()

    def write(self, sql: str) -> None:
        self._do("write", sql=sql)
        self.ring()

    def hold_inbound(self) -> None:
        self._do("hold_inbound")

    def die_in_a_commit(self) -> None:
        self._do("die_in_a_commit")
        self.exit(137)

    def _do(self, what: str, **arguments: object) -> list[str]:
        answer: list[str] = self._runtime.hand.do(what, self.spec, **arguments)
        return answer

    def _now(self) -> str:
        return to_text(self._runtime.clock.now())


class ScriptedRuntime:
    """Implements host.runtime.base.Runtime. It outlives hosts, as an engine does."""

    sandboxed = True

    def __init__(self, name: RuntimeName, hand: Hand, clock: Clock) -> None:
        self.name = name
        self.hand = hand
        self.clock = clock
        self.image = "today's"
        self.away: Exception | None = None
        """Raised by every call while it is set."""
        self.failures: deque[Exception] = deque()
        """Raised by the next starts."""
        self.gate = asyncio.Event()
        """Starts wait for it."""
        self.gate.set()
        self.asked = 0
        self.sandboxes: list[ScriptedSandbox] = []
        self.recovered: list[str] = []
        self.most_at_once = 0

    def live(self) -> list[ScriptedSandbox]:
        return [sandbox for sandbox in self.sandboxes if sandbox.alive]

    def of(self, session_id: str) -> ScriptedSandbox:
        """A session's latest sandbox."""
        return next(sandbox for sandbox in reversed(self.sandboxes) if sandbox.session_id == session_id)

    async def probe(self) -> Probe:
        return Probe(self.away is None, () if self.away is None else (str(self.away),))

    def options_hash(self, spec: SandboxSpec) -> str:
        return digest([self.image, replace(spec, environment={}), dict(spec.environment)])

    async def start(self, spec: SandboxSpec) -> ScriptedSandbox:
        self.asked += 1
        await self.gate.wait()
        if self.away is not None:
            raise self.away
        if self.failures:
            raise self.failures.popleft()
        check(spec)
        if any(sandbox.session_id == spec.session_id for sandbox in self.live()):
            raise AlreadyRunning(f"The sandbox of {spec.session_id} lives already.")
        return self.run(spec)

    def run(self, spec: SandboxSpec) -> ScriptedSandbox:
        """One that runs now, whoever asked for it."""
        sandbox = ScriptedSandbox(self, len(self.sandboxes), spec)
        if spec.environment.get("RUNNER_MODE") == "recover":
            self.recovered.append(spec.session_id)
            self.hand.do("roll_back", spec)
            sandbox.exit(0)
            return sandbox
        self.sandboxes.append(sandbox)
        self.most_at_once = max(self.most_at_once, len(self.live()))
        return sandbox

    async def find_ours(self) -> list[Found]:
        if self.away is not None:
            raise self.away
        return [Found(one, one.session_id, one.options) for one in self.live()]

    async def close(self) -> None:
        """Sandboxes run on."""
