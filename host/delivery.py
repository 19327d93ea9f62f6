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
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import structlog

from host.channels.base import Channel, EditingChannel, NobodyAttached, NotSent, OutcomeUnknown, Outgoing
from host.items import Change, Item, SessionRef, text_of
from host.splitting import split_text
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

_QUICKLY_SPLIT = 16_384
"""Characters that are split on the event loop; a longer text goes to a thread."""

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

    async def sent_as(self, item: Item, seq: int) -> list[str]:
        """The platform's ids of the session's message with that seq."""
        ...


def back_off(attempts: int, draw: Callable[[], float] = random.random) -> float:
    """Seconds to wait after `attempts` failed attempts (1 to 4); `draw` gives 0..1."""
    return BACK_OFF_SECONDS[attempts - 1] * (1 + JITTER * (2 * draw() - 1))


@dataclass(frozen=True, slots=True)
class _Marker:
    """Called when everything that was queued before it is done."""

    reached: Callable[[], None]


@dataclass(slots=True)
class _Lane:
    items: deque[Item | _Marker] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    nudge: asyncio.Event = field(default_factory=asyncio.Event)
    waiting_for: str = ""


class _GivenUp(Exception):
    """The item is a dead letter."""


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

    def _enqueue(self, address: Address, entry: Item | _Marker) -> None:
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
                else:
                    await self._deliver_or_log(entry, lane)
                    self._let_go(entry)
                lane.items.popleft()
            with self._lock:
                if not lane.items:
                    self._busy.discard(address)
                    del self._lanes[address]
                    return

    def _let_go(self, item: Item) -> None:
        self._known.discard(item.id)
        self._held[item.session] -= len(item.content)
        if not self._held[item.session]:
            del self._held[item.session]

    async def _deliver_or_log(self, item: Item, lane: _Lane) -> None:
        try:
            try:
                await self._deliver(item, lane)
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

    # -- one item

    async def _deliver(self, item: Item, lane: _Lane) -> None:
        await self._wait_until_due(item, lane)
        channel = await self._channel_for(item, lane)
        content = json.loads(item.content)
        operation = content.get("operation")
        if operation is not None:
            await self._operate(channel, str(operation), item, lane)
            return
        chunks = await self._chunks(channel, item)
        if not chunks:
            await self._record(item, DeliveryState.SENT)
        while item.chunks_done < len(chunks):
            number = item.chunks_done
            outgoing = Outgoing(item.id, number, chunks[number], last=number == len(chunks) - 1, notice=item.by_host)
            item, ids = await self._send(channel, item, outgoing, lane)
            item = replace(item, chunks_done=number + 1, platform_ids=(*item.platform_ids, *ids), unknown_count=0)
            if outgoing.last:
                crash_at("after_send")
                await self._record(item, DeliveryState.SENT, durable=False)
            else:
                # The intent of the next chunk rides on the record of this one.
                await self._record(item, DeliveryState.SENDING)
            item = replace(item, state=DeliveryState.SENDING, reserved=True)

    @staticmethod
    async def _chunks(channel: Channel, item: Item) -> list[str]:
        text, most, utf16 = text_of(item.kind, item.content), channel.capabilities.max_text, channel.capabilities.utf16
        if len(text) <= _QUICKLY_SPLIT:
            return split_text(text, most, utf16=utf16)
        # 240,000 line breaks behind an open fence take 0.15 s.
        return await asyncio.to_thread(split_text, text, most, utf16=utf16)

    async def _send(self, channel: Channel, item: Item, outgoing: Outgoing, lane: _Lane) -> tuple[Item, list[str]]:
        """Gets one chunk out, however often that takes. Raises _GivenUp."""
        address = item.address
        while True:
            if item.state == DeliveryState.UNKNOWN:
                if await self._arrived(channel, item, outgoing):
                    return item, []
                item = await self._count_unknown(item)
            item, ids = await self._attempt(item, lane, lambda: channel.deliver(address, outgoing))
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

    async def _operate(self, channel: Channel, operation: str, item: Item, lane: _Lane) -> None:
        run = _OPERATIONS.get(operation)
        if run is None:
            await self._record(item, DeliveryState.FAILED, error=f"there is no operation {operation!r}")
            raise _GivenUp(f"there is no operation {operation!r}")
        values = json.loads(item.content)
        target = values.get("messageId")
        ids = await self._books.sent_as(item, target) if isinstance(target, int) else []
        if not ids:
            await self._record(item, DeliveryState.FAILED, error=f"no sent message has the id {target!r}")
            raise _GivenUp(f"no sent message has the id {target!r}")
        address, done = item.address, None
        while done is None:
            item, done = await self._attempt(item, lane, lambda: run(channel, address, ids[-1], values))
        await self._record(item, DeliveryState.SENT, durable=False)


async def _edit(channel: Channel, address: Address, platform_id: str, values: Mapping[str, object]) -> list[str]:
    text = str(values.get("text", ""))
    if not channel.capabilities.edit:
        return await channel.deliver(address, Outgoing(f"edit-{platform_id}", 0, text))
    await cast("EditingChannel", channel).edit(address, platform_id, text)
    return [platform_id]


async def _react(channel: Channel, address: Address, platform_id: str, values: Mapping[str, object]) -> list[str]:
    if not channel.capabilities.reactions:
        raise NotSent("this platform shows no reactions", permanent=True)
    await cast("EditingChannel", channel).react(address, platform_id, str(values.get("emoji", "")))
    return [platform_id]


_OPERATIONS = {"edit": _edit, "reaction": _react}
"""What a row's `operation` may ask for beside an ordinary send."""
