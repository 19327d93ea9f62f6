"""Moves rows between the platforms' side and the mailboxes: puts what came in, takes over what a session said.

It starts and stops no sandbox: `notify` (the fleet's) is told when a session has something to do.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from host import series, untrusted
from host.channels.base import SentFile
from host.db import host_outbox
from host.db.agent_destinations import Destination
from host.db.engine import CentralDatabase
from host.delivery import Delivery
from host.due import DueIndex
from host.home import Home
from host.items import Change, Item, Refusal, SessionRef, TakeOver, Target
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from host.outbound_files import OutboundFiles, files_of, names_of
from host.reader import Budget, Reader, Snapshot
from host.tasks import to_the_end
from mailboxes import clock
from mailboxes.clock import Clock
from mailboxes.rows import AGENT, Address, Kind, MessageIn, MessageOut, RunnerState

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MAX_HELD = 16 * 1024 * 1024
"""Characters of one session that may wait to be delivered before nothing more is taken over from it: they lie in
memory, and where nobody is attached nothing ever goes."""

COUNTER = slice(24, 28)
"""Where a database image holds its change counter."""


class Wirings(Protocol):
    """What the postmaster asks of routing; the answers come from an immutable snapshot, so any thread may ask."""

    def is_wired(self, agent_group_id: str, address: Address) -> bool:
        """Whether an agent answers in the chat of that address."""
        ...


class Listener(Protocol):
    """Hears what happens to messages (typing signs, a terminal that waits for the end of its turn)."""

    def waiting(self, key: SessionRef, address: Address, message_id: str) -> None:
        """A message from there is in a session's mailbox."""
        ...

    def state(self, key: SessionRef, state: RunnerState) -> None:
        """What a session's runner says it is doing; after what it said by then."""
        ...

    def spoke(self, key: SessionRef, address: Address) -> None:
        """The session said something to there."""
        ...

    def finished(self, key: SessionRef, message_id: str, *, completed: bool) -> None:
        """A message is dealt with; what it brought about is queued for delivery."""
        ...

    def carried_on(self, message_id: str, by: str) -> None:
        """What a message asked for goes on as the message `by`."""
        ...

    def stopped(self, key: SessionRef) -> None:
        """The session's sandbox has ended, or did not start."""
        ...


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a reading showed. `state` is None where the runner has not said anything yet."""

    state: RunnerState | None
    counter: bytes
    bad_rows: int
    more: bool
    claims: bool
    """The runner has claimed something that is still in its file."""
    wake: bool
    """New rows wait in messages_in."""


@dataclass(frozen=True, slots=True)
class _WithFiles:
    """A reading whose rows cannot be taken over before the files of some of them are here."""

    snapshot: Snapshot
    counter: bytes
    rows: list[MessageOut]


@dataclass(frozen=True, slots=True)
class _TakenOver:
    """A reading, committed."""

    taken: TakeOver
    counter: bytes
    snapshot: Snapshot
    due: str | None


class Postmaster:
    """See the module. All methods run on the event loop; what blocks goes to the pool's threads."""

    def __init__(
        self,
        home: Home,
        pool: MailboxPool,
        reader: Reader,
        delivery: Delivery,
        wirings: Wirings,
        listener: Listener,
        clock: Clock,
        due: DueIndex,
    ) -> None:
        self._home = home
        self._pool = pool
        self._reader = reader
        self._delivery = delivery
        self._wirings = wirings
        self._listener = listener
        self._clock = clock
        self._due = due
        self._files = OutboundFiles(home)
        self._budgets: dict[SessionRef, Budget] = {}
        self.notify: Callable[[SessionRef], None] = lambda _key: None
        self.act: Callable[[SessionRef], Awaitable[None]] = _leave_open
        """Answers the open actions of a session."""
        self.ring: Callable[[SessionRef], bool] = lambda _key: False
        """Rings a live session's runner; may be called from any thread. False where there is none to ring."""
        self.destinations: Callable[[str], Sequence[Destination]] = lambda _agent: ()
        """Whom an agent may write to."""

    # -- in

    async def put(self, key: SessionRef, rows: Sequence[MessageIn], provision: Callable[[], None]) -> None:
        """Writes rows into a session's mailbox, then rings or wakes it. Write precedes wake: a kill between loses
        nothing.

        `provision` makes the session's folder; it is called in the worker thread where there is none.
        """

        def work(mailbox: Mailbox) -> tuple[bool, str | None]:
            if not mailbox.exists():
                provision()
            mailbox.show_destinations(self.destinations(key.agent_group_id))
            mailbox.put(rows)
            return self.ring(key), mailbox.next_due()

        rung, due = await self._pool.call(key, work)
        self._due.set(key, due)
        for row in rows:
            if row.address is not None and row.trigger:
                self._listener.waiting(key, row.address, row.id)
        if not rung:
            self.notify(key)

    # -- out

    async def pull(
        self, key: SessionRef, *, counted: bool = True, ended: str | None = None, known: bytes | None = None
    ) -> Pulled | None:
        """Reads outbound.db and takes over what is new. None where its change counter is still `known`.

        `ended`: the runner is gone, for this reason, and its claims are judged. Raises what host.untrusted raises of a
        file that cannot be read (BadFile, JournalActive, TornSnapshot).
        """
        # What is taken over is committed before it is handed on: a caller that is cancelled in between would lose it.
        return await to_the_end(self._pull(key, counted=counted, ended=ended, known=known))

    async def _pull(self, key: SessionRef, *, counted: bool, ended: str | None, known: bytes | None) -> Pulled | None:
        if ended is None and self.is_full(key):
            return None  # the runner waits for us, as it does whenever its file is full
        folder = self._home.session_folder(key.agent_group_id, key.session_id)
        reserved: list[Address] = []
        spent: list[float] = []

        def reserve(address: Address) -> bool:
            if self._delivery.reserve(address):
                reserved.append(address)
                return True
            return False

        def work(mailbox: Mailbox) -> "_TakenOver | _WithFiles | None":
            image = _read(folder, spent)
            if image[COUNTER] == known and ended is None:
                return None
            snapshot = self._reader.read(image, mailbox.floor)
            spent.append(snapshot.spent_seconds)
            refusal = self._refusal(key, mailbox)
            listing = [row for row in snapshot.rows if names_of(row) and not mailbox.knows(row) and not refusal(row)]
            if listing:
                return _WithFiles(snapshot, image[COUNTER], listing)
            return take_over(mailbox, snapshot, image[COUNTER], {})

        def take_over(mailbox: Mailbox, snapshot: Snapshot, counter: bytes, refused: dict[str, str]) -> "_TakenOver":
            refusal = self._refusal(key, mailbox)
            taken = mailbox.take_over(
                snapshot,
                refusal=lambda row: refused.get(row.id) or refusal(row),
                reserve=reserve,
                counted=counted,
                ended=ended,
            )
            return _TakenOver(taken, counter, snapshot, mailbox.next_due())

        try:
            done = await self._pool.call(key, work)
            if isinstance(done, _WithFiles):
                # The files first: what is acted on must not be changed behind us. Only this session waits for them.
                counter = done.counter
                copies = await self._files.take(key, done.snapshot, done.rows)
                spent.append(copies.spent_seconds)
                done = await self._pool.call(key, lambda box: take_over(box, copies.snapshot, counter, copies.refused))
        except BaseException:
            self._delivery.release(reserved)
            raise
        finally:
            self._budgets.setdefault(key, Budget()).spend(self._clock.monotonic(), sum(spent))
        if done is None:
            return None
        taken, snapshot = done.taken, done.snapshot
        self._due.set(key, done.due)
        self._hand_on(key, taken)
        if taken.state is not None and ended is None:
            self._listener.state(key, taken.state)
        bad_rows, claims = len(taken.bad_rows), bool(snapshot.claims)
        return Pulled(taken.state, done.counter, bad_rows, taken.more, claims=claims, wake=taken.written_in)

    def cancelled(self, key: SessionRef, taken: TakeOver, due: str | None) -> None:
        """Rows of a session were cancelled: what follows is delivered, and when it is due is known."""
        self._due.set(key, due)
        self._hand_on(key, taken)

    def is_full(self, key: SessionRef) -> bool:
        """Whether so much of a session waits to be delivered that it has to wait itself."""
        return self._delivery.held(key) > MAX_HELD

    def files_removed(self, key: SessionRef) -> None:
        """Old files of a session were removed: what it has is counted again."""
        self._files.forget(key)

    def rest(self, key: SessionRef) -> float:
        """Seconds to wait before this session may be read again: reading costs it its own budget, never another's."""
        budget = self._budgets.get(key)
        return budget.delay(self._clock.monotonic()) if budget else 0.0

    def forget(self, key: SessionRef) -> None:
        """The session's sandbox has ended."""
        self._budgets.pop(key, None)
        self._listener.stopped(key)

    def _refusal(self, key: SessionRef, mailbox: Mailbox) -> Refusal:
        def refusal(row: MessageOut) -> str | None:
            if row.address is None:
                return None if row.kind == Kind.TASK else "It names no chat to go to."
            if row.address.channel_type == AGENT:
                # Who may is decided when it is delivered, by the grants of that moment (host.agent_mail).
                return "There is one way to other agents, and it has no account." if row.address.account_id else None
            if self._wirings.is_wired(key.agent_group_id, row.address) or mailbox.is_origin(row.address):
                return None
            return "This agent does not answer in that chat, so nothing was sent there."

        return refusal

    def _hand_on(self, key: SessionRef, taken: TakeOver) -> None:
        if taken.bad_rows:
            # One line a reading, however many there are: a container must not wash the log out.
            bad, others = taken.bad_rows[0], len(taken.bad_rows) - 1
            log.error(
                "a row of a session was set aside",
                session=key.session_id,
                row=bad.id,
                seq=bad.seq,
                reason=bad.reason,
                others=others,
            )
        for item in taken.items:
            self._listener.spoke(key, item.address)
        self._delivery.add(taken.items)
        for message_id, by in taken.carried_on:
            self._listener.carried_on(message_id, by)
        for message_id, completed in taken.finished:
            self._listener.finished(key, message_id, completed=completed)
        if taken.actions:
            asyncio.ensure_future(self.act(key))  # noqa: RUF006  an action that is lost is taken up at the next start

    # -- what went wrong

    async def fail_start(self, key: SessionRef, reason: str, *, retryable: bool = True) -> None:
        """A sandbox ended by itself without claiming anything."""
        await self._judged(key, lambda mailbox: mailbox.fail_start(reason, retryable=retryable))

    async def replace_bad(self, key: SessionRef, reason: str, *, uid: int | None, gid: int | None) -> None:
        """Sets a bad outbound mailbox aside, makes a fresh one, judges what was unfinished and tells the chat once."""
        folder = self._home.session_folder(key.agent_group_id, key.session_id)

        def work(mailbox: Mailbox) -> TakeOver:
            untrusted.replace_outbound(folder, self._clock.now(), uid, gid)
            empty = Snapshot((), (), None, (), more=False, spent_seconds=0.0)
            taken = mailbox.take_over(
                empty, refusal=lambda _: None, reserve=lambda _: False, counted=True, ended="its mailbox was damaged."
            )
            text = "My mailbox was damaged and has been replaced; I go on with what was unfinished."
            notice = mailbox.notice("bad mailbox", text)  # once for each message that waits, however often it happens
            if notice is not None:
                taken.items.append(notice)
            return taken

        log.error("an outbound mailbox was damaged and set aside", session=key.session_id, reason=reason)
        await self._judged(key, work)

    async def tell(self, key: SessionRef, cause: str, text: str) -> None:
        """A notice to the chat whose message waits longest, once per cause."""

        def work(mailbox: Mailbox) -> TakeOver:
            notice = mailbox.notice(cause, text)
            return TakeOver(items=[notice] if notice else [])

        await self._judged(key, work)

    async def _judged(self, key: SessionRef, work: Callable[[Mailbox], TakeOver]) -> None:
        def with_due(mailbox: Mailbox) -> tuple[TakeOver, str | None]:
            return work(mailbox), mailbox.next_due()

        async def judge() -> None:
            taken, due = await self._pool.call(key, with_due)
            self._due.set(key, due)
            self._hand_on(key, taken)

        await to_the_end(judge())

    async def has_work(self, key: SessionRef) -> bool:
        """Whether a due message waits in a session or is worked on."""
        return await self._pool.call(key, lambda mailbox: mailbox.has_open_rows())

    # -- at start

    def rests(self, key: SessionRef, due: str | None) -> None:
        """A session has nothing to take up, and is due then."""
        self._due.set(key, due)

    async def recover(self, key: SessionRef, *, ran: bool = False) -> None:
        """Opens a mailbox (which rolls its own journal back), queues what is undelivered and notes when it is due.

        `ran`: its runner may have done meanwhile what it seems to have missed, so `mend` comes after the adoption.
        """

        def work(mailbox: Mailbox) -> tuple[list[Item], bool, str | None]:
            if not ran:
                series.mend(mailbox, TakeOver())  # what it queues is open from then on
            return mailbox.open_items(), bool(mailbox.open_actions()), mailbox.next_due()

        items, asked, due = await self._pool.call(key, work)
        self._due.set(key, due)
        self._delivery.add(items)
        if asked:
            await self.act(key)
        await self._pool.forget(key)  # most sessions stay stopped; what is used is opened again

    async def mend(self, key: SessionRef) -> str | None:
        """The time of something passed a while ago without anybody: what is to be left out then is. Returns when the
        session is due, as Mailbox.next_due."""

        def work(mailbox: Mailbox) -> tuple[TakeOver, str | None]:
            taken = TakeOver()
            series.mend(mailbox, taken)
            return taken, mailbox.next_due()

        taken, due = await self._pool.call(key, work)
        self._due.set(key, due)
        self._delivery.add(taken.items)
        return due


async def _leave_open(_key: SessionRef) -> None:
    """Before there is anybody to act."""


def _read(folder: Path, spent: list[float]) -> bytes:
    """The image; what it cost goes to `spent`, also where it is torn or has been read before: whoever rings without end
    pays for every look."""
    began, used = time.monotonic(), time.thread_time()
    try:
        image = untrusted.read_outbound(folder / "outbound")
    except untrusted.TornSnapshot:
        spent.append(time.monotonic() - began)  # it waited in between, and held a thread of the pool for so long
        raise
    spent.append(time.thread_time() - used)
    return image


class DeliveryBooks:
    """host.delivery.Books over inbound.db and, for what has no session, the central host_outbox."""

    def __init__(self, pool: MailboxPool, database: CentralDatabase) -> None:
        self._pool = pool
        self._database = database

    async def record(self, item: Item, change: Change) -> list[Item]:
        """Commits how far an item has come. Returns the next occurrence of what recurs."""
        if item.session is None:
            columns = {
                "state": change.state.value,
                "state_changed": clock.to_text(self._database.clock.now()),
                "attempts": change.attempts,
                "chunks_done": change.chunks_done,
                "platform_ids": json.dumps(change.platform_ids),
                "unknown_count": change.unknown_count,
                "next_attempt_at": change.next_attempt_at,
            }
            if change.last_error is not None:
                columns["last_error"] = change.last_error
            await self._database.run(lambda c: host_outbox.change(c, item.id, **columns))
            return []
        return await self._pool.call(item.session, lambda mailbox: mailbox.record(item.id, change))

    async def failed(self, item: Item, error: str) -> Item | None:
        """Tells the agent, and the chat by a notice; the dead letter stays listed (`messages list --undelivered`)."""
        if item.session is None:
            return None
        return await self._pool.call(item.session, lambda mailbox: mailbox.tell_of_failure(item, error))

    async def target(self, item: Item, seq: int) -> Target | None:
        """The message of the item's session that has that seq."""
        if item.session is None:
            return None
        return await self._pool.call(item.session, lambda mailbox: mailbox.target(seq))

    async def files_of(self, item: Item) -> tuple[SentFile, ...]:
        """The files that were taken over with an item."""
        if item.session is None:
            return ()
        return await self._pool.call(item.session, lambda box: files_of(box.session_folder, box.db, item.id))
