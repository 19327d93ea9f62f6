"""Delivery: one lane per address, the intent committed before each chunk, back-off, dead letters. Nothing fails in
silence.

An item's record lies in its session's inbound.db (`deliveries`) or, for what belongs to no session, in the central
table `host_outbox`; `Books` hides which. A lane is drained by one task, so order holds per address and no row is sent
by two.
"""

import asyncio
import heapq
import json
import random
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, Protocol

import structlog

from host.channels.base import Channel, NobodyAttached, NotSent, OutcomeUnknown, Outgoing, SentFile
from host.items import Change, Item, SessionRef, Target
from host.operations import EDIT, OPERATIONS, CannotShow, Step, is_left_out, sending
from host.presenting import present
from mailboxes import clock as clocks
from mailboxes.crash import crash_at
from mailboxes.rows import Address, DeliveryState

BACK_OFF_SECONDS = (5, 25, 120, 600)
JITTER = 0.2
NOBODY = "nobody is attached"
"""Why a terminal's lane waits: no problem, just nobody there."""

MAX_ATTEMPTS = 5
"""Ledger R139: back-off with ±20 %, the fifth failed attempt makes a dead letter."""

MAX_UNKNOWN = 2
"""A chunk of unknown outcome is sent once more, and counted; unknown again, it is a dead letter."""

ASIDE_SECONDS = 5.0
"""What a courtesy may take of an address's time."""

_MAX_SEQ = 2**53  # a larger one is no id; a database would not even take it

_DEFERRED_CHECK_SECONDS = 60.0
"""The longest wait for what is due later, so that a wall clock that jumps is noticed."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Books(Protocol):
    """Where delivery's record is kept."""

    async def record(self, item: Item, change: Change) -> list[Item]:
        """Commits how far an item has come. What follows from it comes back: the next of what recurs."""
        ...

    async def failed(self, item: Item, error: str) -> Item | None:
        """An item became a dead letter: the agent is told, and the chat by the notice that comes back, once."""
        ...

    async def target(self, item: Item, seq: int) -> Target | None:
        """The message of the item's session that has that seq, as the model knows it."""
        ...

    async def files_of(self, item: Item) -> tuple[SentFile, ...]:
        """The files that were taken over with an item, as far as they are kept."""
        ...


Presenter = Callable[[Channel, Item], Awaitable[Sequence[Step]]]
"""Makes the steps of an operation that is a message of its own (a question). Raises CannotShow."""


def back_off(attempts: int, draw: Callable[[], float] = random.random) -> float:
    """Seconds to wait after `attempts` failed attempts (1 to 4); `draw` gives 0..1."""
    return BACK_OFF_SECONDS[attempts - 1] * (1 + JITTER * (2 * draw() - 1))


@dataclass(frozen=True, slots=True)
class _Marker:
    """Called when everything that was queued before it is done."""

    reached: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Aside:
    """What is done at an address in the order of its items and is on no record."""

    work: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Lane:
    items: deque[Item | _Marker | _Aside] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    waiting_for: str = ""


class _GivenUp(Exception):
    """The item is a dead letter."""


class _Behind(Exception):
    """What an item changes has not been sent: it comes after it."""

    def __init__(self, due: str | None) -> None:
        super().__init__(due)
        self.due = due


class Delivery:
    """Sends items through channels. `channels` maps (channel_type, account_id) to the adapter and may grow."""

    def __init__(self, channels: Mapping[tuple[str, str], Channel], books: Books, clock: clocks.Clock) -> None:
        self._channels = channels
        self._books = books
        self._clock = clock
        self._lanes: dict[Address, _Lane] = {}
        self._busy: set[Address] = set()
        self._lock = threading.Lock()
        self._later: list[tuple[str, int, Item]] = []
        self._later_changed = asyncio.Event()
        self._count = 0
        self._known: set[str] = set()
        self._held: Counter[SessionRef | None] = Counter()
        self._timer: asyncio.Task[None] | None = None
        self.presenters: dict[str, Presenter] = {}
        """By operation."""

    # -- reservations: asked from worker threads while a take-over commits

    def reserve(self, address: Address) -> bool:
        """Takes a free address, so that a take-over may commit the intent of its first row at once."""
        if (address.channel_type, address.account_id) not in self._channels:
            return False
        with self._lock:
            if address in self._busy:
                return False
            self._busy.add(address)
            return True

    def release(self, addresses: Iterable[Address]) -> None:
        """Gives reserved addresses back after a take-over that did not commit."""
        with self._lock:
            self._busy.difference_update(addresses)

    # -- the queue, on the event loop

    def add(self, items: Iterable[Item]) -> None:
        """Queues items in order; what is due later waits for its time, and what is queued already is left alone."""
        now = clocks.to_text(self._clock.now())
        for item in items:
            if item.id in self._known:
                continue
            self._known.add(item.id)
            self._held[item.session] += len(item.content)
            if item.due is not None and item.due > now and not item.reserved and item.attempts == 0:
                self._count += 1
                heapq.heappush(self._later, (item.due, self._count, item))
                self._later_changed.set()
                self._timer = self._timer or asyncio.create_task(self._wait_for_later(), name="deferred deliveries")
            else:
                self._enqueue(item.address, item)

    def withdraw(self, item_ids: Iterable[str]) -> None:
        """Lets go of items that wait for their time; whoever asks has cancelled or moved their record."""
        gone = set(item_ids)
        withdrawn = [item for _, _, item in self._later if item.id in gone]
        self._later = [entry for entry in self._later if entry[2].id not in gone]
        heapq.heapify(self._later)
        for item in withdrawn:
            self._let_go(item)

    def when_drained(self, address: Address, reached: Callable[[], None]) -> None:
        """Calls `reached` once all that is queued for an address by now is done."""
        self._enqueue(address, _Marker(reached))

    def aside(self, address: Address, work: Callable[[], Awaitable[None]]) -> None:
        """Has `work` done once all that is queued for an address by now is done, and nothing behind it before. It is a
        courtesy (a line that says how far the agent is): what it raises is logged, and it gets ASIDE_SECONDS."""
        self._enqueue(address, _Aside(work))

    def is_free(self, address: Address) -> bool:
        """Whether nothing is on its way to an address."""
        return address not in self._busy

    def attached(self, address: Address) -> None:
        """Somebody is there again: what waited for them goes on."""
        for known, lane in self._lanes.items():
            if (known.channel_type, known.account_id, known.platform_id) == (
                address.channel_type,
                address.account_id,
                address.platform_id,
            ):
                lane.nudge.set()

    def channels_changed(self) -> None:
        """An adapter came: what waited for one goes on."""
        for lane in self._lanes.values():
            lane.nudge.set()

    def waiting(self) -> dict[Address, str]:
        """The addresses that are held up, with the reason in a few words."""
        return {address: lane.waiting_for for address, lane in self._lanes.items() if lane.waiting_for}

    def queued(self, channel_type: str) -> int:
        """How many items of a platform wait or are being sent now."""
        lanes = (lane for address, lane in self._lanes.items() if address.channel_type == channel_type)
        return sum(isinstance(entry, Item) for lane in lanes for entry in lane.items)

    def held(self, session: SessionRef) -> int:
        """Characters of a session's that are queued here, in memory."""
        return self._held[session]

    async def settle(self, seconds: float) -> None:
        """Waits until nothing is being sent, at most that long; what is in back-off or waits for somebody stays
        queued."""
        sending = [lane.task for lane in self._lanes.values() if lane.task and not lane.waiting_for]
        if sending:
            await asyncio.wait(sending, timeout=seconds)

    async def close(self) -> None:
        """Stops; everything unsent is on record."""
        tasks = [task for task in (self._timer, *(lane.task for lane in self._lanes.values())) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _enqueue(self, address: Address, entry: Item | _Marker | _Aside) -> None:
        with self._lock:
            self._busy.add(address)
        lane = self._lanes.setdefault(address, _Lane())
        lane.items.append(entry)
        if lane.task is None:
            lane.task = asyncio.create_task(self._drain(address, lane), name=f"delivery {address.platform_id}")

    async def _wait_for_later(self) -> None:
        while True:
            self._later_changed.clear()
            now = self._clock.now()
            while self._later and self._later[0][0] <= clocks.to_text(now):
                item = heapq.heappop(self._later)[2]
                self._enqueue(item.address, item)
            wait = _DEFERRED_CHECK_SECONDS
            if self._later:
                wait = min(wait, (clocks.from_text(self._later[0][0]) - now).total_seconds())
            await self._sleep_or(self._later_changed, wait)

    async def _sleep_or(self, event: asyncio.Event, seconds: float) -> None:
        """Returns when the event is set or the time is over, whichever comes first."""
        sleeper = asyncio.ensure_future(self._clock.sleep(seconds))
        waiter = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((sleeper, waiter), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeper.cancel()
            waiter.cancel()

    async def _drain(self, address: Address, lane: _Lane) -> None:
        while True:
            while lane.items:
                entry = lane.items[0]
                if isinstance(entry, _Marker):
                    entry.reached()
                elif isinstance(entry, _Aside):
                    await self._do_aside(address, entry)
                else:
                    again = await self._deliver_or_log(entry, lane)
                    self._let_go(entry)
                    self.add([again] if again else [])
                lane.items.popleft()
            with self._lock:
                if not lane.items:
                    self._busy.discard(address)
                    del self._lanes[address]
                    return

    @staticmethod
    async def _do_aside(address: Address, aside: _Aside) -> None:
        try:
            async with asyncio.timeout(ASIDE_SECONDS):
                await aside.work()
        except Exception as error:  # noqa: BLE001  a courtesy that fails must not hold up what comes behind it
            log.info("a courtesy failed", channel=address.channel_type, reason=f"{type(error).__name__}: {error}")

    def _let_go(self, item: Item) -> None:
        self._known.discard(item.id)
        self._held[item.session] -= len(item.content)
        if not self._held[item.session]:
            del self._held[item.session]

    async def _deliver_or_log(self, item: Item, lane: _Lane) -> Item | None:
        """Returns the item where it has to come again."""
        try:
            try:
                await self._deliver(item, lane)
            except _Behind as behind:
                await self._record(item, DeliveryState.QUEUED, next_attempt_at=behind.due)
                return replace(item, state=DeliveryState.QUEUED, reserved=False, due=behind.due)
            except _GivenUp as given_up:
                log.error(  # noqa: TRY400  the sentence says it all
                    "delivery failed for good",
                    delivery=item.id,
                    session=item.session and item.session.session_id,
                    reason=str(given_up),
                )
                notice = await self._books.failed(item, str(given_up))
                self.add([notice] if notice else [])
        except Exception:
            # The outermost edge of a lane: a fault of ours with one item must not stop those behind it. Its record
            # still says `sending`, so the next start takes it up again.
            log.exception("delivery broke", delivery=item.id, session=item.session and item.session.session_id)
        return None

    # -- one item

    async def _deliver(self, item: Item, lane: _Lane) -> None:
        await self._wait_until_due(item, lane)
        channel = await self._channel_for(item, lane)
        steps = await self._steps(channel, item)
        if not steps:
            await self._record(item, DeliveryState.SENT)
        while item.chunks_done < len(steps):
            number = item.chunks_done
            item, ids = await self._send(channel, item, steps[number], lane)
            await steps[number].done(ids)
            item = replace(item, chunks_done=number + 1, platform_ids=(*item.platform_ids, *ids), unknown_count=0)
            if item.chunks_done == len(steps):
                crash_at("after_send")
                await self._record(item, DeliveryState.SENT, durable=False)
            else:
                # The intent of the next chunk rides on the record of this one.
                await self._record(item, DeliveryState.SENDING)
            item = replace(item, state=DeliveryState.SENDING, reserved=True)

    async def _steps(self, channel: Channel, item: Item) -> list[Step]:
        """What has to be called for an item, one after the other. Raises _GivenUp, _Behind."""
        values = json.loads(item.content)
        operation = values.get("operation")
        if operation is None:
            files = await self._books.files_of(item) if "files" in values else ()  # most have none to be looked for
            chunks = await present(channel.capabilities, item, files)
        elif operation in self.presenters:
            try:
                return list(await self.presenters[operation](channel, item))
            except CannotShow as error:
                await self._give_up(item, str(error))
        else:
            return await self._operation(channel, str(operation), item, values)
        return [sending(channel, item.address, chunk) for chunk in chunks]

    async def _send(self, channel: Channel, item: Item, step: Step, lane: _Lane) -> tuple[Item, list[str]]:
        """Gets one step done, however often that takes. Raises _GivenUp."""
        while True:
            if item.state == DeliveryState.UNKNOWN:
                if step.outgoing is not None and await self._arrived(channel, item, step.outgoing):
                    return item, []
                item = await self._count_unknown(item)
            item, ids = await self._attempt(item, lane, step.run)
            if ids is not None:
                return item, ids

    async def _attempt(
        self, item: Item, lane: _Lane, send: Callable[[], Awaitable[list[str]]]
    ) -> tuple[Item, list[str] | None]:
        """One attempt, with its intent on record first; None where there has to be another. Raises _GivenUp."""
        if not item.reserved:
            await self._record(item, DeliveryState.SENDING)
        item = replace(item, reserved=False)
        lane.nudge.clear()  # whoever attaches from here on ends the wait below, even before it begins
        crash_at("before_send")
        try:
            return item, await send()
        except NobodyAttached:
            await self._record(item, DeliveryState.QUEUED)
            await self._wait(lane, NOBODY)
        except NotSent as error:
            item = await self._not_sent(item, error, lane)
        except OutcomeUnknown as error:
            item = await self._unknown(item, str(error))
        except Exception as error:  # an adapter may raise what its library raises: the outcome is then not known
            log.exception("the adapter broke while sending", delivery=item.id, channel=item.address.channel_type)
            item = await self._unknown(item, f"{type(error).__name__}: {error}")
        return item, None

    async def _arrived(self, channel: Channel, item: Item, outgoing: Outgoing) -> bool:
        try:
            return await channel.was_sent(item.address, outgoing) is True
        except Exception:  # what cannot be asked now counts as a platform that cannot be asked
            log.exception("the adapter broke while asking", delivery=item.id, channel=item.address.channel_type)
            return False

    async def _count_unknown(self, item: Item) -> Item:
        if item.unknown_count >= MAX_UNKNOWN:
            error = "it is not known whether it arrived, twice"
            await self._record(item, DeliveryState.FAILED, error=error)
            raise _GivenUp(error)
        log.warning(
            "sending again what may have arrived", delivery=item.id, session=item.session and item.session.session_id
        )
        return replace(item, state=DeliveryState.QUEUED)

    async def _unknown(self, item: Item, error: str) -> Item:
        item = replace(item, state=DeliveryState.UNKNOWN, unknown_count=item.unknown_count + 1)
        final = item.unknown_count >= MAX_UNKNOWN
        await self._record(item, DeliveryState.FAILED if final else DeliveryState.UNKNOWN, error=error)
        if final:
            raise _GivenUp(f"it is not known whether it arrived, twice: {error}")
        return item

    async def _not_sent(self, item: Item, error: NotSent, lane: _Lane) -> Item:
        item = replace(item, attempts=item.attempts + 1, state=DeliveryState.QUEUED)
        if error.permanent or item.attempts >= MAX_ATTEMPTS:
            await self._record(item, DeliveryState.FAILED, error=str(error))
            raise _GivenUp(str(error))
        wait = max(back_off(item.attempts), error.retry_after or 0)
        due = clocks.later(self._clock.now(), wait)
        await self._record(item, DeliveryState.QUEUED, error=str(error), next_attempt_at=due)
        log.warning(
            "not sent, trying again", delivery=item.id, attempts=item.attempts, seconds=round(wait), reason=str(error)
        )
        lane.waiting_for = f"in back-off: {error}"
        await self._clock.sleep(wait)
        lane.waiting_for = ""
        return item

    async def _wait_until_due(self, item: Item, lane: _Lane) -> None:
        """After a restart a back-off goes on where it was, but never longer than it can be."""
        if item.due is None or item.reserved:
            return
        left = (clocks.from_text(item.due) - self._clock.now()).total_seconds()
        if left > 0:
            lane.waiting_for = "in back-off"
            await self._clock.sleep(min(left, BACK_OFF_SECONDS[-1] * (1 + JITTER)))
            lane.waiting_for = ""

    async def _channel_for(self, item: Item, lane: _Lane) -> Channel:
        """The adapter; "no adapter" is not "sent", so the lane waits for one."""
        key = (item.address.channel_type, item.address.account_id)
        while key not in self._channels:
            lane.nudge.clear()
            await self._wait(lane, f"there is no channel {key[0]}")
        return self._channels[key]

    async def _wait(self, lane: _Lane, reason: str) -> None:
        lane.waiting_for = reason
        await lane.nudge.wait()
        lane.waiting_for = ""

    async def _record(
        self,
        item: Item,
        state: DeliveryState,
        *,
        error: str | None = None,
        next_attempt_at: str | None = None,
        durable: bool = True,
    ) -> None:
        change = Change(
            state,
            item.attempts,
            item.chunks_done,
            item.platform_ids,
            item.unknown_count,
            next_attempt_at,
            error,
            durable,
        )
        self.add(await self._books.record(item, change))

    # -- edits and reactions

    async def _operation(self, channel: Channel, name: str, item: Item, values: Mapping[str, object]) -> list[Step]:
        make = OPERATIONS.get(name)
        if make is None:
            await self._give_up(item, f"there is no operation {name!r}")
        if is_left_out(name, channel.capabilities):
            log.info("a platform cannot show this", delivery=item.id, operation=name)
            return []
        seq = values.get("messageId")
        target = await self._books.target(item, seq) if isinstance(seq, int) and 0 < seq <= _MAX_SEQ else None
        if target is None:
            await self._give_up(item, f"no message has the id {seq!r}")
        if target.address != item.address:
            await self._give_up(item, f"the message with the id {seq!r} is in another chat")
        if target.id in self._known:
            raise _Behind(target.due)
        if not target.platform_ids:
            await self._give_up(item, f"no sent message has the id {seq!r}")
        if name == EDIT and not target.ours:
            await self._give_up(item, f"the message with the id {seq!r} is somebody else's")
        return await make(channel, item, target, values)

    async def _give_up(self, item: Item, reason: str) -> NoReturn:
        await self._record(item, DeliveryState.FAILED, error=reason)
        raise _GivenUp(reason)
