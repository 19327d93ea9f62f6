"""The agents of the week: what each turn does follows from the words of its message ("do:crash") and the attempt, and
what was committed is on their own record, for the accounts."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mailboxes import schema
from mailboxes.layout import INBOUND_DB, OUTBOUND_DB
from mailboxes.rows import Address, InStatus, MessageIn
from mailboxes.schema import IN_COLUMNS, message_in_of
from tests.fakes.clock import FakeClock
from tests.fakes.runtime import ScriptedSandbox

PATIENCE = timedelta(minutes=7)
"""How long an answer is waited for: longer than its question is open."""

SLOW = timedelta(minutes=4)
"""How long a slow turn takes."""


@dataclass(frozen=True, slots=True)
class Said:
    """A text that a runner has committed in a session. `ends`: the messages whose turn it closed, with those that they
    carry on. `text` is None for a turn that ended in silence."""

    session: str
    address: Address | None
    text: str | None
    ends: tuple[str, ...] = ()
    kind: str = "chat"


@dataclass(slots=True)
class Turn:
    """An open turn."""

    id: str
    rows: Sequence[MessageIn]
    verb: str
    until: datetime | None = None
    """When it goes on; None while it waits for an answer."""
    awaits: str | None = None


@dataclass(slots=True)
class _Runner:
    """What is known of one sandbox."""

    sandbox: ScriptedSandbox
    host: int = -1
    """The host that it talks to."""
    turn: Turn | None = None
    looked: tuple[int, datetime] | None = None
    """Rings and time at the last look."""


@dataclass(slots=True)
class Agents:
    """Plays every runner. `agents` maps the name of an agent to its id; `asked` hears of each question."""

    seed: int
    clock: FakeClock
    agents: dict[str, str] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    rows_out: dict[str, str] = field(default_factory=dict)
    """What tools sent that is no text for a chat: the row's id, and what it is."""
    bad_rows: int = 0
    spoilt: int = 0
    crashes: int = 0
    hung: int = 0
    turns: int = 0
    _runners: dict[str, _Runner] = field(default_factory=dict)

    async def work(self, live: Sequence[ScriptedSandbox], host: int | None) -> bool:
        """Lets each live runner do what it can do now; whether one did anything. `host` is None while there is none."""
        alive = {sandbox.id for sandbox in live}
        self._runners = {name: runner for name, runner in self._runners.items() if name in alive}
        did = False
        for sandbox in live:
            runner = self._runners.setdefault(sandbox.id, _Runner(sandbox))
            if host is not None and runner.host != host:
                did = await self._meet(runner, host) or did
            elif runner.host >= 0 and sandbox.alive:
                did = self._go_on(runner) or did
        return did

    def hangs(self) -> bool:
        """Whether one has given no sign of life for a while."""
        return any(not runner.sandbox.beats for runner in self._runners.values() if runner.sandbox.alive)

    def wakes(self) -> datetime | None:
        """When the next open turn goes on."""
        times = [runner.turn.until for runner in self._runners.values() if runner.turn and runner.turn.until]
        return min(times, default=None)

    async def _meet(self, runner: _Runner, host: int) -> bool:
        bell = runner.sandbox.spec.run / "bell.sock"
        if not bell.exists():
            return False
        try:
            await runner.sandbox.connect()
        except OSError:
            return False  # of a host that is gone
        if runner.host < 0:
            runner.sandbox.recover()
        else:
            runner.sandbox.ring()
        runner.host = host
        return True

    def _go_on(self, runner: _Runner) -> bool:
        turn, sandbox = runner.turn, runner.sandbox
        if turn is not None:
            return self._continue(runner, turn)
        look = (sandbox.rings, self.clock.now())
        if not sandbox.beats or runner.looked == look:
            return False
        runner.looked = look
        self.turns += 1
        turn_id = f"t-{self.seed}-{self.turns}"
        claimed = sandbox.claim(turn_id)
        if not claimed:
            return False
        rows = rows_of(sandbox, claimed)
        runner.turn = Turn(turn_id, rows, verb_of(rows))
        self._begin(runner, runner.turn)
        return True

    # -- what a turn does

    def _begin(self, runner: _Runner, turn: Turn) -> None:
        first = max(row.tries for row in turn.rows) == 0
        act: Callable[[_Runner, Turn], None] = getattr(self, f"_do_{turn.verb}", self._do_answer)
        if turn.verb in _ONCE and not first:
            act = self._do_answer
        act(runner, turn)

    def _continue(self, runner: _Runner, turn: Turn) -> bool:
        if not runner.sandbox.beats:
            return False
        states = {row.status for row in rows_of(runner.sandbox, [row.id for row in turn.rows])}
        if InStatus.CANCELLED in states:
            runner.sandbox._do("drop")
            runner.sandbox.ring()
            runner.turn = None
            return True
        if turn.awaits is not None:
            if not rows_of(runner.sandbox, [turn.awaits]) and (turn.until is None or turn.until > self.clock.now()):
                return False
            runner.sandbox.write("UPDATE runner_state SET open_questions = 0")
        elif turn.until is not None and turn.until > self.clock.now():
            return False
        if turn.verb == "slowcrash" and max(row.tries for row in turn.rows) == 0:
            self._crash(runner)
        else:
            self._do_answer(runner, turn)
        return True

    def _do_answer(self, runner: _Runner, turn: Turn, prefix: str = "done") -> None:
        """Says one thing, to where the last message came from."""
        last = turn.rows[-1]
        text = f"{prefix} {turn.id}: {' '.join(names_of(turn.rows))}"
        if last.address is None:
            self._do_quiet(runner, turn)
            return
        self._commit(runner, turn, text, last)

    def _do_quiet(self, runner: _Runner, turn: Turn) -> None:
        """Ends in silence."""
        self._commit(runner, turn, None, turn.rows[-1])

    def _commit(self, runner: _Runner, turn: Turn, text: str | None, last: MessageIn) -> None:
        outputs = [] if text is None else [_output(text, last.address, last.id)]
        runner.sandbox._do("commit", outputs=outputs, turn=turn.id, now=runner.sandbox._now())
        self.said.append(Said(runner.sandbox.session_id, last.address, text, tuple(names_of(turn.rows))))
        runner.turn = None
        if turn.verb == "late" and last.tries == 0:
            self._crash(runner)  # before anybody heard of it
        else:
            runner.sandbox.ring()

    def _do_talk(self, runner: _Runner, turn: Turn) -> None:
        self._say(runner, turn)
        self._do_answer(runner, turn)

    def _say(self, runner: _Runner, turn: Turn) -> None:
        """Says something in the middle of the turn."""
        last = turn.rows[-1]
        if last.address is not None:
            text = f"part {turn.id}"
            self._send(runner, turn, _output(text, last.address, last.id))
            self.said.append(Said(runner.sandbox.session_id, last.address, text))
            runner.sandbox.ring()

    def _send(self, runner: _Runner, turn: Turn, output: dict[str, Any], **columns: str) -> str:
        row_id = runner.sandbox._do("send", output=output, turn=turn.id, now=runner.sandbox._now(), **columns)
        return str(row_id)

    def _do_slow(self, runner: _Runner, turn: Turn) -> None:
        turn.until = self.clock.now() + SLOW

    _do_slowcrash = _do_slow

    def _crash(self, runner: _Runner) -> None:
        self.crashes += 1
        runner.turn = None
        runner.sandbox.exit(137)

    def _do_crash(self, runner: _Runner, turn: Turn) -> None:
        self._crash(runner)

    _do_poison = _do_crash

    def _do_halfcrash(self, runner: _Runner, turn: Turn) -> None:
        """Dies after it has said something."""
        self._say(runner, turn)
        self._crash(runner)

    def _do_journal(self, runner: _Runner, turn: Turn) -> None:
        """Dies in a commit."""
        self.crashes += 1
        runner.turn = None
        runner.sandbox.die_in_a_commit()

    def _do_moody(self, runner: _Runner, turn: Turn) -> None:
        """The model fails twice."""
        if max(row.tries for row in turn.rows) < 2:
            runner.sandbox.release("The model is overloaded.")
            runner.turn = None
        else:
            self._do_answer(runner, turn)

    def _do_refuse(self, runner: _Runner, turn: Turn) -> None:
        runner.sandbox.release("The model refused.", retryable=False)
        runner.turn = None

    def _do_hang(self, runner: _Runner, turn: Turn) -> None:
        self.hung += 1
        runner.sandbox.beats = False

    def _do_spoil(self, runner: _Runner, turn: Turn) -> None:
        """Its mailbox cannot be read any more."""
        self.spoilt += 1
        (runner.sandbox.spec.outbound / OUTBOUND_DB).write_bytes(b"no database at all" * 500)
        self._crash(runner)

    def _do_bad(self, runner: _Runner, turn: Turn) -> None:
        """Sends a row that nobody can read."""
        self.bad_rows += 1
        output = _output("bad", turn.rows[-1].address, None)
        self._send(runner, turn, output, content="no JSON")
        self._do_answer(runner, turn)

    def _do_ask(self, runner: _Runner, turn: Turn) -> None:
        """Asks, and hears the answer in a later turn."""
        self._ask(runner, turn)
        self._do_answer(runner, turn)

    def _do_wait(self, runner: _Runner, turn: Turn) -> None:
        """Asks, and waits for the answer."""
        from host.questions import answer_id_of, question_id_of

        row_id = self._ask(runner, turn)
        turn.awaits, turn.until = answer_id_of(question_id_of(row_id)), self.clock.now() + PATIENCE
        runner.sandbox.write("UPDATE runner_state SET open_questions = 1")

    def _ask(self, runner: _Runner, turn: Turn) -> str:
        last = turn.rows[-1]
        output = _output("", last.address, last.id)
        output["content"] = {
            "operation": "ask_question", "title": "Choose", "question": f"question of {turn.id}", "timeout": 300,
            "options": [{"label": "Tea", "value": "tea"}, {"label": "Coffee", "value": "coffee"}],
        }  # fmt: skip
        row_id = self._send(runner, turn, output)
        self.rows_out[row_id] = "question"
        runner.sandbox.ring()
        return row_id

    def _do_tell(self, runner: _Runner, turn: Turn) -> None:
        """Writes to the next agent."""
        last = turn.rows[-1]
        names = sorted(self.agents)
        own = next(name for name in names if self.agents[name] == runner.sandbox.spec.agent_group_id)
        other = self.agents[names[(names.index(own) + 1) % len(names)]]
        text = f"letter {turn.id}"
        address = Address("agent", "", other)
        self._send(runner, turn, _output(text, address, last.id))
        self.said.append(Said(runner.sandbox.session_id, address, text))
        self._do_answer(runner, turn)

    def _do_plan(self, runner: _Runner, turn: Turn) -> None:
        """Has the host plan a task."""
        when = self.clock.now() + timedelta(minutes=random.Random(turn.id).randint(5, 300))
        payload = {"prompt": "do:answer planned", "process_after": when.isoformat()}
        output = _output("", None, turn.rows[-1].id)
        output |= {"kind": "system", "content": {"action": "schedule_task", "payload": payload}}
        self.rows_out[self._send(runner, turn, output)] = "action"
        self._do_answer(runner, turn)

    def _do_remind(self, runner: _Runner, turn: Turn) -> None:
        """Leaves words that go out later by themselves."""
        last, text = turn.rows[-1], f"reminder {turn.id}"
        when = self.clock.now() + timedelta(minutes=random.Random(turn.id).randint(5, 300))
        from mailboxes.clock import to_text

        self._send(runner, turn, _output(text, last.address, last.id), deliver_after=to_text(when))
        self.said.append(Said(runner.sandbox.session_id, last.address, text))
        self._do_answer(runner, turn)


_ONCE = {"crash", "halfcrash", "journal", "hang", "spoil", "bad", "ask", "wait", "tell", "plan", "remind"}
"""What is done at the first attempt alone."""


def _output(text: str, address: Address | None, in_reply_to: str | None) -> dict[str, Any]:
    to = None if address is None else [address.channel_type, address.account_id, address.platform_id, address.thread_id]
    return {"kind": "chat", "content": {"text": text}, "address": to, "in_reply_to": in_reply_to}


def rows_of(sandbox: ScriptedSandbox, ids: Sequence[str]) -> list[MessageIn]:
    """Rows of a sandbox's messages_in, in order of seq."""
    inbound = schema.open_inbound_to_read(sandbox.spec.inbound / INBOUND_DB)
    try:
        marks = ",".join("?" * len(ids))
        found = inbound.execute(f"SELECT {IN_COLUMNS} FROM messages_in WHERE id IN ({marks}) ORDER BY seq", ids)
        return [message_in_of(row) for row in found]
    finally:
        inbound.close()


def names_of(rows: Sequence[MessageIn]) -> list[str]:
    """The ids of messages, with those that they carry on."""
    found = []
    for row in rows:
        content = json.loads(row.content)
        result = content.get("result")
        carried = content.get("action") == "continue_turn" and isinstance(result, dict)
        found += [*result["message_ids"], row.id] if carried else [row.id]
    return found


def verb_of(rows: Sequence[MessageIn]) -> str:
    """What the first of some messages has the agent do; the host's own words end in silence."""
    for row in rows:
        content = json.loads(row.content)
        words = str(content.get("text") or content.get("prompt") or "")
        if words.startswith("do:"):
            return words.partition(" ")[0].removeprefix("do:")
    if any(json.loads(row.content).get("action") == "continue_turn" for row in rows):
        return "answer"
    return "quiet" if all(row.kind == "system" or row.is_heartbeat for row in rows) else "answer"
