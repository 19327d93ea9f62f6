"""What happens in the week: drawn from the seed, in full, before it begins."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from host.timetable import Cron, Every, Missed

DAYS = 7
MESSAGES = 60
"""That people write."""

BEGINS = (
    datetime(2026, 3, 27, tzinfo=UTC),  # Berlin loses an hour
    datetime(2026, 10, 23, tzinfo=UTC),  # Berlin has one twice
    datetime(2026, 10, 30, tzinfo=UTC),  # New York has one twice
    datetime(2026, 4, 3, tzinfo=UTC),  # Lord Howe has half an hour twice
)
"""Each week has a night in which clocks change."""

AGENTS = ("main", "ann", "ben", "cat", "dan")
CHATS = tuple(f"{agent}/{number}" for agent in AGENTS for number in range(1, 5))
"""Twenty sessions."""

VERBS = {
    "answer": 30, "talk": 8, "slow": 5, "slowcrash": 3, "crash": 6, "halfcrash": 6, "late": 5, "journal": 3, "moody": 5,
    "refuse": 3, "poison": 2, "hang": 2, "spoil": 1, "bad": 3, "ask": 7, "wait": 5, "tell": 8, "plan": 4, "remind": 5,
    "quiet": 2,
}  # fmt: skip

POINTS = (
    "after_ingest", "after_put", "before_start", "after_start", "before_take_over", "after_take_over", "before_send",
    "after_send", "after_judge", "before_action_answer", "after_question", "before_move", "between_moves",
)  # fmt: skip
"""Where a host is killed (mailboxes.crash)."""

What = Literal[
    "say", "command", "stop_host", "start_host", "kill_host", "power_cut", "arm", "platform_goes", "platform_comes",
    "engine_goes", "engine_comes", "resume", "retry",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that comes from outside, at a time."""

    at: datetime
    what: What
    chat: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task that a person gives at the beginning. `fires` is for the accounts: the schedule, as it was meant."""

    id: str
    chat: str
    said: dict[str, object]
    schedule: Cron | Every | datetime
    zone: str = "Europe/Berlin"
    missed: Missed = Missed.ONCE
    heartbeat: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole week."""

    seed: int
    begin: datetime
    end: datetime
    tasks: Sequence[PlannedTask]
    happenings: Sequence[Happening] = field(default_factory=list)


def plan_of(seed: int, messages: int = MESSAGES, days: int = DAYS) -> Plan:
    """The week of a seed."""
    dice = random.Random(f"week {seed}")
    begin = BEGINS[seed % len(BEGINS)]
    end = begin + timedelta(days=days)
    happenings = [*_words(dice, begin, messages, days), *_troubles(dice, begin, days)]
    tasks = [task for task in _tasks(begin) if not isinstance(task.schedule, datetime) or task.schedule < end]
    return Plan(seed, begin, end, tasks, sorted(happenings, key=lambda one: one.at))


def _words(dice: random.Random, begin: datetime, messages: int, days: int) -> list[Happening]:
    """What people write, at times several at once."""
    found: list[Happening] = []
    while len(found) < messages:
        at = begin + timedelta(seconds=dice.uniform(600, days * 86400 - 3600))
        chat = dice.choice(CHATS)
        for _ in range(dice.choice((1, 1, 1, 2, 4))):
            (verb,) = dice.choices(list(VERBS), list(VERBS.values()))
            found.append(Happening(at, "say", chat, f"do:{verb} number {len(found)}"))
            at += timedelta(seconds=dice.choice((0, 0.5, 20)))
            if verb == "slow" and dice.random() < 0.5:
                found.append(Happening(at + timedelta(seconds=90), "command", chat, "/stop"))
    for command in ("/new", "/new", "/new", "/status", "/tasks"):
        at = begin + timedelta(seconds=dice.uniform(86400, days * 86400 - 7200))
        # The first has tasks, and somebody who talks to it meanwhile.
        chat = dice.choice(CHATS[:8])
        found += [Happening(at, "say", chat, f"do:slow number {at}"), Happening(at, "command", chat, command)]
    return found


def _troubles(dice: random.Random, begin: datetime, days: int) -> list[Happening]:
    """What befalls the machine and the platform."""

    def after(day: float) -> datetime:
        return begin + timedelta(days=day)

    def down(at: datetime, what: What, minutes: float) -> list[Happening]:
        return [Happening(at, what), Happening(at + timedelta(minutes=minutes), "start_host")]

    found = [
        *down(after(1.1), "stop_host", 10),
        # The night in which clocks change: in half of the weeks there is no host just then.
        *(down(after(2) + timedelta(minutes=55), "kill_host", 20) if dice.random() < 0.5 else ()),
        *down(after(3.4), "power_cut", 7 * 60),
        Happening(after(4.2), "platform_goes"),
        Happening(after(5.2), "platform_comes"),
        *(Happening(after(5.3), "retry") for _ in range(3)),
        *down(after(4.6), "stop_host", 5),
        Happening(after(6.1), "engine_goes"),
        Happening(after(6.1) + timedelta(minutes=40), "engine_comes"),
        Happening(after(6.3), "resume"),
    ]
    for _ in range(6):
        point = dice.choice(POINTS)
        found.append(Happening(after(dice.uniform(0.1, days - 0.2)), "arm", words=point))
    return [one for one in found if one.at < after(days - 0.1)]


def _tasks(begin: datetime) -> list[PlannedTask]:
    tasks: list[PlannedTask] = []

    def cron(chat: str, expression: str, zone: str, missed: Missed = Missed.ONCE, **said: object) -> None:
        full = {"prompt": "do:answer by cron", "recurrence": expression, "zone": zone, "missed": missed.value, **said}
        full = {name: value for name, value in full.items() if value is not None}
        tasks.append(PlannedTask(f"task-{len(tasks)}", chat, full, Cron(expression, zone), zone, missed))

    def every(chat: str, hours: float, missed: Missed = Missed.ONCE, **said: object) -> None:
        anchor, seconds = begin + timedelta(minutes=7 + len(tasks)), int(hours * 3600)
        full = {
            "prompt": "do:talk by interval", "recurrence": f"every {seconds}s", "process_after": anchor.isoformat(),
            "missed": missed.value, **said,
        }  # fmt: skip
        full = {name: value for name, value in full.items() if value is not None}
        tasks.append(PlannedTask(f"task-{len(tasks)}", chat, full, Every(seconds, anchor), missed=missed))

    cron("main/1", "30 2 * * *", "Europe/Berlin")
    cron("main/2", "*/30 2 * * *", "Europe/Berlin", prompt="do:crash by cron")
    cron("main/3", "0 9 * * 1-5", "America/New_York", prompt="do:halfcrash by cron")
    cron("main/4", "15 1 * * *", "America/New_York", Missed.SKIP)
    cron("ann/1", "45 1 * * *", "Australia/Lord_Howe", prompt="do:moody by cron")
    cron("ann/2", "20 */8 * * *", "Asia/Kolkata", Missed.ALL)
    cron("ann/3", "0 8 * * *", "Europe/Berlin", prompt=None, message="good morning")
    every("ann/4", 9, prompt="do:late by interval")
    every("ben/1", 5, Missed.SKIP)
    every("ben/2", 6, Missed.ALL, prompt="do:answer by interval")
    every("ben/3", 12, prompt=None, message="drink some water")
    every("ben/4", 8, prompt="do:refuse by interval")  # is paused after five, and taken up again
    for number, (chat, hours) in enumerate((("cat/1", 20.0), ("cat/2", 82.0), ("cat/3", 100.0))):
        at = begin + timedelta(hours=hours)
        said: dict[str, object] = {"prompt": "do:answer once", "process_after": at.isoformat()}
        tasks.append(PlannedTask(f"once-{number}", chat, said, at))
    beat: dict[str, object] = {"recurrence": "every 4h", "hours": "9-22"}
    tasks.append(PlannedTask("heartbeat", "dan/1", beat, Every(14400, begin), missed=Missed.SKIP, heartbeat=True))
    return tasks
