"""What a person sees of a turn before its answer comes: one line that says how far it is, and a sign on a message that
came while the agent was at work.

The line goes through delivery's lane of its address, so it is never after the answer: what is queued when the answer
comes sees that it is over, and what was sent before is taken back behind it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import structlog

from host.channels.base import Button, Channel, EditingChannel, Outgoing, RemarkingChannel
from host.db.messaging_group_agents import BusyMode
from host.delivery import ASIDE_SECONDS, Delivery
from host.items import SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from host.router import STOP_BUTTON
from mailboxes.clock import Clock
from mailboxes.rows import Activity, Address, RunnerState

FIRST_SECONDS = 15.0
"""A turn that is done sooner says nothing of itself."""

AGAIN_SECONDS = 3.0
"""Platforms bound how often a message may be edited."""

_WORDS = {
    BusyMode.STEER: ("\N{EYES}", "The running turn gets this too."),
    BusyMode.QUEUE: ("\N{OK HAND SIGN}", "This waits until the running turn is over."),
    BusyMode.INTERRUPT: ("\N{HIGH VOLTAGE SIGN}", "The running turn is given up for this."),
}
"""A reaction that Telegram has as well, and the same as a line."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Line:
    turn_id: str
    since: float
    tools: int = 0
    over: bool = False
    address: Address | None = None
    shown_as: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class ProgressLines:
    """One line a session at most. Nothing here ever blocks or raises."""

    def __init__(
        self, delivery: Delivery, channels: Mapping[tuple[str, str], Channel], pool: MailboxPool, clock: Clock
    ) -> None:
        self._delivery = delivery
        self._channels = channels
        self._pool = pool
        self._clock = clock
        self._lines: dict[SessionRef, _Line] = {}

    def state(self, key: SessionRef, state: RunnerState) -> None:
        """What a runner says it is doing."""
        line = self._lines.get(key)
        if line is not None and (state.state == Activity.IDLE or line.turn_id != state.turn_id):
            self.over(key)
            line = None
        if state.state != Activity.BUSY or state.turn_id is None or state.open_questions:
            return
        if line is None:
            line = self._lines[key] = _Line(state.turn_id, self._clock.monotonic())
            line.task = asyncio.create_task(self._follow(key, line), name=f"progress {key.session_id}")
        if line.tools != state.active_tools:
            line.tools = state.active_tools
            line.changed.set()

    def spoke(self, key: SessionRef, address: Address) -> None:
        """The session said something: the line has done its work for this turn."""
        line = self._lines.get(key)
        if line is not None and (line.address in (None, address)):
            self._end(line)

    def over(self, key: SessionRef) -> None:
        """The turn, or its sandbox, has ended."""
        line = self._lines.pop(key, None)
        if line is not None:
            self._end(line)

    async def close(self) -> None:
        """Takes every line back, as far as there is time."""
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for key in list(self._lines):
            self.over(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, line: _Line) -> None:
        if line.over:
            return
        line.over = True
        if line.task is not None:
            line.task.cancel()
        channel = self._channel(line.address) if line.address is not None else None
        if line.address is None or channel is None:
            return
        if isinstance(channel, RemarkingChannel):
            channel.progress(line.address, "")
        else:
            # Once more round the loop, so that the answer stands before it in the lane.
            asyncio.get_running_loop().call_soon(self._take_back, channel, line, line.address)

    def _take_back(self, channel: Channel, line: _Line, address: Address) -> None:
        async def work() -> None:
            if line.shown_as is None:
                return
            editing, shown, line.shown_as = cast("EditingChannel", channel), line.shown_as, None
            if channel.capabilities.delete:
                await editing.delete(address, shown)
            else:
                await editing.edit(address, shown, f"That took {self._clock.monotonic() - line.since:.0f} s.")

        self._delivery.aside(address, work)

    def _channel(self, address: Address) -> Channel | None:
        return self._channels.get((address.channel_type, address.account_id))

    # -- one line

    async def _follow(self, key: SessionRef, line: _Line) -> None:
        await self._clock.sleep(FIRST_SECONDS)
        try:
            address = await self._pool.call(key, _works_for)
        except Exception as error:  # noqa: BLE001  a damaged mailbox is told of elsewhere
            log.info("no progress line", session=key.session_id, reason=str(error))
            return
        channel = self._channel(address) if address is not None else None
        if address is None or channel is None or line.over:
            return
        if isinstance(channel, RemarkingChannel):
            line.address = address
            while True:
                channel.progress(address, self._text(line))
                await self._clock.sleep(AGAIN_SECONDS)
        elif channel.capabilities.edit:
            line.address = address
            while True:
                line.changed.clear()
                self._delivery.aside(address, lambda: self._show(key, channel, address, line))
                await self._clock.sleep(AGAIN_SECONDS)
                await line.changed.wait()

    async def _show(self, key: SessionRef, channel: Channel, address: Address, line: _Line) -> None:
        if line.over:
            return
        text = self._text(line)
        buttons = (Button("Stop", f"{STOP_BUTTON}{key.session_id}"),) if channel.capabilities.buttons else ()
        if line.shown_as is not None:
            await cast("EditingChannel", channel).edit(address, line.shown_as, text, buttons)
            return
        outgoing = Outgoing(f"progress-{line.turn_id}", 0, text, notice=True, buttons=buttons)
        ids = await channel.deliver(address, outgoing)
        line.shown_as = ids[-1] if ids else None

    def _text(self, line: _Line) -> str:
        tools = {0: "", 1: ", one tool runs"}.get(line.tools, f", {line.tools} tools run")
        return f"\N{HOURGLASS} I have been working for {self._clock.monotonic() - line.since:.0f} s{tools}."


def _works_for(mailbox: Mailbox) -> Address | None:
    """The chat for whose people a session works now; None for a task of its own."""
    rows = mailbox.rows("status='processing' AND platform_id IS NOT NULL AND series_id IS NULL")
    return rows[-1].address if rows else None


async def acknowledge(channel: Channel, address: Address, message_id: str | None, mode: BusyMode) -> None:
    """Shows on a message that came during a turn what becomes of it: a reaction where the platform has them, a line in
    the terminal. A courtesy: it raises nothing."""
    reaction, words = _WORDS[mode]
    if isinstance(channel, RemarkingChannel):
        channel.remark(address, words)
    elif channel.capabilities.reactions and message_id is not None:
        try:
            async with asyncio.timeout(ASIDE_SECONDS):
                await cast("EditingChannel", channel).react(address, message_id, reaction)
        except Exception as error:  # noqa: BLE001  whatever the platform says to this, the message is in its place
            log.info("no reaction", channel=address.channel_type, reason=f"{type(error).__name__}: {error}")
