"""What the host knows about single messages while it runs: typing signs, and who waits for the end of a turn."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import structlog

from host.channels.base import Channel, InboundEvent
from host.channels.terminal import ACCOUNT_ID, CHANNEL_TYPE, TerminalChannel
from host.db import ingest, sessions
from host.db.engine import CentralDatabase
from host.delivery import Delivery
from host.intake import message_id_of
from host.items import SessionRef
from host.mailbox_pool import MailboxPool
from mailboxes.clock import Clock
from mailboxes.rows import Address, InStatus

TYPING_REFRESH_SECONDS = 4.0
"""Telegram's sign goes after about 5 s; others are shown longer."""

TYPING_LIMIT_SECONDS = 3600.0
"""However a turn ends, its sign does not outlive the longest turn."""

CLEAR_SECONDS = 2.0

KEPT_KEYS = 10_000
"""Terminal messages whose end somebody may wait for."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class TypingSigns:
    """Shows that a session works on a message from an address, until it says something there or its sandbox ends."""

    def __init__(self, channels: Mapping[tuple[str, str], Channel], clock: Clock) -> None:
        self._channels = channels
        self._clock = clock
        self._signs: dict[tuple[SessionRef, Address], asyncio.Task[None]] = {}

    def start(self, key: SessionRef, address: Address) -> None:
        """Shows the sign where the platform has one."""
        channel = self._channels.get((address.channel_type, address.account_id))
        if channel is not None and channel.capabilities.typing and (key, address) not in self._signs:
            self._signs[key, address] = asyncio.create_task(self._show(channel, address))

    def stop(self, key: SessionRef, address: Address | None = None) -> None:
        """Clears the sign of a session at one address, or all of them."""
        for known in [sign for sign in self._signs if sign[0] == key and address in (None, sign[1])]:
            self._signs.pop(known).cancel()

    async def close(self) -> None:
        """Clears every sign."""
        tasks = list(self._signs.values())
        self._signs.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _show(self, channel: Channel, address: Address) -> None:
        until = self._clock.monotonic() + TYPING_LIMIT_SECONDS
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
    """host.postmaster.Listener: typing signs, and the word to a terminal that its message is dealt with."""

    def __init__(
        self,
        delivery: Delivery,
        signs: TypingSigns,
        terminal: TerminalChannel,
        database: CentralDatabase,
        pool: MailboxPool,
    ) -> None:
        self._delivery = delivery
        self._signs = signs
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
        if session_id is None or message_id is None:
            return True
        self.expect(message_id, event_key, address)
        session = await self._database.run(lambda c: sessions.get(c, session_id))
        if session is None:
            return True
        key = SessionRef(session.agent_group_id, session.id)
        status = await self._pool.call(key, lambda mailbox: mailbox.status_of(message_id) if mailbox.exists() else None)
        if status in (InStatus.COMPLETED, InStatus.FAILED):
            self.finished(key, message_id, completed=status == InStatus.COMPLETED)
        return None

    def waiting(self, key: SessionRef, address: Address) -> None:
        """A message from there is in a session's mailbox."""
        self._signs.start(key, address)

    def spoke(self, key: SessionRef, address: Address) -> None:
        """The session said something to there."""
        self._signs.stop(key, address)

    def finished(self, key: SessionRef, message_id: str, *, completed: bool) -> None:
        """A message is dealt with; its end is told once all that it brought about is delivered."""
        self._signs.stop(key)
        for event_key, address in self._keys.pop(message_id, ()):
            self._delivery.when_drained(address, self._teller(event_key, failed=not completed))

    def went_nowhere(self, event: InboundEvent, reason: str) -> None:
        """Routing has dropped a message, or refused it (the refusal is queued for delivery already)."""
        for event_key, address in self._keys.pop(message_id_of(event), ()):
            self._delivery.when_drained(address, self._teller(event_key, failed=True, reason=reason))

    def carried_on(self, message_id: str, by: str) -> None:
        """Whoever waits for a message waits for the one that goes on with it."""
        for event_key, address in self._keys.pop(message_id, ()):
            self.expect(by, event_key, address)

    def stopped(self, key: SessionRef) -> None:
        """Nobody works on its messages now."""
        self._signs.stop(key)

    def _teller(self, event_key: str, *, failed: bool, reason: str = "") -> Callable[[], None]:
        return lambda: self._terminal.settled(event_key, failed=failed, reason=reason)
