"""A central database with agents, chats and people, and events to send through it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from host.channels.base import InboundEvent, Sender
from host.db import agent_groups, messaging_group_agents, messaging_groups, schema
from host.db.engine import CentralDatabase, make_engine
from host.db.snapshot import Routing
from host.home import Home
from host.intake import Intake
from host.items import SessionRef
from host.mailbox import Mailbox
from host.sessions import provision
from host.writers import Routed
from mailboxes.rows import Address
from tests.fakes.clock import FakeClock

ADA = Sender("1", "Ada")
NOW = "2026-01-01T00:00:00.000Z"


def event(
    key: str,
    text: str = "hello",
    *,
    chat: str = "7",
    thread: str | None = None,
    sender: Sender = ADA,
    mentioned: bool = False,
    is_group: bool = False,
    account: str = "bot",
) -> InboundEvent:
    """A message of a person in a chat of one Telegram bot."""
    address = Address("telegram", account, chat, thread)
    return InboundEvent(key, address, sender, text, mentioned=mentioned, is_group=is_group)


def agent(connection: Connection, name: str) -> str:
    """An agent whose id, name and folder are one."""
    return agent_groups.create(connection, name, name, name, NOW).id


def chat(connection: Connection, platform_id: str = "7", policy: str = "public") -> str:
    """A chat of the bot; its id is `c<platform id>`."""
    return messaging_groups.create(
        connection, f"c{platform_id}", "telegram", "bot", platform_id, NOW, unknown_sender_policy=policy
    ).id


def wire(connection: Connection, chat_id: str, agent_id: str, rules: object = None, **columns: object) -> None:
    """Has an agent answer in a chat; `rules` is the JSON value, or its text."""
    text = rules if rules is None or isinstance(rules, str) else json.dumps(rules)
    messaging_group_agents.create(
        connection,
        f"w-{chat_id}-{agent_id}",
        chat_id,
        agent_id,
        NOW,
        trigger_rules=text,
        **columns,  # type: ignore[arg-type]
    )


def luna_answers_in_7(connection: Connection) -> None:
    """The smallest world: one agent in one public chat."""
    wire(connection, chat(connection), agent(connection, "luna"))


@dataclass(slots=True)
class Inboxes:
    """Writes mailboxes as the host does, in worker threads; `broken` sessions' chats cannot be written."""

    home: Home
    clock: FakeClock
    broken: set[str] = field(default_factory=set)
    tries: int = 0
    failed: asyncio.Event = field(default_factory=asyncio.Event)
    woken: list[str] = field(default_factory=list)

    async def put(self, routed: Sequence[Routed]) -> None:
        """Provision, write, wake."""
        self.tries += 1
        address = routed[0].message.address
        if address is not None and address.platform_id in self.broken:
            self.failed.set()
            raise OSError("no space left on device")
        await asyncio.to_thread(self.write, routed)
        self.woken += [one.session.id for one in routed]

    def write(self, routed: Sequence[Routed]) -> None:
        """The blocking half."""
        session = routed[0].session
        folder = provision(self.home, session, routed[0].agent_group)
        mailbox = Mailbox(SessionRef(session.agent_group_id, session.id), folder, self.clock.now)
        try:
            mailbox.put([one.message for one in routed])
        finally:
            mailbox.close()


def prepare(path: Path, setup: Callable[[Connection], None]) -> str:
    """Makes a database file with `setup` in it; returns its URL."""
    url = f"sqlite:///{path}"
    engine = make_engine(url)
    schema.metadata.create_all(engine)
    with engine.begin() as connection:
        setup(connection)
    engine.dispose()
    return url


@dataclass(slots=True)
class Host:
    """The part of a host that takes messages in."""

    database: CentralDatabase
    routing: Routing
    intake: Intake
    inboxes: Inboxes

    async def accept(self, *events: InboundEvent, offset: str | None = None) -> None:
        """From the bot's channel."""
        await self.intake.accept("telegram", "bot", events, offset)

    async def settled(self) -> None:
        """Every accepted message is in its mailbox."""
        await asyncio.wait_for(self.intake.idle(), 30)


@asynccontextmanager
async def running(url: str, home: Home, clock: FakeClock) -> AsyncIterator[Host]:
    """A host over an existing database, from start to stop."""
    database = CentralDatabase(url, clock)
    await database.start()
    routing = Routing(database)
    await routing.refresh()
    inboxes = Inboxes(home, clock)
    intake = Intake(database, routing, clock, inboxes.put)
    await intake.recover()
    yield Host(database, routing, intake, inboxes)
    await intake.close()
    await database.close()
