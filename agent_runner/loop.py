"""The runner's one loop: claim a batch, run a turn on it, commit answers and completion together, look again.

The bell and the poll both end in `_wake`; only this task writes the mailbox. A row is claimed in the same step in
which the provider takes it, with nothing awaited in between, so a claimed row is always in a turn and a row in a turn
is always claimed.
"""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from agent_runner import scripts
from agent_runner.batching import Batch, chat_text, starts_turn, waits_its_turn
from agent_runner.desk import Desk
from agent_runner.formatting import Context, Malformed, format_rows
from agent_runner.heartbeat import Heartbeat
from agent_runner.log import log
from agent_runner.mailbox import Mailbox, Outgoing, Output
from agent_runner.prompt import system_prompt
from agent_runner.providers.base import Failure, Progress, Provider, Query, Result, TurnInput
from agent_runner.running import CLOSE_SECONDS, Running, Stopped, provider_failure, within
from agent_runner.transcript import Transcript, Transcripts
from agent_runner.turn import Part, Turn
from mailboxes import bell
from mailboxes.clock import Clock
from mailboxes.commands import CommandClass, command_of
from mailboxes.crash import crash_at
from mailboxes.ids import new_id
from mailboxes.layout import BELL_SOCKET, Workspace
from mailboxes.limits import BEAT_SECONDS, LIVE_POLL_SECONDS
from mailboxes.rows import InStatus
from mailboxes.schema import HostAway

if TYPE_CHECKING:
    from agent_runner.tools.registry import Toolbox

_STOPPED = Failure("stopped", retryable=True)
_CANCELLED = Failure("It was stopped.", retryable=True)
"""The host closed the messages already; what only rode along with them waits for the next turn."""

_NO_VERDICTS: Mapping[str, scripts.Verdict] = MappingProxyType({})

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a runner works with. `load_provider` and `load_toolbox` import what they make, at the first turn.
    `run_scripts`: whether tasks' own scripts may run, which is so where there are tools."""

    workspace: Workspace
    model: str
    assistant_name: str
    zone: Callable[[], tzinfo]
    load_provider: Callable[[], Provider]
    load_toolbox: Callable[[Desk], "Toolbox"]
    run_scripts: bool
    runner_hash: str


class Runner:
    """One session's runner, from start to SIGTERM."""

    def __init__(self, setup: Setup, mailbox: Mailbox, clock: Clock) -> None:
        self._setup = setup
        self._mailbox = mailbox
        self._clock = clock
        self._wake = asyncio.Event()
        self._rung = False
        self._stopping = asyncio.Event()
        self._line: bell.Line | None = None
        self._transcripts = Transcripts(setup.workspace.state, clock.now)
        self._transcript = self._transcripts.open_latest()
        self._provider: Provider | None = None
        self._toolbox: Toolbox | None = None
        self._desk = Desk(self._post)
        mailbox.awaited = self._desk.waiting.keys()
        self._heartbeat = Heartbeat(setup.workspace)

    def stop(self) -> None:
        """Ends `run` soon: an open turn is given back to the host."""
        self._stopping.set()
        self._wake.set()

    async def run(self) -> None:
        """Works until `stop`."""
        helpers = [asyncio.create_task(self._keep_line()), asyncio.create_task(self._beat())]
        try:
            await self._recover()
            gc.freeze()  # what was imported stays: no collection during a turn need look at it
            while not self._stopping.is_set():
                if not await self._step():
                    await self._pause()
        except Stopped:
            pass
        finally:
            for helper in helpers:
                helper.cancel()
            await self._close()
            await asyncio.gather(*helpers, return_exceptions=True)
        log("stopped")

    # Bell, beat and poll

    def _ring(self) -> None:
        if self._line is not None:
            self._line.ring()

    def _heard(self, packet: bytes) -> None:
        if packet == bell.RING:
            self._rung = True
            self._wake.set()

    async def _keep_line(self) -> None:
        """Keeps the one connection to the host's bell; without it everything still arrives, by polling."""
        path = self._setup.workspace.run / BELL_SOCKET
        while True:
            with contextlib.suppress(OSError):
                self._line = await bell.connect(path)
                self._line.ring(bell.BEAT)
                try:
                    await self._line.listen(self._heard)
                finally:
                    self._line.close()
                    self._line = None
            await self._clock.sleep(LIVE_POLL_SECONDS)

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(BEAT_SECONDS)
            if self._line is None or not self._line.ring(bell.BEAT):
                self._mailbox.beat()

    async def _pause(self) -> None:
        """Waits for a ring, or for the running query, at most for one poll. Raises Stopped."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIVE_POLL_SECONDS):
                await self._wake.wait()
        self._wake.clear()
        self._unless_stopped()

    def _unless_stopped(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    # One step

    async def _recover(self) -> None:
        completed = self._mailbox.completed_turns()
        self._transcript.cut_incomplete(completed)
        while True:
            try:
                self._mailbox.recover(self._setup.runner_hash)
            except HostAway:
                await self._pause()
            else:
                break
        log("ready", transcript=self._transcript.id)

    async def _step(self) -> bool:
        """Does the next thing. False when there is none."""
        try:
            batch = self._mailbox.next_batch(self._clock.now())
            quiet = batch is not None and self._heartbeat.stays_quiet(batch, self._mailbox, self._clock.now())
            prompt = self._format(batch) if batch is not None and not quiet else ""
        except HostAway as away:
            log("host_away", "debug", reason=str(away))
            return False
        except Malformed as fault:
            self._set_aside(fault)
            return True
        if batch is None:
            return False
        if quiet or batch.command is CommandClass.FILTER:
            self._mailbox.complete_unseen(batch.rows, new_id("t"))
            self._ring()
        elif batch.command is CommandClass.ADMIN:
            await self._admin(batch)
        else:
            await self._turn(batch, prompt)
        return True

    def _format(self, batch: Batch, verdicts: Mapping[str, scripts.Verdict] = _NO_VERDICTS) -> str:
        """The prompt of a batch; a command is its own text. Raises Malformed and HostAway."""
        if batch.command is not CommandClass.NONE:
            return chat_text(batch.rows[0])
        if batch.rows[0].is_heartbeat:
            now = self._clock.now().astimezone(self._setup.zone())
            return self._heartbeat.prompt(verdicts.get(batch.rows[0].id), now)
        context = Context(
            self._clock.now(), self._setup.zone(), self._mailbox.messages, self._transcripts.cut_records, verdicts,
            inbound=self._setup.workspace.inbound,
        )  # fmt: skip
        return format_rows(batch.rows, context, len(batch.omitted))

    def _set_aside(self, fault: Malformed) -> None:
        log("row_set_aside", "warning", message_id=fault.row.id, kind=fault.row.kind[:40], reason=fault.reason)
        self._mailbox.set_aside(fault.row, fault.reason, new_id("t"))
        self._ring()

    async def _admin(self, batch: Batch) -> None:
        """A command that the host has checked the right for."""
        turn = Turn(self._send)
        turn.accept(batch)
        if not self._mailbox.claim(batch.rows, turn.id):
            return
        crash_at("after_claim")
        word = command_of(chat_text(batch.rows[0]))
        if word == "/clear":
            self._transcript = self._transcripts.start_new()
            text = "This is a new conversation: I no longer remember what was said before."
        elif word == "/context":
            text = _how_full(self._transcript)
        else:
            text = f"{word} is not built yet: nothing was changed."
        try:
            await self._commit(turn, turn.take(Result(text, 1)))
        except Stopped:
            self._give_back(turn, _STOPPED)
            raise

    # A turn

    async def _turn(self, batch: Batch, prompt: str) -> None:
        turn = Turn(self._send)
        unclaimed = [*batch.omitted, *batch.rows]
        if _has_script(batch):
            woken = await self._run_scripts(turn, batch)
            if woken is None:
                return
            batch, prompt = woken
            unclaimed = [row for row in unclaimed if scripts.script_of(row) is None]
        if not self._mailbox.claim(unclaimed, turn.id):
            return
        crash_at("after_claim")
        turn.accept(batch)
        self._desk.turn = turn
        log("turn", turn_id=turn.id, rows=len(batch.rows))
        self._transcript.begin(turn.id)
        running = self._start(turn, prompt, raw=batch.command is CommandClass.PASS)
        if isinstance(running, Failure):
            self._give_back(turn, running)
            return
        try:
            failure = await self._follow(turn, running, batch.origin)
        except Stopped:
            # The claims go back first: whatever hangs below may be killed with us.
            self._give_back(turn, _STOPPED)
            raise
        else:
            self._give_back(turn, failure) if failure is not None else self._settle(turn)
        finally:
            turn.closed = True
            await running.close()

    async def _run_scripts(self, turn: Turn, batch: Batch) -> tuple[Batch, str] | None:
        """Runs the scripts of tasks under a claim on these rows alone: what only rides along stays for another turn
        should none of them wake the agent. Tasks that need not wake it are completed; the rest of the batch, where it
        starts a turn, is returned with its prompt. Raises Stopped."""
        with_script = [row for row in batch.rows if scripts.script_of(row) is not None]
        if not self._mailbox.claim(with_script, turn.id):
            return None
        running = asyncio.ensure_future(
            scripts.run_all(with_script, self._setup.workspace.agent, allowed=self._setup.run_scripts)
        )
        try:
            crash_at("in_script")
            verdicts = await self._until_stopped(running)
            crash_at("after_script")
            unseen = [row for row in with_script if self._heartbeat.wakes_nobody(row, verdicts[row.id])]
            rest = replace(batch, rows=tuple(row for row in batch.rows if row not in unseen))
            goes_on = any(starts_turn(row) for row in rest.rows)
            claimed_by = turn.id
            turn.next_part()
            self._mailbox.commit([], unseen, claimed_by, turn.id if goes_on else None, self._clock.now())
            self._ring()
            return (rest, await self._format_with_host(rest, verdicts)) if goes_on else None
        except Stopped:
            self._give_back(turn, _STOPPED)
            raise
        finally:
            running.cancel()
            await asyncio.wait((running,), timeout=CLOSE_SECONDS)

    async def _until_stopped(self, running: "asyncio.Future[_T]") -> _T:
        """Its result. Raises Stopped."""
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if self._stopping.is_set():
            raise Stopped
        return running.result()

    async def _format_with_host(self, batch: Batch, verdicts: Mapping[str, scripts.Verdict]) -> str:
        """The prompt of a batch of which rows are claimed: it waits for a host that is away. Raises Stopped."""
        while True:
            try:
                return self._format(batch, verdicts)
            except HostAway:
                await self._pause()

    def _start(self, turn: Turn, prompt: str, *, raw: bool) -> "Running | Failure":
        setup = self._setup
        try:
            if self._provider is None:
                self._provider = setup.load_provider()
            if self._toolbox is None:
                self._toolbox = setup.load_toolbox(self._desk)
            query = self._provider.query(
                TurnInput(
                    turn_id=turn.id,
                    prompt=prompt,
                    system=system_prompt(setup.workspace.agent, setup.assistant_name),
                    transcript=self._transcript,
                    toolbox=self._toolbox,
                    model=setup.model,
                    raw=raw,
                    send=turn.send,
                )
            )
            return Running(query, self._wake.set)
        except Exception as error:  # noqa: BLE001  a provider is foreign code: it must not end the runner
            return provider_failure(error)

    async def _follow(self, turn: Turn, running: "Running", origin: tuple[str, ...]) -> Failure | None:
        """Commits what the query says and pushes what arrives for it, to its end. Raises Stopped."""
        polled = self._clock.monotonic()
        while True:
            await asyncio.sleep(0)  # what needs no waiting has its next event now
            if not running.coming.done():
                await self._pause()
            self._unless_stopped()
            if running.coming.done():
                event = running.next_event()
                if isinstance(event, Failure):
                    return event
                if event is None:
                    return Failure("The model ended without an answer.", retryable=True) if turn.is_open else None
                await self._handle(turn, event)
                running.go_on()
            if self._rung or self._clock.monotonic() - polled >= LIVE_POLL_SECONDS:
                polled = self._clock.monotonic()
                if self._is_cancelled(turn):
                    return _CANCELLED
                self._hand_over(turn)
                self._push_new(turn, running.query, origin)

    def _is_cancelled(self, turn: Turn) -> bool:
        """Whether somebody said /stop: the host closed a message that this turn works on."""
        with contextlib.suppress(HostAway):
            return self._mailbox.any_cancelled(turn.open_ids)
        return False

    def _hand_over(self, turn: Turn) -> None:
        """Gives tools the rows that they wait for; those are claimed with the turn and done with its next part."""
        if not self._desk.waiting:
            return
        with contextlib.suppress(HostAway):
            rows = [row for row in self._mailbox.messages(self._desk.waiting) if row.status == InStatus.PENDING]
            if rows and self._mailbox.claim(rows, turn.id):
                turn.ride(rows)
                for row in rows:
                    self._desk.hand(row.id, row.content)

    async def _handle(self, turn: Turn, event: Progress | Result) -> None:
        if isinstance(event, Result):
            part = turn.take(event)
            if part is not None:
                await self._commit(turn, part)
        crash_at("mid_turn")

    def _push_new(self, turn: Turn, query: Query, origin: tuple[str, ...]) -> None:
        """Gives new rows of the origin to the running query. A row that it does not take waits for the next turn, and
        so does a task with a script, which runs before its turn. What it took is claimed at once. (Should that claim
        be lost in a crash, then so is this turn: the row runs again.)"""
        self._rung = False
        while True:
            try:
                batch = self._mailbox.next_batch(self._clock.now(), origin)
                if (
                    batch is None
                    or batch.command is not CommandClass.NONE
                    or _has_script(batch)
                    or waits_its_turn(batch)
                ):
                    return
                text = self._format(batch)
            except HostAway:
                return
            except Malformed as fault:
                self._set_aside(fault)
                continue
            if not query.push(text):
                return
            self._mailbox.claim((*batch.omitted, *batch.rows), turn.id)
            turn.accept(batch)

    async def _commit(self, turn: Turn, part: Part | None) -> None:
        """Answers and completion in one transaction; then the host and the transcript are told."""
        if part is None:
            return
        part, beat = self._heartbeat.only_news(part)
        ready = await self._room_for(part.outputs)
        turn.next_part()
        rest = turn.id if turn.is_open else None
        crash_at("before_commit")
        self._mailbox.commit(ready, part.rows, part.turn_id, rest, self._clock.now())
        crash_at("after_commit")
        self._ring()
        if beat is not None:
            self._heartbeat.asked(beat, self._clock.now())
        if beat is not None and not part.outputs:
            self._transcript.roll_back()  # nothing came of it: it is not to be paid for again with each turn to come
        else:
            self._transcript.end_turn(part.turn_id)
        self._transcripts.touch(self._transcript)
        self._transcript.begin(turn.id)
        crash_at("after_transcript")

    async def _send(self, turn: Turn, output: Output) -> int:
        """Turn.send: one row of the open turn, at once."""
        return await self._post(turn, output, lambda _row_id: None)

    async def _post(self, turn: Turn, output: Output, named: Callable[[str], None]) -> int:
        """The desk's: as `_send`; `named` hears the row's id first."""
        ready = await self._room_for([output])
        if turn.closed:
            raise RuntimeError("this turn is over")
        named(ready[0].id)
        seq = self._mailbox.send(ready[0], turn.id, self._clock.now())
        self._ring()
        crash_at("after_send")
        return seq

    async def _room_for(self, outputs: list[Output]) -> list[Outgoing]:
        """Waits for the host to take rows over while the file is full. Raises Stopped."""
        ready = self._mailbox.prepare(outputs)
        while not self._mailbox.has_room(ready):
            self._ring()
            await self._pause()
        return ready

    def _give_back(self, turn: Turn, failure: Failure) -> None:
        """Releases the open claims and forgets the open part of the turn."""
        log("turn_released", "warning", turn_id=turn.id, retryable=failure.retryable)
        self._mailbox.release(failure.reason, retryable=failure.retryable)
        self._transcript.roll_back()
        self._ring()

    def _settle(self, turn: Turn) -> None:
        """The query has ended and nothing is open: what it did after its last answer is part of the record too."""
        if self._transcript.has_open_records:
            self._transcript.end_turn(turn.id)
        if riding := turn.take_riding():
            self._mailbox.commit([], riding, turn.id, None, self._clock.now())
        if self._mailbox.turn_id is not None:
            self._mailbox.settle()
            self._ring()

    async def _close(self) -> None:
        if self._toolbox is not None:
            await within(CLOSE_SECONDS, self._toolbox.close())
        if self._provider is not None:
            await within(CLOSE_SECONDS, self._provider.close())
        if self._line is not None:
            self._line.close()
        self._mailbox.close()


def _how_full(transcript: Transcript) -> str:
    said = transcript.message_count
    if not said:
        return "I remember nothing of this conversation: it has just begun."
    kilobytes = max(1, round(transcript.path.stat().st_size / 1000))
    return f"I remember {said} messages of this conversation ({kilobytes} kB). /clear makes me forget them."


def _has_script(batch: Batch) -> bool:
    return any(scripts.script_of(row) is not None for row in batch.rows)
