"""The composition root: builds every part and connects them. It decides nothing."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from host import event_text
from host import sessions as session_folders
from host.acting import Acting
from host.actions.authority import handlers
from host.actions.registry import Services, load_actions
from host.agent_grants import AgentGrants
from host.agent_mail import AgentMail
from host.attachments import Attachments, Tell
from host.broker.gateway import DEFAULT_BASE_URL, Gateway
from host.broker.keys import KeyStore
from host.broker.server import Broker
from host.channels.base import Channel
from host.channels.failing import FailingTerminal
from host.channels.terminal import CHANNEL_TYPE as TERMINAL
from host.control import ControlServer
from host.db import host_outbox, migrate
from host.db import settings as stored_settings
from host.db.engine import CentralDatabase, url_for
from host.db.snapshot import Routing
from host.delivery import Delivery
from host.due import DueIndex
from host.facts import Facts
from host.fleet import Fleet
from host.glance import reader as glance
from host.ground import Ground
from host.home import Home
from host.images import Images
from host.items import SessionRef
from host.log import HostLog, Secrets
from host.mailbox_index import MailboxIndex
from host.mailbox_pool import MailboxPool
from host.messages import MessageWatch, TypingSigns
from host.moving import finish_moves
from host.new_session import resetter
from host.postmaster import DeliveryBooks, Postmaster
from host.progress import ProgressLines
from host.quota import Quota
from host.reader import Reader
from host.reception import Parts, open_reception
from host.recovery import end_orphans, open_outbox
from host.retention import Retention
from host.runtime.base import Runtime, RuntimeName
from host.runtime.docker import DockerRuntime
from host.runtime.image import image_tag
from host.runtime.process import ProcessRuntime
from host.serving import Host, Stopping
from host.settings import CurrentSettings, Settings
from host.sweep import Sweep
from host.task_desk import TaskDesk
from host.task_methods import TaskMethods
from mailboxes.clock import Clock, to_text
from mailboxes.ids import derived_id, new_id
from mailboxes.rows import Address


async def assemble(home: Home, environment: Mapping[str, str], clock: Clock, stack: contextlib.AsyncExitStack) -> Host:
    """Opens what has to be open and connects the parts; `stack` closes them in reverse."""
    secrets = Secrets()
    host_log = HostLog(home.logs, secrets)
    await asyncio.to_thread(host_log.start)
    stack.push_async_callback(asyncio.to_thread, host_log.stop)
    reader = Reader()
    reading = asyncio.create_task(asyncio.to_thread(reader.start))  # its processes start while the database opens
    stack.push_async_callback(_close, reader, reading)
    database, settings, installation_id = await _open_database(home, environment, clock, stack)
    current, stopping = CurrentSettings(settings), Stopping()
    routing = Routing(database)
    await routing.refresh()
    await reading
    keys = KeyStore(environment, home.env_file, secrets.add)
    await keys.current()
    gateway = await asyncio.to_thread(Gateway, keys, environment.get("ANTHROPIC_BASE_URL", DEFAULT_BASE_URL))
    stack.push_async_callback(gateway.close)
    broker = Broker(gateway)
    stack.push_async_callback(broker.close)
    runtimes: dict[RuntimeName, Runtime] = {
        RuntimeName.DOCKER: DockerRuntime(installation_id, await asyncio.to_thread(image_tag), home.logs, clock),
        RuntimeName.PROCESS: ProcessRuntime(installation_id, home.logs, settings.unsafe_no_sandbox, clock),
    }
    for runtime in runtimes.values():
        stack.push_async_callback(runtime.close)
    channels: dict[tuple[str, str], Channel] = {}
    outcome = _Late[str, bool | None](None)
    terminal = FailingTerminal(outcome=outcome)
    evict = _Late[SessionRef, None](None)
    pool = MailboxPool(home, clock, evict, lambda: current.value.zone.key)
    stack.push_async_callback(pool.close)
    delivery = Delivery(channels, DeliveryBooks(pool, database), clock)
    stack.push_async_callback(delivery.close)
    terminal.pending = lambda: delivery.queued(TERMINAL)
    signs = TypingSigns(channels, clock)
    stack.push_async_callback(signs.close)
    progress = ProgressLines(delivery, channels, pool, clock)
    stack.push_async_callback(progress.close)
    watch = MessageWatch(delivery, signs, progress, terminal, database, pool)
    outcome.target = watch.outcome
    due = DueIndex()
    postmaster = Postmaster(home, pool, reader, delivery, routing, watch, clock, due)
    grants = AgentGrants(database, pool)
    await grants.load()
    postmaster.destinations = grants.of
    ground = Ground(home, database, keys, broker, runtimes, current, clock, _crash_environment(environment))
    fleet = Fleet(ground, postmaster, clock, current)
    postmaster.notify, postmaster.ring = fleet.notify, fleet.ring
    evict.target = fleet.evict
    desk = TaskDesk(pool, delivery, due, clock, lambda: current.value.zone.key, fleet.notify)
    reset = resetter(home, database, fleet, clock, desk.move)
    services = Services(home, database, routing, pool, postmaster, desk, reset, clock)
    asked = handlers(await asyncio.to_thread(load_actions), services)
    postmaster.act = Acting(pool, due, asked, fleet.notify, clock, session_folders.in_place_of(database)).answer
    index = MailboxIndex(home, glance(clock.now))
    attachments = Attachments(home, channels, clock, _teller(database, delivery, clock))
    images = Images(runtimes[RuntimeName.DOCKER], ground, current, clock)
    reception = await open_reception(
        Parts(
            home, database, routing, clock, pool, channels, delivery, postmaster, fleet, watch, attachments, desk,
            gateway.usage, reset,
        )
    )  # fmt: skip
    return Host(
        home, clock, stopping, database, routing, channels, terminal,
        AgentMail(home, database, pool, postmaster, clock, delivery.add), grants, ControlServer(home.control_socket),
        delivery,
        postmaster, reception,
        attachments, Retention(home, pool, clock, postmaster.files_removed),
        Quota(home, current, clock, fleet.live, lambda: routing.snapshot.agent_groups, postmaster.tell), fleet,
        Sweep(due, fleet, clock, lambda: end_orphans(runtimes, fleet), fleet.mend), TaskMethods(desk, database),
        lambda: finish_moves(database, index, desk.move, postmaster.recover), images, runtimes, watch,
        Facts(
            home, environment, database, routing, fleet, delivery, postmaster, pool, images, current, keys, clock,
            stopping.request, channels, ground.preferred, index),
        index,
    )  # fmt: skip


A = TypeVar("A")
R = TypeVar("R")


class _Late(Generic[A, R]):
    """A call whose target is built after its user, because the target stands on the user. Until then it answers
    `early`."""

    def __init__(self, early: R) -> None:
        self._early = early
        self.target: Callable[[A], Awaitable[R]] | None = None

    async def __call__(self, argument: A) -> R:
        return self._early if self.target is None else await self.target(argument)


async def _close(reader: Reader, reading: asyncio.Task[Reader]) -> None:
    await asyncio.wait([reading])
    await asyncio.to_thread(reader.close)


async def _open_database(
    home: Home, environment: Mapping[str, str], clock: Clock, stack: contextlib.AsyncExitStack
) -> tuple[CentralDatabase, Settings, str]:
    url = url_for(home, environment)
    if await asyncio.to_thread(migrate.pending, url):
        await asyncio.to_thread(migrate.migrate, home, url)
    database = CentralDatabase(url, clock)
    stack.push_async_callback(database.close)
    await database.start()
    now = to_text(clock.now())
    await database.run(lambda connection: session_folders.ensure_defaults(connection, home, now))
    values = await database.run(stored_settings.every)
    if "installation_id" not in values:
        values["installation_id"] = new_id("i")
        await database.run(
            lambda connection: stored_settings.store(connection, "installation_id", values["installation_id"])
        )
    settings = await asyncio.to_thread(Settings.from_sources, environment, values)  # it reads the file of a zone
    return database, settings, values["installation_id"]


def _teller(database: CentralDatabase, delivery: Delivery, clock: Clock) -> Tell:
    async def tell(cause: str, address: Address, text: str) -> None:
        content, notice_id, now = event_text.dump({"text": text}), derived_id(cause, "notice"), to_text(clock.now())
        await database.run(lambda c: host_outbox.add(c, notice_id, address, content, now))
        delivery.add(await database.run(open_outbox))

    return tell


def _crash_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Crash points of the runner, where a test names one."""
    names = {"INNKEEPER_RUNNER_CRASH_AT": "INNKEEPER_CRASH_AT", "INNKEEPER_RUNNER_CRASH_DIR": "INNKEEPER_CRASH_DIR"}
    return {inner: environment[outer] for outer, inner in names.items() if outer in environment}
