"""Taking events in: committed before the platform is told, then written to the mailbox, in order and until it works.

One transaction holds the event keys, the events (in the spool), the platform's offset and where each event goes: the
session and the message id are fixed there, so that doing the rest twice is doing it once. Accepts that wait at the same
moment share that transaction. A mailbox that cannot be written holds up its own session and nothing else.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from host import backoff, event_text
from host.channels.base import Attachment, InboundEvent, NotTaken
from host.db import agent_groups, channel_offsets, host_outbox, ingest, ingest_spool, sessions, users
from host.db.agent_groups import AgentGroup
from host.db.engine import CentralDatabase
from host.db.ingest import Ingested
from host.db.ingest_spool import Spooled
from host.db.sessions import Session, SessionKey
from host.db.snapshot import Routing
from host.items import InboundHeld
from host.router import Decision, Deliver, Drop, Refuse, Resolver, by_wiring, decide
from mailboxes.clock import Clock, to_text
from mailboxes.crash import crash_at
from mailboxes.ids import derived_id
from mailboxes.rows import MessageIn

_MAX_BATCH = 500
"""Accepts that share one transaction at most."""

_MAX_PUT = 100
"""Messages of one session that share one write of its mailbox at most."""

ALBUM_SECONDS = 1.5
_LONGEST_ALBUM_SECONDS = 10.0
"""How long after one picture of an album the next one is waited for, and after the first one at most: what a person
sends as one is one turn. It counts from their arrival, however long they take to be fetched."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Routed:
    """A message on its way into a mailbox. `message.seq` is 0: the inbox gives the number. `attachments` are still to
    be fetched; `arrived` is on the monotonic clock, 0 for what an earlier host took in."""

    session: Session
    agent_group: AgentGroup
    message: MessageIn
    attachments: tuple[Attachment, ...] = ()
    album: str | None = None
    arrived: float = 0.0


Put = Callable[[Sequence[Routed]], Awaitable[None]]
"""Writes messages of one session into its mailbox, all or none, then rings and wakes; a message id that is there is a
no-op. Tried again after an exception."""


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


def message_id_of(event: InboundEvent) -> str:
    """The id of the message that an event becomes: the same however often the event comes."""
    address = event.address
    return derived_id(f"{address.channel_type}\0{address.account_id}\0{event.event_key}", "message")


class Intake:
    """Between the channels and the mailboxes.

    `put` gets each message once, in order per session, different sessions at the same time; in `recover` maybe once
    more. `outbox_filled` is called when something for host_outbox was committed, `nowhere` with the committed events
    that go to no session and the reasons ("" where host_outbox has one for the sender).
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
    ) -> None:
        self._database = database
        self._routing = routing
        self._clock = clock
        self._put = put
        self._resolvers = resolvers
        self._outbox_filled = outbox_filled
        self._nowhere = nowhere
        self._node = node
        self._waiting: deque[_Accept] = deque()
        self._committer: asyncio.Task[None] | None = None
        self._queues: dict[str, deque[Routed]] = {}
        self._writers: dict[str, asyncio.Task[None]] = {}
        self._backing_off: set[str] = set()
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
        for session_id in self._backing_off:
            self._writers[session_id].cancel()
        await asyncio.gather(*self._writers.values(), return_exceptions=True)

    async def idle(self) -> None:
        """Returns when every accepted message is in its mailbox."""
        while self._writers:
            await asyncio.wait(self._writers.values())

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

    def _committed(self, plan: _Plan) -> None:
        snapshot = self._routing.snapshot
        snapshot.display_names.update(plan.people)
        for routed in plan.routed:
            snapshot.session_ids[routed.session.key] = routed.session.id
            self._enqueue(routed)
        if plan.refusals:
            self._outbox_filled()
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
        for message_id, event, text in plan.refusals:
            content = event_text.dump({"text": text})
            host_outbox.add(connection, derived_id(message_id, "refusal"), event.address, content, now)

    def _plan(self, connection: Connection, events: Iterable[InboundEvent], now: str) -> _Plan:
        plan = _Plan()
        decided = [(event, decide(event, self._routing.snapshot, self._resolvers)) for event in events]
        found = self._sessions(connection, [d.key for _, d in decided if isinstance(d, Deliver)], now)
        for event, decision in decided:
            message_id, session_id = message_id_of(event), None
            if isinstance(decision, Deliver):
                session = found[decision.key]
                session_id = session.id
                self._deliver(plan, event, message_id, decision, session, now)
                trigger = int(decision.trigger)
                plan.spool.append(Spooled(message_id, event_text.to_json(event), session_id, trigger, now))
            else:
                self._not_delivered(plan, event, decision, message_id)
            address = event.address
            plan.keys.append(
                Ingested(
                    address.channel_type,
                    address.account_id,
                    event.event_key,
                    session_id,
                    message_id if session_id else None,
                    now,
                )
            )
        return plan

    def _deliver(
        self, plan: _Plan, event: InboundEvent, message_id: str, decision: Deliver, session: Session, now: str
    ) -> None:
        names, name = self._routing.snapshot.display_names, event.sender.display_name
        if decision.principal not in names or (name is not None and names[decision.principal] != name):
            # A later event of this batch that carries no name does not take the name away again.
            plan.people[decision.principal] = name or plan.people.get(decision.principal)
        message = _message(event, message_id, decision.trigger, decision.principal, now)
        arrived = self._clock.monotonic()
        plan.routed.append(Routed(session, decision.agent_group, message, event.attachments, event.album, arrived))

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
            message = _message(event, row.message_id, bool(row.trigger), principal, row.received_at)
            plan.routed.append(Routed(session, group, message, event.attachments, event.album))
        self._record(connection, plan, now)
        return plan

    def _route_late(self, connection: Connection, plan: _Plan, row: Spooled, event: InboundEvent) -> None:
        late = self._plan(connection, [event], row.received_at)
        plan.people.update(late.people)
        plan.refusals += late.refusals
        plan.nowhere += late.nowhere
        plan.routed += late.routed
        connection.execute(ingest_spool.FORGET, {"done": row.message_id})
        ingest_spool.add(connection, late.spool)
        ingest.settle(connection, late.keys)

    # The mailboxes

    def _enqueue(self, routed: Routed) -> None:
        session_id = routed.session.id
        self._queues.setdefault(session_id, deque()).append(routed)
        if session_id not in self._writers and not self._closing:
            self._writers[session_id] = asyncio.create_task(self._write(session_id))

    async def _write(self, session_id: str) -> None:
        queue = self._queues[session_id]
        try:
            while queue and not self._closing:
                await self._until_albums_are_whole(queue)
                together = list(islice(queue, _MAX_PUT))
                await self._put_until_done(session_id, together)
                crash_at("after_put")
                for done in together:
                    queue.popleft()
                    self._database.ride(ingest_spool.FORGET, {"done": done.message.id})
        finally:
            del self._writers[session_id]
            if not queue:
                del self._queues[session_id]

    async def _until_albums_are_whole(self, queue: Iterable[Routed]) -> None:
        while not self._closing:
            arrived = [routed.arrived for routed in islice(queue, _MAX_PUT) if routed.album is not None]
            if not arrived:
                return
            until = min(max(arrived) + ALBUM_SECONDS, min(arrived) + _LONGEST_ALBUM_SECONDS)
            if (rest := until - self._clock.monotonic()) <= 0:
                return
            await self._clock.sleep(rest)

    async def _put_until_done(self, session_id: str, routed: Sequence[Routed]) -> None:
        tries = 0
        while True:
            try:
                await self._put(routed)
                return
            except (OSError, sqlite3.Error, InboundHeld) as error:
                log.warning(
                    "a mailbox cannot be written yet", session=session_id, messages=len(routed), reason=str(error)
                )
            except Exception:
                log.exception("a mailbox cannot be written yet", session=session_id, messages=len(routed))
            self._backing_off.add(session_id)
            try:
                if self._closing:
                    raise asyncio.CancelledError
                await self._clock.sleep(backoff.pause(tries + 1))
            finally:
                self._backing_off.discard(session_id)
            tries += 1


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


def _message(event: InboundEvent, message_id: str, trigger: bool, principal: str, received_at: str) -> MessageIn:
    return MessageIn(
        id=message_id,
        kind=event.kind,
        timestamp=received_at,
        content=event_text.content_of(event),
        address=event.address,
        trigger=trigger,
        principal=principal,
    )
