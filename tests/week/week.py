"""A week, from its plan to its books."""

import heapq
import itertools
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import Connection

from host.channels.base import InboundEvent, Outgoing, Sender
from host.db import agent_destinations, sessions, user_roles, users
from host.db.agent_destinations import Destination
from host.db.user_roles import Role
from host.failure import Failure
from host.items import SessionRef
from host.runtime.base import RuntimeUnavailable
from host.series_changes import NoSuchTask
from mailboxes.clock import to_text
from mailboxes.rows import Address
from tests.fleet.house import House
from tests.week.books import Books, Windows, read_books, undone
from tests.week.plan import AGENTS, CHATS, Happening, Plan
from tests.week.town import Town

OWNER = Sender("1", "Ada")

LONGEST_EVENING = timedelta(hours=6)
"""After the week everything has so long to come to its end."""


@dataclass(slots=True)
class Week:
    """Plays a plan in a town."""

    town: Town
    plan: Plan
    windows: Windows = field(default_factory=Windows)
    down: list[tuple[datetime, datetime]] = field(default_factory=list)
    """When there was no host."""
    keys: dict[str, SessionRef] = field(default_factory=dict)
    _heap: list[tuple[datetime, int, Happening]] = field(default_factory=list)
    _count: "itertools.count[int]" = field(default_factory=itertools.count)
    _planned_down: bool = False
    _down_since: datetime | None = None

    async def play(self) -> Books:
        """The whole of it."""
        town = self.town
        town.platform.shown = self._card_is_shown
        for one in self.plan.happenings:
            self._will(one)
        assert await town.start()
        await self._settle_in()
        while self._heap and self._heap[0][0] < self.plan.end:
            await self._go_to(self._heap[0][0])
            if self._heap[0][0] <= town.clock.now():
                await self._happens(heapq.heappop(self._heap)[2])
        await self._go_to(self.plan.end)
        await self._evening()
        self.windows.look(town.home)
        await town.stop()
        return read_books(self)

    def _will(self, one: Happening) -> None:
        heapq.heappush(self._heap, (one.at, next(self._count), one))

    def _in(self, seconds: float, what: str, chat: str = "", words: str = "") -> None:
        at = self.town.clock.now() + timedelta(seconds=seconds)
        self._will(Happening(at, what, chat, words))  # type: ignore[arg-type]

    async def _go_to(self, end: datetime) -> None:
        """Until then, or until a host dies."""
        await self.town.go_to(end)
        self._notice_death()

    def _notice_death(self) -> None:
        if self.town.host is None and self._down_since is None:
            self._down_since = self.town.clock.now()
            if not self._planned_down:
                self._in(120, "start_host")

    async def _settle_in(self) -> None:
        """Agents, chats, tasks."""
        town, now = self.town, to_text(self.town.clock.now())
        host = town.host
        assert host is not None
        house = House(town, host)  # type: ignore[arg-type]  # it asks for home, clock and engine
        await house.add_chats(CHATS)
        self.keys = house.keys
        ids = {name: house.keys[f"{name}/1"].agent_group_id for name in AGENTS}
        town.agents.agents = ids

        def allow(connection: Connection) -> None:
            users.create_user(connection, "telegram:1", now)
            user_roles.grant_role(connection, "telegram:1", Role.OWNER, None, now)
            names = sorted(AGENTS)
            for one, other in zip(names, names[1:] + names[:1], strict=True):
                granted = Destination(ids[one], other, "agent_group", ids[other], now)
                agent_destinations.allow(connection, granted)

        await host.database.run(allow)
        await host.routing.refresh()
        await host.agent_grants.load()
        desk = host.tasks._desk
        for task in self.plan.tasks:
            key, address = self.keys[task.chat], Address("telegram", "bot", task.chat)
            if task.heartbeat:
                await desk.add_heartbeat(key, task.said, address=address, principal="telegram:1")
            else:
                await desk.add(key, task.said, address=address, principal="telegram:1", series_id=task.id)

    # -- what happens

    async def _happens(self, one: Happening) -> None:
        await getattr(self, f"_{one.what}")(one)
        await self.town.settle()
        self._notice_death()

    async def _say(self, one: Happening) -> None:
        platform = self.town.platform
        number = len(platform.events)
        event = InboundEvent(f"{one.chat}:{number}", Address("telegram", "bot", one.chat), OWNER, one.words)
        platform.does(event)
        if random.Random(f"{self.plan.seed} again {number}").random() < 0.1:
            platform.brings_again(event)

    _command = _say

    async def _click(self, one: Happening) -> None:
        platform = self.town.platform
        address = Address("telegram", "bot", one.chat)
        platform.does(InboundEvent(f"{one.chat}:{len(platform.events)}", address, OWNER, click=one.words))

    def _card_is_shown(self, address: Address, outgoing: Outgoing) -> None:
        """Somebody answers by a button, twice, by words, too late, or not at all."""
        dice = random.Random(f"{self.plan.seed} {outgoing.text}")
        how = dice.choice(("click", "click", "click", "twice", "words", "late", "never"))
        seconds, button = dice.uniform(5, 200), dice.choice(outgoing.buttons)
        if how in ("click", "twice"):
            self._in(seconds, "click", address.platform_id, button.data)
        if how == "twice":
            self._in(seconds + 3, "click", address.platform_id, button.data)
        if how == "words":
            self._in(seconds, "say", address.platform_id, button.label)
        if how == "late":
            self._in(400, "click", address.platform_id, button.data)

    async def _stop_host(self, _: Happening) -> None:
        self._planned_down = True
        if self.town.host is not None:
            await self.town.stop()

    async def _kill_host(self, _: Happening) -> None:
        self._planned_down = True
        if self.town.host is not None:
            await self.town.kill()

    async def _power_cut(self, one: Happening) -> None:
        await self._kill_host(one)
        self.town.lose_power()

    async def _start_host(self, _: Happening) -> None:
        self._planned_down = False
        if self.town.host is not None:
            return
        if not await self.town.start():
            self._in(120, "start_host")
            return
        await self.town.settle()
        if self._down_since is not None:
            self.down.append((self._down_since, self.town.clock.now()))
            self._down_since = None
        for minutes in (0, 10, 60):
            self._in(minutes * 60, "look")

    async def _look(self, _: Happening) -> None:
        self.windows.look(self.town.home)

    async def _arm(self, one: Happening) -> None:
        self.town.switch.arm(one.words)

    async def _platform_goes(self, _: Happening) -> None:
        self.town.platform.away = True

    async def _platform_comes(self, _: Happening) -> None:
        self.town.platform.away = False

    async def _engine_goes(self, _: Happening) -> None:
        self.town.process.away = RuntimeUnavailable("The engine does not answer.")

    async def _engine_comes(self, _: Happening) -> None:
        self.town.process.away = None

    async def _resume(self, _: Happening) -> None:
        """A person lets go on what was paused."""
        host = self.town.host
        if host is None:
            self._in(300, "resume")
            return
        for task in self.plan.tasks:
            if (paused := self.windows.paused_since(self.town.home, task.id)) is None:
                continue
            key = await self._key_of(task.chat)
            try:
                await host.tasks._desk.resume(key, task.id)
            except NoSuchTask:
                continue
            self.windows.paused.setdefault(task.id, []).append((paused, self.town.clock.now()))

    async def _key_of(self, chat: str) -> SessionRef:
        """The session of a chat by now."""
        host, known = self.town.host, self.keys[chat]
        assert host is not None
        place = await host.database.run(lambda c: sessions.in_place_of(c, known.session_id))
        assert place is not None
        return SessionRef(place.agent_group_id, place.id)

    async def _retry(self, _: Happening) -> None:
        """A person has one of the dead letters tried again."""
        host = self.town.host
        dead = self.windows.dead_letters(self.town.home)
        if host is None or not dead:
            return
        try:
            await host.facts.retry_message(random.Random(self.plan.seed).choice(dead), "the owner")
        except Failure as failure:
            raise AssertionError(failure.message) from failure

    # -- the end

    async def _evening(self) -> None:
        """Nothing more befalls anybody, and everything comes to its end."""
        town = self.town
        town.switch._armed.clear()
        town.platform.away, town.process.away = False, None
        if town.host is None:
            await self._start_host(Happening(town.clock.now(), "start_host"))
        late = town.clock.now() + LONGEST_EVENING
        while (rest := undone(town)) and town.clock.now() < late:
            await town.go_to(town.clock.now() + timedelta(minutes=5))
            while self._heap and self._heap[0][0] <= town.clock.now():
                await self._happens(heapq.heappop(self._heap)[2])
        assert not rest, "\n".join(rest)
