"""The host at work: every part, and the order in which they begin and end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from host.agent_grants import AgentGrants
from host.agent_mail import AgentMail
from host.attachments import Attachments
from host.channels.base import Channel, InboundEvent
from host.channels.terminal import TerminalChannel
from host.chats import Chats
from host.control import ControlServer
from host.db.engine import CentralDatabase
from host.db.snapshot import Routing
from host.delivery import Delivery
from host.facts import Facts
from host.fleet import Fleet
from host.home import Home
from host.images import Images
from host.mailbox_index import MailboxIndex
from host.messages import MessageWatch
from host.methods import register
from host.postmaster import Postmaster
from host.quota import Quota
from host.reception import Reception
from host.recovery import leave, recover
from host.retention import Retention
from host.runtime.base import Runtime, RuntimeName
from host.sweep import Sweep
from host.task_methods import TaskMethods
from mailboxes.clock import Clock

SETTLE_SECONDS = 5.0
"""How long an orderly stop waits for what is being sent."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Stopping:
    """The wish to stop."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.restart = False

    def request(self, restart: bool) -> None:
        """Begins an orderly stop."""
        self.restart = restart
        self.requested.set()


@dataclass(frozen=True, slots=True)
class Host:
    """Every part, built and not yet serving."""

    home: Home
    clock: Clock
    stopping: Stopping
    database: CentralDatabase
    routing: Routing
    channels: dict[tuple[str, str], Channel]
    terminal: TerminalChannel
    agent_mail: AgentMail
    agent_grants: AgentGrants
    control: ControlServer
    delivery: Delivery
    postmaster: Postmaster
    reception: Reception
    attachments: Attachments
    retention: Retention
    quota: Quota
    fleet: Fleet
    sweep: Sweep
    tasks: TaskMethods
    finish_moves: Callable[[], Awaitable[None]]
    images: Images
    runtimes: Mapping[RuntimeName, Runtime]
    watch: MessageWatch
    facts: Facts
    index: MailboxIndex

    @contextlib.asynccontextmanager
    async def serving(self, grace_seconds: float) -> AsyncIterator[None]:
        """Serves for as long as the block runs; the end is orderly: nothing new is taken, turns finish, sends
        finish."""
        register(self.control, self.facts)
        self.tasks.register(self.control)
        self.terminal.register(self.control)
        self.agent_grants.register(self.control)
        self.retention.register(self.control)
        Chats(self.database, self.routing).register(self.control)
        await self.control.start()
        try:
            await self.images.look()
            await recover(self.database, self.postmaster, self.delivery, self.fleet, self.runtimes, self.index)
            await self.finish_moves()
            await self.open_channel(self.terminal)
            await self.open_channel(self.agent_mail)
            await self.reception.recover()
            loops = [
                asyncio.create_task(_for_ever(work, self.clock), name=name)
                for name, work in (
                    ("fleet", self.fleet.run),
                    ("sweep", self.sweep.run),
                    ("questions", self.reception.questions.run),
                    ("images", self.images.run),
                    ("retention", self.retention.run),
                    ("quota", self.quota.run),
                )
            ]
            try:
                yield
            finally:
                self.attachments.close()
                await self.reception.close()
                await self.fleet.close(grace_seconds)
                await self.delivery.settle(SETTLE_SECONDS)
                await leave(self.database, self.index)
                for task in loops:
                    task.cancel()
                await asyncio.gather(*loops, return_exceptions=True)
        finally:
            for channel in self.channels.values():
                await channel.teardown()
            await self.control.stop()

    async def open_channel(self, channel: Channel) -> None:
        """Has a platform take part from now on; while `serving`, which closes it."""
        account = (channel.channel_type, channel.account_id)

        async def accept(events: Sequence[InboundEvent], offset: str | None) -> None:
            if channel is self.terminal:
                self.watch.accepted(events)
            await self.reception.intake.accept(*account, events, offset)

        self.channels[account] = channel
        await channel.setup(accept, self.delivery.attached)
        self.delivery.channels_changed()


async def _for_ever(work: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Runs a loop of the host; one that breaks is logged and begun again, because a host without it only looks
    healthy."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("a loop of the host broke and is begun again")
        await clock.sleep(1.0)
