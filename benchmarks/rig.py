"""A real host in this process, with a platform that stamps when it hands a message over and is handed an answer."""

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from sqlalchemy import Connection

from host import sessions as session_folders
from host.assembly import assemble
from host.channels.base import Accept, Capabilities, Health, InboundEvent, Outgoing, Sender
from host.db import agent_groups, messaging_groups, sessions, settings
from host.db.agent_groups import AgentGroup
from host.db.sessions import Session, SessionKey
from host.home import Home, find_home
from host.items import SessionRef
from host.lock import home_lock
from host.runtime.base import Runtime, RuntimeName
from host.runtime.image import build, image_exists, image_tag
from host.serving import Host
from mailboxes.clock import SystemClock, to_text
from mailboxes.ids import new_id
from mailboxes.rows import Address

TMPFS = Path("/dev/shm")
DISK = Path("/var/tmp")
"""Both are folders that every Linux has; the second is on a disk."""

CHANNEL_TYPE, ACCOUNT_ID = "bench", "only"
ANSWER_SECONDS = 60.0
PREFIX = "(rehearsal, no model) "
CI_BASE = "innkeeper-ci-base"
_PERSON = Sender("1", "Ada")
_numbers = itertools.count()


class BenchChannel:
    """host.channels.base.Channel. T0 is taken before `accept` is called, T1 when `deliver` is entered."""

    channel_type = CHANNEL_TYPE
    account_id = ACCOUNT_ID
    capabilities = Capabilities(max_text=64_000)

    def __init__(self) -> None:
        self._accept: Accept | None = None
        self._delivered: dict[str, asyncio.Future[float]] = {}
        self.texts: list[str] = []

    async def setup(self, accept: Accept, attached: Callable[[Address], None]) -> None:
        """Starts receiving."""
        del attached
        self._accept = accept

    async def teardown(self) -> None:
        """Stops receiving."""
        self._accept = None

    def health(self) -> Health:
        """Always well."""
        return Health(healthy=True)

    async def deliver(self, address: Address, outgoing: Outgoing) -> list[str]:
        """Stamps the answer."""
        del address
        entered = time.perf_counter()
        self.texts.append(outgoing.text)
        waiting = self._delivered.pop(outgoing.text, None)
        if waiting is not None:
            waiting.set_result(entered)
        return [f"{outgoing.delivery_id}/{outgoing.chunk}"]

    async def was_sent(self, address: Address, outgoing: Outgoing) -> bool | None:
        """It cannot be asked."""
        del address, outgoing
        return None

    async def typing(self, address: Address, active: bool) -> None:
        """It has no sign."""

    async def say(self, chat: str, text: str) -> float:
        """Hands one event over; T0 in seconds."""
        assert self._accept is not None
        address = Address(CHANNEL_TYPE, ACCOUNT_ID, chat)
        event = InboundEvent(f"{chat}:message:{next(_numbers)}", address, _PERSON, text)
        began = time.perf_counter()
        await self._accept([event], None)
        return began

    def answer_to(self, text: str) -> asyncio.Future[float]:
        """Will hold T1 of the echo of `text`, which nobody else may be saying."""
        return self._delivered.setdefault(PREFIX + text, asyncio.get_running_loop().create_future())

    async def ask(self, chat: str) -> float:
        """Says something new and waits for its echo: T1 - T0 in milliseconds."""
        text = f"number {next(_numbers)}"
        answer = self.answer_to(text)
        began = await self.say(chat, text)
        async with asyncio.timeout(ANSWER_SECONDS):
            return (await answer - began) * 1000


@dataclass(slots=True)
class Rig:
    """A running host with its benchmark channel; every chat of `chats` is a session of its own."""

    host: Host
    channel: BenchChannel
    group: AgentGroup
    chats: dict[str, SessionRef] = field(default_factory=dict)

    async def add_chats(self, count: int) -> list[str]:
        """Chats that the agent answers in, each with its session and its folders; returns their platform ids."""
        names = [f"chat-{next(_numbers)}" for _ in range(count)]
        now = to_text(self.host.clock.now())
        made = await self.host.database.run(lambda connection: add_sessions(connection, self.group, names, now))
        for name, session in zip(names, made, strict=True):
            self.chats[name] = SessionRef(session.agent_group_id, session.id)
            await asyncio.to_thread(session_folders.provision, self.host.home, session, self.group)
        await self.host.routing.refresh()
        return names

    async def stop(self, chat: str) -> None:
        """Stops the chat's sandbox as the host does."""
        await self.host.fleet.stop(self.chats[chat], "the benchmark begins anew")


def add_sessions(connection: Connection, group: AgentGroup, names: Sequence[str], now: str) -> list[Session]:
    """Rows of chats with these platform ids, and of their sessions."""
    made = []
    for name in names:
        chat = messaging_groups.create(
            connection, new_id("c"), CHANNEL_TYPE, ACCOUNT_ID, name, now, unknown_sender_policy="public"
        )
        session_folders.wire(connection, chat, group, now)
        made.append(sessions.find_or_create(connection, SessionKey(group.id, chat.id), now))
    return made


@contextlib.contextmanager
def new_home(below: Path) -> Iterator[Home]:
    """A home of the benchmark's own in that folder; gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix="ik-bench-", dir=below))
    home = find_home(str(root), {})
    try:
        yield home
    finally:
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(home.runtime, ignore_errors=True)


@contextlib.asynccontextmanager
async def running(
    home: Home, runtime: str, change: Callable[[Host], Awaitable[None]] | None = None, **variables: str
) -> AsyncIterator[Rig]:
    """The whole host over this home, with the rehearsal provider and more variables of its environment. `change` may
    exchange parts before it serves."""
    environment = {"INNKEEPER_RUNTIME": runtime, "INNKEEPER_PROVIDER": "rehearsal", **variables}
    os.umask(0o077)
    async with contextlib.AsyncExitStack() as stack:
        await asyncio.to_thread(home.prepare)
        stack.enter_context(home_lock(home.lock_file))
        host = await assemble(home, environment, SystemClock(), stack)
        if change is not None:
            await change(host)
        async with host.serving(5.0):
            channel = BenchChannel()
            await host.open_channel(channel)
            [group] = await host.database.run(agent_groups.every)
            yield Rig(host, channel, group)


async def installation_id(host: Host) -> str:
    """What the labels of this host's sandboxes say."""
    return (await host.database.run(settings.every))["installation_id"]


def replace_runtime(host: Host, runtime: Runtime) -> None:
    """Puts `runtime` in the place of the host's own of that name; before anything is started."""
    cast("dict[RuntimeName, Runtime]", host.runtimes)[runtime.name] = runtime


def ensure_image() -> str:
    """Today's agent image, built where it is missing. Raises BuildFailed, RuntimeUnavailable."""
    tag = image_tag()
    if not image_exists(tag):
        base = os.environ.get("INNKEEPER_BASE_IMAGE") or (CI_BASE if image_exists(CI_BASE) else None)
        build(lambda line: print(line, flush=True), base)
    return tag
