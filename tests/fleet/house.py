"""A whole host but for its sandboxes: the real composition over a real database, real mailboxes and the real reader."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Connection, text

from host import sessions as session_folders
from host.assembly import assemble
from host.channels.base import Accept, Capabilities, InboundEvent, Sender
from host.db import agent_groups, messaging_groups, sessions
from host.db.sessions import SessionKey
from host.home import Home
from host.items import SessionRef
from host.life import Life
from host.recovery import recover
from host.runtime.base import Runtime, RuntimeName
from host.serving import Host
from mailboxes.clock import to_text
from mailboxes.ids import new_id
from mailboxes.limits import BEAT_SECONDS
from mailboxes.rows import Address
from tests.fakes.clock import FakeClock
from tests.fakes.recording_channel import RecordingChannel
from tests.fakes.runner_hand import Hand
from tests.fakes.runtime import ScriptedRuntime, ScriptedSandbox
from tests.mailbox.made import row_of, table

DEADLINE = 20.0
QUIET_TURNS = 10
"""So many turns of the loop without work mean that there is none."""
ADA = Sender("1", "Ada")

_numbers = itertools.count()


async def until(reached: Callable[[], object]) -> None:
    """Lets the loop and its threads run until something is so."""
    async with asyncio.timeout(DEADLINE):
        while not reached():
            await asyncio.sleep(0)


class Platform(RecordingChannel):
    """A Telegram bot that shows typing signs."""

    def __init__(self) -> None:
        super().__init__(Capabilities(typing=True))
        self.accept: Accept | None = None
        self.signs: list[tuple[str, bool]] = []
        self.sign_fails: Exception | None = None

    async def setup(self, accept: Accept, attached: Callable[[Address], None]) -> None:
        self.accept = accept

    async def typing(self, address: Address, active: bool) -> None:
        self.signs.append((address.platform_id, active))
        if self.sign_fails is not None:
            raise self.sign_fails


class Machine:
    """What outlives a host: the clock, the engines with their sandboxes, the home."""

    def __init__(self, home: Home, clock: FakeClock, hand: Hand) -> None:
        self.home = home
        self.clock = clock
        self.process = ScriptedRuntime(RuntimeName.PROCESS, hand, clock)
        self.docker = ScriptedRuntime(RuntimeName.DOCKER, hand, clock)

    @contextlib.asynccontextmanager
    async def host(self, chats: Sequence[str] = ("42",), **environment: str) -> AsyncIterator["House"]:
        """A host from its start to its orderly end, or until `die`."""
        async with contextlib.AsyncExitStack() as stack:
            variables = {"INNKEEPER_RUNTIME": "process", **environment}
            host = await assemble(self.home, variables, self.clock, stack)
            runtimes = cast("dict[RuntimeName, Runtime]", host.runtimes)
            runtimes |= {RuntimeName.PROCESS: self.process, RuntimeName.DOCKER: self.docker}
            # What reading costs is real time, which this clock does not know; tests/untrusted shows the budget.
            host.postmaster.rest = lambda key: 0.0  # type: ignore[method-assign]
            house = House(self, host)
            await house.add_chats(chats)
            await recover(host.database, host.postmaster, host.delivery, host.fleet, host.runtimes, host.index)
            await host.open_channel(house.channel)
            await host.reception.recover()
            try:
                yield house
            finally:
                await host.reception.close()
                await host.fleet.close(0.0)
                await host.delivery.settle(1.0)


class House:
    """One host and the words to play with it."""

    def __init__(self, machine: Machine, host: Host) -> None:
        self.machine = machine
        self.clock = machine.clock
        self.host = host
        self.fleet = host.fleet
        self.process = machine.process
        self.channel = Platform()
        self.keys: dict[str, SessionRef] = {}
        self._beaten_at = 0.0

    async def add_chats(self, chats: Sequence[str]) -> None:
        """Public chats, each with its session: of the agent `main`, or of the one that is named before a slash."""
        now = to_text(self.clock.now())

        def add(connection: Connection) -> list[SessionRef]:
            home = self.machine.home
            groups = {chat: _agent_of(connection, home, chat, now) for chat in chats}
            return [_session_of(connection, home, groups[chat], chat, now) for chat in chats]

        self.keys |= dict(zip(chats, await self.host.database.run(add), strict=True))
        await self.host.routing.refresh()

    async def send(self, words: str = "hello", chat: str = "42") -> None:
        """A person writes; returns when it is in the mailbox."""
        assert self.channel.accept is not None
        address = Address("telegram", "bot", chat)
        await self.channel.accept([InboundEvent(f"{chat}:{next(_numbers)}", address, ADA, words)], None)
        await asyncio.wait_for(self.host.reception.intake.idle(), DEADLINE)

    async def sandbox(self, chat: str = "42", *, after: ScriptedSandbox | None = None) -> ScriptedSandbox:
        """The live sandbox of a chat, or the one that follows `after`, with its runner there."""
        key = self.keys[chat]

        def there() -> bool:
            life = self.fleet.live().get(key)
            return life is not None and life.sandbox is not None and life.sandbox is not after

        await until(there)
        found = self.fleet.live()[key].sandbox
        assert isinstance(found, ScriptedSandbox)
        await until((found.spec.run / "bell.sock").exists)
        if not found.connected:
            await found.connect()
            found.recover()
            await until(lambda: self.life(chat).state is not None and self.life(chat).line is not None)
        return found

    async def turn(self, chat: str = "42", turn: str = "t-1") -> ScriptedSandbox:
        """A message and a runner that works on it."""
        await self.send(chat=chat)
        sandbox = await self.sandbox(chat)
        assert sandbox.claim(turn)
        await until(lambda: self.rows("processing", chat) and self.life(chat).busy)
        return sandbox

    async def answered(self, chat: str = "42") -> ScriptedSandbox:
        """A message that was answered with "done", and the sandbox that is idle now."""
        sandbox = await self.turn(chat)
        sandbox.answer("done")
        await until(lambda: self.channel.texts(chat) and not self.life(chat).busy)
        return sandbox

    def life(self, chat: str = "42") -> Life:
        return self.fleet.live()[self.keys[chat]]

    def is_gone(self, chat: str = "42") -> bool:
        return self.keys[chat] not in self.fleet.live()

    def rows(self, status: str | None = None, chat: str = "42") -> list[dict[str, Any]]:
        """The chat's messages_in."""
        return [row for row in table(self.folder(chat), "messages_in") if status in (None, row["status"])]

    def row(self, row_id: str, chat: str = "42") -> dict[str, Any]:
        return row_of(self.folder(chat), row_id)

    def folder(self, chat: str = "42") -> Any:
        key = self.keys[chat]
        return self.machine.home.session_folder(key.agent_group_id, key.session_id)

    async def status(self, chat: str = "42") -> str:
        """container_status in the session's row."""
        found = await self.host.database.run(lambda c: sessions.get(c, self.keys[chat].session_id))
        assert found is not None
        return found.container_status

    async def configure(self, config: Mapping[str, object] | None = None, **columns: str) -> None:
        """Changes the agent's row."""
        if config is not None:
            columns["container_config"] = json.dumps(config)
        agent = self.keys["42"].agent_group_id
        await self.host.database.run(lambda c: agent_groups.change(c, agent, **columns))

    async def set_session_provider(self, provider: str) -> None:
        statement = text("UPDATE sessions SET agent_provider = :provider")
        await self.host.database.run(lambda c: c.execute(statement, {"provider": provider}) and None)

    async def pass_time(self, seconds: float, step: float = 1.0) -> None:
        """Lets the host tick through that much time; runners that beat do so."""
        await self.settle()
        for _ in range(round(seconds / step)):
            await self.clock.advance(step)
            if self.clock.monotonic() - self._beaten_at >= BEAT_SECONDS:
                await self._beat()
            await self.settle()
            await self.fleet.tick()
            await self.host.sweep.tick()
            await self.settle()

    async def settle(self) -> None:
        """Lets the host do all that it can do at this time."""
        quiet = 0
        async with asyncio.timeout(DEADLINE):
            while quiet < QUIET_TURNS:
                await asyncio.sleep(0)
                quiet = quiet + 1 if self._is_quiet() else 0

    def _is_quiet(self) -> bool:
        """Nobody uses a mailbox, and whatever session has a task has a sandbox that lives, or waits for the gate."""
        lives = self.fleet.live().values()
        tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("session ")]
        gates = self.process.gate.is_set() and self.machine.docker.gate.is_set()
        living = all(isinstance(life.sandbox, ScriptedSandbox) and life.sandbox.alive for life in lives)
        return not self.host.postmaster._pool._users and len(tasks) == len(lives) and (living or not gates)

    async def _beat(self) -> None:
        self._beaten_at = self.clock.monotonic()
        for life in self.fleet.live().values():
            if isinstance(sandbox := life.sandbox, ScriptedSandbox) and sandbox.beats and sandbox.alive:
                sandbox.beat()
                if sandbox.connected:
                    await until(lambda life=life: life.beat_at == self.clock.monotonic())  # type: ignore[misc]

    async def die(self) -> None:
        """The host is killed: nothing is stopped, nothing is written."""
        self.fleet._closing = True
        doomed = [life.task for life in self.fleet.live().values()] + [
            held.timer for held in self.fleet._setbacks._held.values()
        ]
        for task in doomed:
            assert task is not None
            task.cancel()
        await asyncio.gather(*[task for task in doomed if task is not None], return_exceptions=True)


def _agent_of(connection: Connection, home: Home, chat: str, now: str) -> agent_groups.AgentGroup:
    folder = chat.rpartition("/")[0] or "main"
    known = next((one for one in agent_groups.every(connection) if one.folder == folder), None)
    return known or session_folders.add_agent_group(connection, home, folder, folder, now)


def _session_of(connection: Connection, home: Home, group: agent_groups.AgentGroup, chat: str, now: str) -> SessionRef:
    known = messaging_groups.at(connection, "telegram", "bot", chat)
    if known is None:
        known = messaging_groups.create(
            connection, new_id("c"), "telegram", "bot", chat, now, unknown_sender_policy="public"
        )
        session_folders.wire(connection, known, group, now)
    made = sessions.find_or_create(connection, SessionKey(group.id, known.id), now)
    session_folders.provision(home, made, group)
    return SessionRef(made.agent_group_id, made.id)
