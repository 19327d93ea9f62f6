"""Taking events in: committed before the platform is told, then written to the mailbox, in order and until it works.

One transaction holds the event keys, the events (in the spool), the platform's offset and where each event goes: the
session and the message id are fixed there, so that doing the rest twice is doing it once. Accepts that wait at the same
moment share that transaction. A mailbox that cannot be written holds up its own session and nothing else.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from host import event_text
from host.channels.base import InboundEvent, NotTaken
from host.db import agent_groups, channel_offsets, host_outbox, ingest, ingest_spool, pending_questions, sessions, users
from host.db.engine import CentralDatabase
from host.db.ingest import Ingested
from host.db.ingest_spool import Spooled
from host.db.messaging_group_agents import BusyMode
from host.db.sessions import Session, SessionKey
from host.db.snapshot import Routing, RoutingSnapshot
from host.questions import Answer, Reply
from host.router import Command, Decision, Deliver, Drop, Refuse, Resolver, by_wiring, decide
from host.writers import Put, Routed, Writers
from mailboxes.clock import Clock, to_text
from mailboxes.commands import is_stop
from mailboxes.crash import crash_at
from mailboxes.ids import derived_id
from mailboxes.rows import Kind, MessageIn

_MAX_BATCH = 500
"""Accepts that share one transaction at most."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Commanded:
    """A command on its way to be carried out. It stays in the spool until it is, under `message_id`; it came `at`."""

    message_id: str
    event: InboundEvent
    command: Command
    at: str


class Desk(Protocol):
    """What the intake asks about open questions (host.question_desk)."""

    async def until_shown(self, events: Sequence[InboundEvent]) -> None:
        """Waits for the record of a card that was clicked as soon as it was there."""
        ...

    def answer_to(
        self, connection: Connection, event: InboundEvent, snapshot: RoutingSnapshot, settled: Sequence[str]
    ) -> Answer | Reply | None:
        """What an event means for the open questions; in the database thread."""
        ...

    def answered(self, answer: Answer) -> None:
        """An answer is committed."""
        ...


class _NoDesk:
    async def until_shown(self, events: Sequence[InboundEvent]) -> None:
        pass

    def answer_to(
        self,
        connection: Connection,  # noqa: ARG002
        event: InboundEvent,  # noqa: ARG002
        snapshot: RoutingSnapshot,  # noqa: ARG002
        settled: Sequence[str],  # noqa: ARG002
    ) -> None:
        return None

    def answered(self, answer: Answer) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Accept:
    """What one call of `accept` brought."""

    channel_type: str
    account_id: str
    events: Sequence[InboundEvent]
    offset: str | None
    future: asyncio.Future[None]


@dataclass(slots=True)
class _Plan:
    """The rows of one transaction, gathered first and written table by table."""

    keys: list[Ingested] = field(default_factory=list)
    spool: list[Spooled] = field(default_factory=list)
    people: dict[str, str | None] = field(default_factory=dict)
    refusals: list[tuple[str, InboundEvent, str]] = field(default_factory=list)
    routed: list[Routed] = field(default_factory=list)
    nowhere: list[tuple[InboundEvent, str]] = field(default_factory=list)
    arrived: list[tuple[InboundEvent, Routed]] = field(default_factory=list)
    answers: list[tuple[InboundEvent, Answer]] = field(default_factory=list)
    commands: list[Commanded] = field(default_factory=list)

    def add(self, other: "_Plan") -> None:
        """Takes over what is to be done after the commit."""
        self.people.update(other.people)
        self.refusals += other.refusals
        self.nowhere += other.nowhere
        self.routed += other.routed
        self.answers += other.answers
        self.commands += other.commands


def message_id_of(event: InboundEvent) -> str:
    """The id of the message that an event becomes: the same however often the event comes."""
    address = event.address
    return derived_id(f"{address.channel_type}\0{address.account_id}\0{event.event_key}", "message")


class Intake:
    """Between the channels and the mailboxes.

    `put` gets each message once, in order per session, different sessions at the same time; in `recover` maybe once
    more. `outbox_filled` is called when something for host_outbox was committed, `nowhere` with the committed events
    that go to no session and the reasons ("" where host_outbox has one for the sender), `commanded` with the commands
    to carry out, in recovery maybe once more, `carried_on` with the id of a message that became an answer and the
    answer's. `at_work`: whether a session (by id) works on a turn. `arrived`: committed messages, and whether theirs
    did.
    """

    def __init__(
        self,
        database: CentralDatabase,
        routing: Routing,
        clock: Clock,
        put: Put,
        *,
        resolvers: Sequence[Resolver] = (by_wiring,),
        outbox_filled: Callable[[], None] = lambda: None,
        nowhere: Callable[[Sequence[tuple[InboundEvent, str]]], None] = lambda _events: None,
        node: str | None = None,
        desk: Desk | None = None,
        commanded: Callable[[Sequence[Commanded]], None] = lambda _commands: None,
        carried_on: Callable[[str, str], None] = lambda _message, _by: None,
        at_work: Callable[[str], bool] = lambda _session: False,
        arrived: Callable[[InboundEvent, Routed], None] = lambda _event, _routed: None,
    ) -> None:
        self._desk = desk or _NoDesk()
        self._commanded = commanded
        self._carried_on = carried_on
        self._at_work = at_work
        self._arrived = arrived
        self._database = database
        self._routing = routing
        self._clock = clock
        self._resolvers = resolvers
        self._outbox_filled = outbox_filled
        self._nowhere = nowhere
        self._node = node
        self._waiting: deque[_Accept] = deque()
        self._committer: asyncio.Task[None] | None = None
        self._writers = Writers(database, clock, put, self._tell_that_it_waits)
        self._closing = False

    async def accept(
        self, channel_type: str, account_id: str, events: Sequence[InboundEvent], offset: str | None
    ) -> None:
        """Takes events of one channel account and its offset; returns when they are committed.

        Raises NotTaken, or what is wrong with the events, and then nothing was taken: the platform brings it again.
        """
        if self._closing:
            raise RuntimeError("the intake is closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        cleaned = [event_text.clean(event) for event in events]
        await self._desk.until_shown(cleaned)
        self._waiting.append(_Accept(channel_type, account_id, cleaned, offset, future))
        if self._committer is None:
            self._committer = asyncio.create_task(self._commit_waiting())
        await future

    async def recover(self) -> None:
        """Goes on where an earlier host stopped: what is spooled is written, what nobody routed is routed now."""
        plan = await self._database.run(self._recover_in)
        self._committed(plan)

    async def close(self) -> None:
        """Takes nothing more; finishes what is being written. What waits for a mailbox stays in the spool."""
        self._closing = True
        if self._committer is not None:
            await self._committer
        await self._writers.close()

    async def idle(self) -> None:
        """Returns when every accepted message is in its mailbox."""
        await self._writers.idle()

    # The transaction

    async def _commit_waiting(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MAX_BATCH))]
                await self._commit(batch)
        finally:
            self._committer = None

    async def _commit(self, batch: Sequence[_Accept]) -> None:
        try:
            plan = await self._database.run(lambda connection: self._take(connection, batch))
        except Exception as error:  # noqa: BLE001  it goes to who called accept
            if len(batch) > 1 and not isinstance(error, OperationalError):
                # One of them is bad, not the database: alone each stands or falls for itself.
                for accept in batch:
                    await self._commit([accept])
                return
            # Without the statement and its values, which hold what was said.
            failure = NotTaken(str(error.orig)) if isinstance(error, DBAPIError) else error
            for accept in batch:
                log.warning(
                    "events were not taken", channel=accept.channel_type, account=accept.account_id, reason=str(failure)
                )
                if not accept.future.done():
                    accept.future.set_exception(failure)
            return
        crash_at("after_ingest")
        for accept in batch:
            if not accept.future.done():
                accept.future.set_result(None)
        self._committed(plan)

    async def _tell_that_it_waits(self, routed: Routed, reason: str) -> None:
        message, now = routed.message, to_text(self._clock.now())
        text = f"Your message is here and waits, because I cannot write it down: {reason}. I keep trying."
        if (address := message.address) is not None:
            notice, content = derived_id(message.id, "waits"), event_text.dump({"text": text})
            await self._database.run(lambda connection: host_outbox.add(connection, notice, address, content, now))
            self._outbox_filled()

    def _committed(self, plan: _Plan) -> None:
        snapshot = self._routing.snapshot
        snapshot.display_names.update(plan.people)
        for routed in plan.routed:
            snapshot.session_ids[routed.session.key] = routed.session.id
            self._writers.add(routed)
        for event, answer in plan.answers:
            self._carried_on(message_id_of(event), answer.message_id)
            self._desk.answered(answer)
        for event, routed in plan.arrived:
            self._arrived(event, routed)
        if plan.refusals:
            self._outbox_filled()
        if plan.commands:
            self._commanded(plan.commands)
        if plan.nowhere:
            self._nowhere(plan.nowhere)

    def _take(self, connection: Connection, batch: Sequence[_Accept]) -> _Plan:
        """The whole transaction of a batch."""
        now = to_text(self._clock.now())
        fresh = _unknown_events(connection, batch)
        try:
            plan = self._plan(connection, fresh, now)
        except IntegrityError:
            # An agent or chat went away behind the snapshot's back.
            self._routing.refresh_in(connection)
            plan = self._plan(connection, fresh, now)
        ingest.record(connection, plan.keys)
        ingest_spool.add(connection, plan.spool)
        self._record(connection, plan, now)
        offsets = {(a.channel_type, a.account_id): a.offset for a in batch if a.offset is not None}
        channel_offsets.store(connection, offsets, now)
        return plan

    @staticmethod
    def _record(connection: Connection, plan: _Plan, now: str) -> None:
        users.create_users(connection, list(plan.people.items()), now)
        sessions.touch(connection, {routed.session.id for routed in plan.routed}, now)
        pending_questions.remove(connection, [answer.pending.question_id for _, answer in plan.answers])
        for message_id, event, text in plan.refusals:
            content = event_text.dump({"text": text})
            host_outbox.add(connection, derived_id(message_id, "refusal"), event.address, content, now)

    def _plan(self, connection: Connection, events: Iterable[InboundEvent], now: str) -> _Plan:
        plan, others = _Plan(), []
        for event in events:
            settled = [answer.pending.question_id for _, answer in plan.answers]
            answer = self._desk.answer_to(connection, event, self._routing.snapshot, settled)
            if answer is None:
                others.append(event)
            elif isinstance(answer, Reply):
                plan.refusals.append((answer.once, event, answer.text))
                plan.nowhere.append((event, ""))
                plan.keys.append(_ingested(event, None, None, now))
            else:
                self._answer(plan, event, answer, now)
        decided = [(event, self._decide(event)) for event in others]
        found = self._sessions(connection, [d.key for _, d in decided if isinstance(d, Deliver)], now)
        for event, decision in decided:
            message_id, session_id = message_id_of(event), None
            if isinstance(decision, Deliver):
                session = found[decision.key]
                session_id = session.id
                self._deliver(plan, event, message_id, decision, session, now)
                trigger = int(decision.trigger)
                plan.spool.append(Spooled(message_id, event_text.to_json(event), session_id, trigger, now))
            elif isinstance(decision, Command):
                plan.spool.append(Spooled(message_id, event_text.to_json(event), None, 0, now))
                plan.commands.append(Commanded(message_id, event, decision, now))
            else:
                self._not_delivered(plan, event, decision, message_id)
            known = session_id is not None or isinstance(decision, Command)
            plan.keys.append(_ingested(event, session_id, message_id if known else None, now))
        return plan

    def _decide(self, event: InboundEvent) -> Decision:
        snapshot = self._routing.snapshot
        decision = decide(event, snapshot, self._resolvers)
        if not isinstance(decision, Deliver) or event.kind not in {Kind.CHAT, Kind.CHAT_SDK} or not is_stop(event.text):
            return decision
        if not self._at_work(snapshot.session_ids.get(decision.key, "")):
            return decision
        return Command("/stop", "", decision.agent_group, decision.key, decision.principal)

    def _answer(self, plan: _Plan, event: InboundEvent, answer: Answer, now: str) -> None:
        session, row = answer.session, answer.event
        principal = row.sender.user_id(row.address.channel_type)
        message = _message(row, answer.message_id, True, principal, now)
        plan.answers.append((event, answer))
        plan.routed.append(Routed(session, answer.agent_group, message))
        plan.spool.append(Spooled(answer.message_id, event_text.to_json(row), session.id, 1, now))
        plan.keys.append(_ingested(event, session.id, answer.message_id, now))

    def _deliver(
        self, plan: _Plan, event: InboundEvent, message_id: str, decision: Deliver, session: Session, now: str
    ) -> None:
        names, name = self._routing.snapshot.display_names, event.sender.display_name
        if decision.principal not in names or (name is not None and names[decision.principal] != name):
            # A later event of this batch that carries no name does not take the name away again.
            plan.people[decision.principal] = name or plan.people.get(decision.principal)
        message = self._row(event, message_id, decision.trigger, session, decision.principal, now)
        arrived = self._clock.monotonic()
        routed = Routed(session, decision.agent_group, message, event.attachments, event.album, arrived)
        plan.routed.append(routed)
        plan.arrived.append((event, routed))

    def _row(
        self, event: InboundEvent, message_id: str, trigger: bool, session: Session, principal: str, now: str
    ) -> MessageIn:
        busy = self._routing.snapshot.busy_mode(session.agent_group_id, event.address)
        return _message(event, message_id, trigger, principal, now, busy)

    @staticmethod
    def _not_delivered(plan: _Plan, event: InboundEvent, decision: Decision, message_id: str) -> None:
        if isinstance(decision, Refuse):
            plan.refusals.append((message_id, event, decision.text))
            plan.nowhere.append((event, ""))
        elif isinstance(decision, Drop):
            plan.nowhere.append((event, decision.reason))
            address = event.address
            log.info(
                "a message was dropped",
                reason=decision.reason,
                channel=address.channel_type,
                account=address.account_id,
                chat=address.platform_id,
                event_key=event.event_key,
            )

    def _sessions(self, connection: Connection, keys: Sequence[SessionKey], now: str) -> dict[SessionKey, Session]:
        """The session of each key. The snapshot's ids are guesses: what they name is looked at, and only then used."""
        guesses = self._routing.snapshot.session_ids
        wanted = dict.fromkeys(keys)
        rows = sessions.get_many(connection, [guesses[key] for key in wanted if key in guesses])
        found: dict[SessionKey, Session] = {}
        for key in wanted:
            guess = rows.get(guesses.get(key, ""))
            if guess is not None and guess.status == "active" and guess.key == key:
                found[key] = guess
            else:
                with connection.begin_nested():  # its agent or chat may be gone; the transaction goes on
                    found[key] = sessions.find_or_create(connection, key, now, self._node)
        return found

    # After a restart

    def _recover_in(self, connection: Connection) -> _Plan:
        now = to_text(self._clock.now())
        plan = _Plan()
        for row in ingest_spool.every(connection):
            event = event_text.from_json(row.event)
            if row.session_id is None:
                self._route_late(connection, plan, row, event)
                continue
            session = sessions.get(connection, row.session_id)
            group = agent_groups.get(connection, session.agent_group_id) if session else None
            if session is None or group is None:
                log.error("the session of a message is gone", session=row.session_id, message=row.message_id)
                connection.execute(ingest_spool.FORGET, {"done": row.message_id})
                continue
            principal = event.sender.user_id(event.address.channel_type)
            message = self._row(event, row.message_id, bool(row.trigger), session, principal, row.received_at)
            plan.routed.append(Routed(session, group, message, event.attachments, event.album))
        self._record(connection, plan, now)
        return plan

    def _route_late(self, connection: Connection, plan: _Plan, row: Spooled, event: InboundEvent) -> None:
        late = self._plan(connection, [event], row.received_at)
        plan.add(late)
        connection.execute(ingest_spool.FORGET, {"done": row.message_id})
        ingest_spool.add(connection, late.spool)
        ingest.settle(connection, late.keys)


def _unknown_events(connection: Connection, batch: Sequence[_Accept]) -> list[InboundEvent]:
    """The events of a batch that were not taken in before, each once, in order."""
    by_account: dict[tuple[str, str], dict[str, InboundEvent]] = {}
    order: dict[tuple[str, str, str], InboundEvent] = {}
    for accept in batch:
        for event in accept.events:
            account = (event.address.channel_type, event.address.account_id)
            by_account.setdefault(account, {}).setdefault(event.event_key, event)
            order.setdefault((*account, event.event_key), event)
    for account, events in by_account.items():
        for key in ingest.known(connection, *account, list(events)):
            del order[(*account, key)]
    return list(order.values())


def _ingested(event: InboundEvent, session_id: str | None, message_id: str | None, now: str) -> Ingested:
    address = event.address
    return Ingested(address.channel_type, address.account_id, event.event_key, session_id, message_id, now)


def _message(
    event: InboundEvent,
    message_id: str,
    trigger: bool,
    principal: str,
    received_at: str,
    busy: BusyMode = BusyMode.STEER,
) -> MessageIn:
    return MessageIn(
        id=message_id,
        kind=event.kind,
        timestamp=received_at,
        content=event_text.content_of(event, busy),
        address=event.address,
        trigger=trigger,
        principal=principal,
    )
