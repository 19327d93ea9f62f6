"""The commands of a chat that the host answers itself (mailboxes.commands): carried out after their commit, in the
order of their chat, and once more after a crash that came before their end was on record; so each can be done twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from host import event_text, explaining
from host.broker.usage import Usage, cost
from host.db import host_outbox, ingest_spool, sessions
from host.db.engine import CentralDatabase
from host.db.sessions import Session
from host.db.snapshot import Routing
from host.failure import Failure
from host.fleet import Fleet
from host.intake import Commanded
from host.items import SessionRef
from host.mailbox_pool import MailboxPool
from host.postmaster import Postmaster
from host.series_changes import Listed
from host.turn_stop import cancel_turn
from host.untrusted import BadFile, JournalActive, TornSnapshot
from mailboxes.clock import Clock, to_text
from mailboxes.commands import COMMANDS
from mailboxes.ids import derived_id
from mailboxes.rows import Address

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Means:
    """What carrying out takes. `reset` begins a session anew (idempotent: one that is over stays over); `tasks` lists
    those of a session; `usage` is by (session id, model), since the host began; `stopped` hears of each message whose
    turn was ended; `said` has what was put into host_outbox sent, and `settled` ends the wait for a message."""

    database: CentralDatabase
    routing: Routing
    pool: MailboxPool
    fleet: Fleet
    postmaster: Postmaster
    clock: Clock
    reset: Callable[[SessionRef], Awaitable[None]]
    tasks: Callable[[SessionRef], Awaitable[Sequence[Listed]]]
    usage: Callable[[], Mapping[tuple[str, str], Usage]]
    stopped: Callable[[SessionRef, str], None]
    said: Callable[[], Awaitable[None]]
    settled: Callable[[Commanded], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A command with the session that it is about; None where there is none yet."""

    one: Commanded
    session: Session | None
    key: SessionRef | None

    @property
    def address(self) -> Address:
        return self.one.event.address

    @property
    def agent(self) -> str:
        return self.one.command.agent_group.name


class ChatCommands:
    """See the module."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._since = to_text(means.clock.now())
        self._locks: dict[Address, asyncio.Lock] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._answers: Mapping[str, Callable[[_Asked], Awaitable[str]]] = {
            "/help": self._help,
            "/status": self._status,
            "/why": self._why,
            "/stop": self._stop,
            "/new": self._new,
            "/tasks": self._tasks,
            "/usage": self._usage,
        }

    def take(self, commands: Sequence[Commanded]) -> None:
        """Begins to carry out what was committed."""
        for one in commands:
            task = asyncio.create_task(self._carry_out(one), name=f"command {one.command.word}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """What is not done by now is done after the next start."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _carry_out(self, one: Commanded) -> None:
        lock = self._locks.setdefault(one.event.address, asyncio.Lock())
        async with lock:
            try:
                text = await self._answer(one)
            except Failure as failure:
                text = f"{failure.message} {failure.next}".rstrip()
            except Exception:
                log.exception("a command failed", command=one.command.word, message=one.message_id)
                text = f"{one.command.word} went wrong inside the host. Its log says why: host logs"
            await self._reply(one, text)

    async def _answer(self, one: Commanded) -> str:
        command = one.command
        found = await self._means.database.run(lambda connection: sessions.find(connection, command.key))
        key = SessionRef(found.agent_group_id, found.id) if found is not None else None
        log.info("command", command=command.word, principal=command.principal, session=found and found.id)
        return await self._answers[command.word](_Asked(one, found, key))

    async def _reply(self, one: Commanded, text: str) -> None:
        reply, now = derived_id(one.message_id, "reply"), to_text(self._means.clock.now())
        content = event_text.dump({"text": text})
        await self._means.database.run(lambda c: host_outbox.add(c, reply, one.event.address, content, now))
        self._means.database.ride(ingest_spool.FORGET, {"done": one.message_id})
        await self._means.said()
        self._means.settled(one)

    # -- one each

    async def _help(self, asked: _Asked) -> str:
        may = self._means.routing.snapshot.may_administer(asked.one.command.principal, asked.one.command.agent_group.id)
        shown = [(word, one) for word, one in COMMANDS.items() if one.summary and (may or not one.admin)]
        lines = [f"{word}: {one.summary}" for word, one in shown]
        return "\n".join([f"This is {asked.agent}. Write what you want; besides that there are:", *lines])

    async def _status(self, asked: _Asked) -> str:
        if asked.key is None:
            return f"{asked.agent} has not been spoken to here yet."
        life = self._means.fleet.live().get(asked.key)
        open_rows = await self._means.pool.call(asked.key, lambda mailbox: list(mailbox.open_rows().values()))
        waiting = sum(1 for row in open_rows if row.trigger and row.status == "pending" and row.process_after is None)
        working = any(row.status == "processing" for row in open_rows)
        lines = [f"{asked.agent} is at work." if working else f"{asked.agent} has nothing to do just now."]
        if working and life is not None:
            lines = [f"{asked.agent} has been at work for {self._means.clock.monotonic() - life.turn_since:.0f} s."]
        if waiting:
            lines.append(f"{waiting} {'message waits' if waiting == 1 else 'messages wait'}.")
        if asked.key in self._means.fleet.queued():
            lines.append("All places are taken: it begins as soon as one is free.")
        if problem := self._means.fleet.problems.get(asked.key):
            lines.append(f"It does not run: {problem}")
        return "\n".join(lines)

    async def _why(self, asked: _Asked) -> str:
        if asked.key is None:
            return f"{asked.agent} has not been spoken to here yet."
        replied_to, address = asked.one.event.replied_to, asked.address
        return await self._means.pool.call(
            asked.key, lambda mailbox: explaining.explain(mailbox.db, address, replied_to)
        )

    async def _stop(self, asked: _Asked) -> str:
        if asked.key is None:
            return f"{asked.agent} is not at work here."
        key, address = asked.key, asked.address
        if key in self._means.fleet.live():
            try:
                await self._means.postmaster.pull(key)  # what the runner has claimed by now
            except (BadFile, JournalActive, TornSnapshot, OSError) as error:
                log.info("a mailbox could not be read before a stop", session=key.session_id, reason=str(error))
        done = await self._means.pool.call(key, lambda mailbox: cancel_turn(mailbox, address))
        self._means.postmaster.cancelled(key, done.taken, done.due)
        if key in self._means.fleet.live():
            self._means.fleet.notify(key)
        for message_id in done.messages:
            self._means.stopped(key, message_id)
        dropped = f"Stopped. {asked.agent} has dropped what it was doing."
        return dropped if done.messages else "There is nothing to stop."

    async def _new(self, asked: _Asked) -> str:
        # A session that is younger than the command is the one that it asked for.
        if asked.session is not None and asked.key is not None and asked.session.created_at <= asked.one.at:
            await self._means.reset(asked.key)
        return f"This is a new conversation: {asked.agent} no longer remembers what was said before. Tasks stay."

    async def _tasks(self, asked: _Asked) -> str:
        tasks = await self._means.tasks(asked.key) if asked.key is not None else []
        if not tasks:
            return f"{asked.agent} has no tasks here."
        lines = [f"{one.series.name}: {one.next or one.series.state} ({one.series.id})" for one in tasks]
        return "\n".join([f"{len(tasks)} {'task' if len(tasks) == 1 else 'tasks'}:", *lines])

    async def _usage(self, asked: _Asked) -> str:
        agent_id = asked.one.command.agent_group.id
        known = await self._means.database.run(sessions.active)
        mine = {session.id for session in known if session.agent_group_id == agent_id}
        lines = []
        for model, usage in sorted(_by_model(self._means.usage(), mine).items()):
            price = cost(model, usage)
            money = f", about ${price:.2f}" if price is not None else ""
            lines.append(f"{model}: {usage.prompt_tokens:,} tokens read, {usage.output_tokens:,} written{money}")
        since = f"since the host began ({self._since[:16].replace('T', ' ')} UTC)"
        return "\n".join([f"{asked.agent}, {since}:", *lines]) if lines else f"{asked.agent} has used nothing {since}."


def _by_model(usage: Mapping[tuple[str, str], Usage], session_ids: Collection[str]) -> dict[str, Usage]:
    totals: dict[str, Usage] = {}
    for (session_id, model), used in usage.items():
        if session_id in session_ids:
            totals[model] = totals.get(model, Usage()) + used
    return totals
