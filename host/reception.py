"""How what people write comes in, and what the host says to it itself: the intake with the open questions, the commands
and the signs about it. A part of the composition root: it builds and connects, and decides nothing."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from host import sessions as session_folders
from host.attachments import Attachments
from host.broker.usage import Usage
from host.channels.base import Channel, InboundEvent
from host.chat_commands import ChatCommands, Means
from host.db.engine import CentralDatabase
from host.db.snapshot import Routing
from host.delivery import Delivery
from host.fleet import Fleet
from host.home import Home
from host.intake import Commanded, Intake
from host.items import SessionRef
from host.mailbox_pool import MailboxPool
from host.messages import MessageWatch
from host.postmaster import Postmaster
from host.progress import acknowledge
from host.question_desk import QuestionDesk
from host.questions import OPERATION
from host.recovery import open_outbox
from host.router import load_resolvers
from host.task_desk import TaskDesk
from host.writers import Routed
from mailboxes.clock import Clock
from mailboxes.rows import Activity, MessageIn


@dataclass(frozen=True, slots=True)
class Reception:
    """What takes part in it."""

    intake: Intake
    questions: QuestionDesk
    commands: ChatCommands
    errands: "Errands"

    async def recover(self) -> None:
        """Goes on where an earlier host stopped."""
        await self.questions.recover()
        await self.intake.recover()

    async def close(self) -> None:
        """Takes nothing more."""
        await self.intake.close()
        await self.commands.close()
        await self.questions.close()
        await self.errands.close()


@dataclass(frozen=True, slots=True)
class Parts:
    """What a reception stands on."""

    home: Home
    database: CentralDatabase
    routing: Routing
    clock: Clock
    pool: MailboxPool
    channels: Mapping[tuple[str, str], Channel]
    delivery: Delivery
    postmaster: Postmaster
    fleet: Fleet
    watch: MessageWatch
    attachments: Attachments
    tasks: TaskDesk
    usage: Callable[[], Mapping[tuple[str, str], Usage]]
    reset: Callable[[SessionRef], Awaitable[None]]


async def open_reception(parts: Parts) -> Reception:
    """Builds it; nothing runs yet."""
    errands = Errands()
    postmaster, delivery, watch, fleet = parts.postmaster, parts.delivery, parts.watch, parts.fleet

    async def write(key: SessionRef, rows: Sequence[MessageIn]) -> None:
        await postmaster.put(key, rows, lambda: None)  # its session has asked, so its folder is there

    questions = QuestionDesk(parts.database, parts.pool, parts.channels, parts.clock, write)
    delivery.presenters[OPERATION] = questions.present

    async def say() -> None:
        delivery.add(await parts.database.run(open_outbox))

    def settled(one: Commanded) -> None:
        watch.answered(one.event)

    commands = ChatCommands(
        Means(
            parts.database, parts.routing, parts.pool, fleet, postmaster, parts.clock, parts.reset, parts.tasks.tasks,
            parts.usage, lambda key, message_id: watch.finished(key, message_id, completed=False), say, settled,
        )
    )  # fmt: skip

    async def tell(events: Sequence[tuple[InboundEvent, str]]) -> None:
        await say()  # what the host has to say about them comes before their end
        for event, reason in events:
            watch.went_nowhere(event, reason)

    def at_work(session_id: str) -> bool:
        return any(
            life.state is not None and life.state.state != Activity.IDLE
            for key, life in fleet.live().items()
            if key.session_id == session_id
        )

    def arrived(event: InboundEvent, routed: Routed) -> None:
        channel = parts.channels.get((event.address.channel_type, event.address.account_id))
        if channel is None or not routed.message.trigger or not at_work(routed.session.id):
            return
        mode = parts.routing.snapshot.busy_mode(routed.session.agent_group_id, event.address)
        errands.begin(acknowledge(channel, event.address, event.message_id, mode))

    intake = Intake(
        parts.database,
        parts.routing,
        parts.clock,
        _putter(parts),
        resolvers=await asyncio.to_thread(load_resolvers),
        outbox_filled=lambda: errands.begin(say()),
        nowhere=lambda events: errands.begin(tell(events)),
        desk=questions,
        commanded=commands.take,
        carried_on=watch.carried_on,
        at_work=at_work,
        arrived=arrived,
    )
    return Reception(intake, questions, commands, errands)


def _putter(parts: Parts) -> Callable[[Sequence[Routed]], Awaitable[None]]:
    async def put(routed: Sequence[Routed]) -> None:
        session, group = routed[0].session, routed[0].agent_group
        key = SessionRef(session.agent_group_id, session.id)

        def provision() -> None:
            session_folders.provision(parts.home, session, group)

        async def write(messages: Sequence[MessageIn]) -> None:
            await parts.postmaster.put(key, messages, provision)

        async def provision_alone() -> None:
            await parts.pool.call(key, lambda _mailbox: provision())

        await parts.attachments.put(routed, write, provision_alone)

    return put


class Errands:
    """Short work that nobody waits for. What is lost of it in a crash is taken up at the next start."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[object, object, None]) -> None:
        """Has it done."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Lets it end."""
        await asyncio.gather(*self._running, return_exceptions=True)
