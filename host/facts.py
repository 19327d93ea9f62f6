"""What the control socket tells and does: implements host.methods.HostFacts over the parts of the running host."""

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import structlog
from sqlalchemy import Connection

from host import __version__, views
from host import sessions as session_folders
from host.broker.keys import KeyStore
from host.channels.base import Channel
from host.channels.terminal import ACCOUNT_ID as TERMINAL_ACCOUNT
from host.channels.terminal import CHANNEL_TYPE as TERMINAL_TYPE
from host.channels.terminal import chat_of
from host.db import agent_groups, host_outbox
from host.db import settings as stored_settings
from host.db.agent_groups import AgentGroup, AgentGroupRefused
from host.db.engine import CentralDatabase, query_on, sqlite_path
from host.db.snapshot import Routing
from host.delivery import NOBODY, Delivery
from host.failure import Code, Failure
from host.fleet import Fleet
from host.ground import default_provider
from host.home import Home
from host.images import Images
from host.items import Item, SessionRef, item_of
from host.looking import Looker, look, look_offline, undelivered_of_host
from host.mailbox import Mailbox
from host.mailbox_index import MailboxIndex
from host.mailbox_pool import MailboxPool
from host.places import PATIENCE_SECONDS
from host.postmaster import Postmaster
from host.runtime.base import RuntimeName, RuntimeUnavailable
from host.runtime.image import BuildFailed
from host.settings import CurrentSettings, Settings
from host.views import Query
from mailboxes.clock import Clock, to_text
from mailboxes.rows import AGENT, Address

T = TypeVar("T")
Row = dict[str, object]

SANDBOX_WORDS = {RuntimeName.DOCKER: "container", RuntimeName.PROCESS: "process"}
"""One word for users, one for the code."""

LIMITS_HOLD = {
    RuntimeName.DOCKER: "",
    RuntimeName.PROCESS: " Memory is limited for each program of a sandbox, the processor for none.",
}
"""What a person has to know of the limits of a sandbox: those for all of it are an engine's to set."""

MIN_FREE_BYTES = 32 * 1024**2
"""With less on the disk of the home, `status` says that it is full."""

MOST_IN_QUEUE = 5
"""So many of the sessions that wait for a place are named."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Facts:
    """See the module. Changes are logged with the OS user who asked."""

    def __init__(
        self,
        home: Home,
        environment: Mapping[str, str],
        database: CentralDatabase,
        routing: Routing,
        fleet: Fleet,
        delivery: Delivery,
        postmaster: Postmaster,
        pool: MailboxPool,
        images: Images,
        settings: CurrentSettings,
        keys: KeyStore,
        clock: Clock,
        request_stop: Callable[[bool], None],
        channels: Mapping[tuple[str, str], Channel],
        preferred: Callable[[], RuntimeName],
        index: MailboxIndex,
    ) -> None:
        self._home = home
        self._environment = environment
        self._database = database
        self._routing = routing
        self._fleet = fleet
        self._delivery = delivery
        self._postmaster = postmaster
        self._pool = pool
        self._images = images
        self._settings = settings
        self._keys = keys
        self._clock = clock
        self._request_stop = request_stop
        self._channels = channels
        self._preferred = preferred
        self._since = to_text(clock.now())
        self._index = index

    async def status(self) -> Row:
        """Local facts, at once, in the shape of `host.looking.stopped_status`."""
        counts = await self._query(views.facts)
        undelivered = await self._count_undelivered()
        live = self._fleet.live()
        return {
            "host": {
                "state": "running",
                "pid": os.getpid(),
                "since": self._since,
                "version": __version__,
                "home": str(self._home.root),
            },
            "problems": self._problems() + await asyncio.to_thread(_disk_problems, self._home),
            "warnings": self._warnings(),
            "model": await self._model(),
            "sandbox": {
                "kind": SANDBOX_WORDS[self._preferred()],
                "live": len(live),
                "busy": sum(1 for one in live.values() if one.busy),
                "limit": self._settings.value.max_sandboxes,
                "waiting": len(self._fleet.queued()),
                "detail": f"Containers: {self._images.state}.{LIMITS_HOLD[self._preferred()]}",
            },
            "channels": [
                {"name": channel_type, "account": account, "healthy": health.healthy, "detail": health.detail}
                for (channel_type, account), channel in self._channels.items()
                if channel_type != AGENT
                for health in [channel.health()]
            ],
            "agents": counts.agents,
            "sessions": dict(counts.sessions),
            "messages": {
                "arriving": counts.spooled,
                "undelivered": undelivered,
            },
        }

    async def _model(self) -> Row:
        settings = self._settings.value
        provider = settings.provider or default_provider(has_key=await self._keys.current() is not None)
        return {"provider": provider, "model": settings.model or None}

    def _problems(self) -> list[Row]:
        """What is wrong now, a sentence each and the next step."""
        see = "See: host logs"
        found: list[Row] = [
            {"what": f"Session {key.session_id} does not run: {reason}{self._again(key)}", "next": see}
            for key, reason in self._fleet.problems.items()
        ]
        found += [
            {
                "what": f"The mailbox of session {key.session_id} cannot be used: {reason}. What comes in waits.",
                "next": "Put back a copy of its folder in sessions/, or remove it: it begins anew then.",
            }
            for key, reason in self._pool.broken.items()
        ]
        found += [
            {"what": f"What goes to {_name(address)} waits: {why}.", "next": see}
            for address, why in self._delivery.waiting().items()
            if why != NOBODY
        ]
        if self._images.problem and self._settings.value.runtime != "auto":
            found.append({"what": self._images.problem, "next": "No agent runs until then."})
        return found

    def _warnings(self) -> list[Row]:
        """What works and could be better."""
        found: list[Row] = [
            {"what": f"Session {key.session_id} had trouble and went on: {reason}", "next": "See: host logs"}
            for key, reason in self._fleet.incidents.items()
        ]
        found += self._queue()
        if self._images.problem and self._settings.value.runtime == "auto":
            meanwhile = "" if self._images.state == "ready" else "Agents run as processes until then."
            found.append({"what": self._images.problem, "next": meanwhile})
        return found

    def _again(self, key: SessionRef) -> str:
        """When a session that is held back is tried again, as a sentence."""
        seconds = self._fleet.again_in(key)
        return "" if seconds is None else f" It is tried again in {seconds:.0f} s."

    def _queue(self) -> list[Row]:
        """Who has waited for a place for longer than anybody should, first come first."""
        places = self._settings.value.max_sandboxes
        late = [(key, waits) for key, waits in self._fleet.queued_for().items() if waits > PATIENCE_SECONDS]
        found: list[Row] = [
            {
                "what": f"Session {key.session_id} has waited for a place for {waits:.0f} s: all {places} are taken.",
                "next": "More places: host config set max_sandboxes NUMBER",
            }
            for key, waits in late[:MOST_IN_QUEUE]
        ]
        if len(late) > MOST_IN_QUEUE:
            others = len(late) - MOST_IN_QUEUE
            found.append({"what": f"So have {others} more sessions.", "next": ""})
        return found

    async def _count_undelivered(self) -> int:
        def facts_and_keys(query: Query) -> tuple[views.Facts, list[tuple[str, str]]]:
            return views.facts(query), views.session_keys(query)

        facts, keys = await self._query(facts_and_keys)
        of_sessions = await asyncio.to_thread(self._index.undelivered, keys)
        return of_sessions + undelivered_of_host(facts)

    async def view(self, name: str, params: Mapping[str, object]) -> object:
        """A read-only view."""
        return await self._look(name, params)

    async def add_agent(self, name: str, folder: str, actor: str) -> Row:
        """Makes an agent with its folder from the template and its chat in the terminal."""
        now = to_text(self._clock.now())
        try:
            group = await self._database.run(lambda c: add_agent(c, self._home, name, folder, now))
        except AgentGroupRefused as refused:
            raise Failure(Code.REFUSED, str(refused)) from None
        await self._routing.refresh()
        log.info("agent added", agent=group.id, actor=actor)
        found = await self._query(lambda query: views.agent(query, group.id))
        assert found is not None
        return found

    async def retry_message(self, message_id: str, actor: str) -> Row:
        """Gives a failed message, or an undelivered one, another chance."""
        row = await self._look("messages.show", {"id": message_id})
        if not isinstance(row, dict):
            raise Failure(Code.NOT_FOUND, f"There is no message {message_id}.", "See: host messages list")
        full_id = str(row["id"])
        if row["session"] is None:
            await self._retry_own(full_id)
        else:
            await self._retry_of_session(SessionRef(str(row["agent_group_id"]), str(row["session"])), full_id)
        log.info("message tried again", message=full_id, actor=actor)
        found = await self._look("messages.show", {"id": full_id})
        assert isinstance(found, dict)
        return found

    async def _retry_own(self, message_id: str) -> None:
        """The same for what the host itself said (`host_outbox`)."""
        now = to_text(self._clock.now())
        row = await self._database.run(lambda c: host_outbox.retry(c, message_id, now))
        if row is None:
            raise _not_failed(message_id)
        self._delivery.add([item_of(row, None)])

    async def _retry_of_session(self, key: SessionRef, full_id: str) -> None:

        def retry(mailbox: Mailbox) -> tuple[bool, Item | None]:
            return mailbox.retry_message(full_id), mailbox.retry_delivery(full_id)

        again, item = await self._pool.call(key, retry)
        if item is not None:
            self._delivery.add([item])
        elif again:
            self._fleet.notify(key)
        else:
            raise _not_failed(full_id)

    async def set_setting(self, name: str, value: str | None, actor: str) -> None:
        """Stores a setting, or with None takes it back to its default; in force at the next start of a sandbox."""

        def change(connection: Connection) -> dict[str, str]:
            if value is None:
                stored_settings.unset(connection, name)
            else:
                stored_settings.store(connection, name, value)
            return stored_settings.every(connection)

        stored = await self._database.run(change)
        self._settings.value = Settings.from_sources(self._environment, stored)
        log.info("setting changed", setting=name, actor=actor)

    async def build_image(self, progress: Callable[[object], Awaitable[None]]) -> Row:
        """Builds today's image."""
        try:
            tag, built = await self._images.make_ready(progress)
        except (BuildFailed, RuntimeUnavailable) as failed:
            raise Failure(Code.FAILED, str(failed)) from None
        return {"tag": tag, "built": built}

    def request_stop(self, *, restart: bool) -> None:
        """Begins an orderly stop."""
        self._request_stop(restart)

    async def _look(self, name: str, params: Mapping[str, object]) -> object:
        """A view. It may read every mailbox, so with SQLite it runs in a thread of its own and not in the
        database's."""
        if sqlite_path(self._database.url) is not None:
            return await asyncio.to_thread(look_offline, name, params, self._home, self._environment)
        return await self._query(lambda query: look(name, params, Looker(query, self._home, self._environment)))

    async def _query(self, look: Callable[[Query], T]) -> T:
        return await self._database.run(lambda connection: look(query_on(connection)))


def add_agent(
    connection: Connection, home: Home, name: str, folder: str, now: str, *, agent_id: str | None = None
) -> AgentGroup:
    """A new agent with its folder, which answers in a terminal chat of its own. Raises AgentGroupRefused."""
    if any(folder == known.folder for known in agent_groups.every(connection)):
        raise AgentGroupRefused(f"There is an agent in the folder {folder} already. Choose another name.")
    group = session_folders.add_agent_group(connection, home, name, folder, now, agent_id=agent_id)
    address = Address(TERMINAL_TYPE, TERMINAL_ACCOUNT, chat_of(folder))
    chat = session_folders.add_chat(connection, address, now, name=f"terminal, {name}")
    session_folders.wire(connection, chat, group, now)
    return group


def _disk_problems(home: Home) -> list[Row]:
    free = shutil.disk_usage(home.root).free
    if free >= MIN_FREE_BYTES:
        return []
    what = f"The disk of {home.root} is full: {free // 1024**2} MiB are left."
    return [{"what": what, "next": "Make room. What waits goes on by itself."}]


def _not_failed(message_id: str) -> Failure:
    return Failure(Code.REFUSED, f"Message {message_id} has not failed, so there is nothing to try again.")


def _name(address: Address) -> str:
    return f"{address.platform_id} on {address.channel_type}"
