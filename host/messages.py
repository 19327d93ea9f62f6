"""What the host knows about single messages while it runs: typing signs, and who waits for the end of a turn."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from host.channels.base import Channel, InboundEvent
from host.channels.terminal import ACCOUNT_ID, CHANNEL_TYPE, TerminalChannel
from host.db import ingest, sessions
from host.db.engine import CentralDatabase
from host.delivery import Delivery
from host.intake import message_id_of
from host.items import SessionRef
from host.mailbox_pool import MailboxPool
from host.progress import ProgressLines
from mailboxes.clock import Clock
from mailboxes.rows import Activity, Address, InStatus, RunnerState

TYPING_REFRESH_SECONDS = 4.0
"""Telegram's sign goes after about 5 s; others are shown longer."""

TYPING_PAUSE_SECONDS = 10.0
"""After something was said; a turn that goes on for longer is shown again."""

TYPING_LIMIT_SECONDS = 3600.0
"""However a turn ends, its sign does not outlive the longest turn."""

CLEAR_SECONDS = 2.0

KEPT_KEYS = 10_000
"""Terminal messages whose end somebody may wait for."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Sign:
    """For the messages of one address. `task` is None while nobody works on them."""

    channel: Channel
    messages: set[str] = field(default_factory=set)
    task: asyncio.Task[None] | None = None


class TypingSigns:
    """Shows that a session works on messages of an address: from their arrival to their end, but for a pause after each
    thing that it says there, and for the time without a sandbox."""

    def __init__(self, channels: Mapping[tuple[str, str], Channel], clock: Clock) -> None:
        self._channels = channels
        self._clock = clock
        self._signs: dict[tuple[SessionRef, Address], _Sign] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(self, key: SessionRef, address: Address, message_id: str) -> None:
        """Shows the sign for a message, where the platform has one."""
        channel = self._channels.get((address.channel_type, address.account_id))
        if channel is None or not channel.capabilities.typing:
            return
        sign = self._signs.setdefault((key, address), _Sign(channel))
        sign.messages.add(message_id)
        if sign.task is None:
            self._show(sign, address)

    def spoke(self, key: SessionRef, address: Address) -> None:
        """Something was said: that is sign enough for a while."""
        sign = self._signs.get((key, address))
        if sign is not None and sign.task is not None and not sign.task.done():
            self._hide(sign)
            self._show(sign, address, TYPING_PAUSE_SECONDS)

    def done(self, key: SessionRef, message_id: str) -> None:
        """A message is dealt with."""
        for known, sign in [(known, sign) for known, sign in self._signs.items() if known[0] == key]:
            sign.messages.discard(message_id)
            if not sign.messages:
                del self._signs[known]
                self._hide(sign)

    def carried_on(self, message_id: str, by: str) -> None:
        """A message goes on as another."""
        for sign in self._signs.values():
            if message_id in sign.messages:
                sign.messages.add(by)
                sign.messages.discard(message_id)

    def rest(self, key: SessionRef) -> None:
        """Nobody works on a session's messages now."""
        for known, sign in self._signs.items():
            if known[0] == key:
                self._hide(sign)

    def work(self, key: SessionRef) -> None:
        """Somebody works again."""
        for (known, address), sign in self._signs.items():
            if known == key and sign.task is None:
                self._show(sign, address)

    async def close(self) -> None:
        """Clears every sign."""
        for sign in self._signs.values():
            self._hide(sign)
        self._signs.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _show(self, sign: _Sign, address: Address, pause: float = 0.0) -> None:
        sign.task = asyncio.create_task(self._keep(sign.channel, address, pause))

    def _hide(self, sign: _Sign) -> None:
        task, sign.task = sign.task, None
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _keep(self, channel: Channel, address: Address, pause: float) -> None:
        until = self._clock.monotonic() + TYPING_LIMIT_SECONDS
        if pause:
            await self._clock.sleep(pause)
        try:
            while self._clock.monotonic() < until:
                await channel.typing(address, active=True)
                await self._clock.sleep(TYPING_REFRESH_SECONDS)
        except Exception:  # a sign is a courtesy: a platform that refuses it must not end anything else
            log.exception("typing sign failed", channel=address.channel_type)
        finally:
            await self._clear(channel, address)

    async def _clear(self, channel: Channel, address: Address) -> None:
        """A platform that does not answer must not hold up the end of the host."""
        try:
            async with asyncio.timeout(CLEAR_SECONDS):
                await channel.typing(address, active=False)
        except Exception:
            log.exception("typing sign could not be cleared", channel=address.channel_type)


class MessageWatch:
    """host.postmaster.Listener: typing signs, progress lines, and the word to a terminal that its message is dealt
    with."""

    def __init__(
        self,
        delivery: Delivery,
        signs: TypingSigns,
        progress: ProgressLines,
        terminal: TerminalChannel,
        database: CentralDatabase,
        pool: MailboxPool,
    ) -> None:
        self._delivery = delivery
        self._signs = signs
        self._progress = progress
        self._terminal = terminal
        self._database = database
        self._pool = pool
        self._keys: OrderedDict[str, list[tuple[str, Address]]] = OrderedDict()

    def accepted(self, events: Sequence[InboundEvent]) -> None:
        """Terminal events whose end will be told."""
        for event in events:
            self.expect(message_id_of(event), event.event_key, event.address)

    def expect(self, message_id: str, event_key: str, address: Address) -> None:
        """Somebody waits for the end of this message."""
        self._keys.setdefault(message_id, []).append((event_key, address))
        while len(self._keys) > KEPT_KEYS:
            self._keys.popitem(last=False)

    async def outcome(self, event_key: str) -> bool | None:
        """What a terminal asks that attaches again: True for a message that went nowhere, None for one whose end will
        be told (at once, where it is dealt with and all that it brought about is delivered)."""
        address = Address(CHANNEL_TYPE, ACCOUNT_ID, event_key.partition(":")[0])
        found = await self._database.run(lambda c: ingest.destination(c, CHANNEL_TYPE, ACCOUNT_ID, event_key))
        if found is None:
            return None
        session_id, message_id = found
        if message_id is None:
            return True
        if session_id is None:
            return False  # a command, which the host carries out in any case
        self.expect(message_id, event_key, address)
        session = await self._database.run(lambda c: sessions.get(c, session_id))
        if session is None:
            return True
        key = SessionRef(session.agent_group_id, session.id)
        status = await self._pool.call(key, lambda mailbox: mailbox.status_of(message_id) if mailbox.exists() else None)
        if status in (InStatus.COMPLETED, InStatus.FAILED):
            self.finished(key, message_id, completed=status == InStatus.COMPLETED)
        return None

    def waiting(self, key: SessionRef, address: Address, message_id: str) -> None:
        """A message from there is in a session's mailbox."""
        self._signs.start(key, address, message_id)

    def state(self, key: SessionRef, state: RunnerState) -> None:
        """What a session's runner says it is doing."""
        if state.state == Activity.BUSY:
            self._signs.work(key)
        self._progress.state(key, state)

    def spoke(self, key: SessionRef, address: Address) -> None:
        """The session said something to there."""
        self._signs.spoke(key, address)
        self._progress.spoke(key, address)

    def finished(self, key: SessionRef, message_id: str, *, completed: bool) -> None:
        """A message is dealt with; its end is told once all that it brought about is delivered."""
        self._signs.done(key, message_id)
        self._settle(message_id, failed=not completed)

    def answered(self, event: InboundEvent) -> None:
        """The host itself has answered a message; what it says is queued for delivery."""
        self._settle(message_id_of(event), failed=False)

    def _settle(self, message_id: str, *, failed: bool, reason: str = "") -> None:
        for event_key, address in self._keys.pop(message_id, ()):
            self._delivery.when_drained(address, self._teller(event_key, failed=failed, reason=reason))

    def went_nowhere(self, event: InboundEvent, reason: str) -> None:
        """Routing has dropped a message, or refused it (the refusal is queued for delivery already)."""
        self._settle(message_id_of(event), failed=True, reason=reason)

    def carried_on(self, message_id: str, by: str) -> None:
        """Whoever waits for a message waits for the one that goes on with it."""
        self._signs.carried_on(message_id, by)
        for event_key, address in self._keys.pop(message_id, ()):
            self.expect(by, event_key, address)

    def stopped(self, key: SessionRef) -> None:
        """Nobody works on its messages now."""
        self._signs.rest(key)
        self._progress.over(key)

    def _teller(self, event_key: str, *, failed: bool, reason: str = "") -> Callable[[], None]:
        return lambda: self._terminal.settled(event_key, failed=failed, reason=reason)
