"""A week of twenty sessions under a clock that leaps: at its end every message and every time of a task is accounted
for, and the accounts notice what is missing. `make week` plays more of them."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from host.home import Home
from tests.fakes.clock import FakeClock
from tests.fakes.runner_hand import Hand
from tests.fleet.conftest import fresh_database, hand
from tests.week.accounts import problems, report
from tests.week.agents import Agents
from tests.week.books import Books, Box
from tests.week.plan import Plan, plan_of
from tests.week.platform import Platform
from tests.week.town import Town
from tests.week.week import Week

__all__ = ["fresh_database", "hand"]

# A host that is killed closes nothing, and this one's process lives on.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)

Play = Callable[[Plan], Week]


@pytest.fixture
def play(hand: Hand, fresh_database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Makes a week in a home of its own, in memory where the machine has a folder there: a week waits thousands of
    times for the disk."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder, runtime = tempfile.mkdtemp(prefix="ik-", dir=base), tempfile.mkdtemp(prefix="ik-", dir="/tmp")
    towns: list[Town] = []

    def make(plan: Plan) -> Week:
        home = Home(Path(folder) / "home", Path(runtime) / "run")
        home.prepare()
        shutil.copy(fresh_database, home.database)
        clock = FakeClock(plan.begin)
        towns.append(Town(home, clock, hand, Platform(plan.seed), Agents(plan.seed, clock)))
        towns[0].install(monkeypatch)
        return Week(towns[0], plan)

    yield make
    shutil.rmtree(folder)
    shutil.rmtree(runtime)


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.req("R024", "R026", "R031", "R139", "R144", "R145", "R148", "R149", "R153", "R156", "R239", "R241")
async def test_after_a_week_every_message_is_accounted_for(play: Play, week_seed: int) -> None:
    books = await play(plan_of(week_seed)).play()
    sys.stdout.write(report(books))
    assert problems(books) == []
    assert len(books.sessions) >= 20
    assert books.counts["killed hosts"] > 1
    assert books.counts["crashed sandboxes"] > 5
    assert any(row["state"] == "failed" for box in books.boxes for row in box.deliveries), "a day without a platform"


@pytest.mark.slow
async def test_the_accounts_notice_whatever_is_lost_or_doubled(play: Play) -> None:
    books = await play(plan_of(0, messages=15, days=1)).play()
    assert problems(books) == []
    unnoticed = [what[:60] for what, changed in _spoilt(books) if not problems(changed)]
    assert unnoticed == []


def _spoilt(books: Books) -> Iterator[tuple[str, Books]]:
    """The books with one thing wrong each, and what that is."""
    take, said = books.takes[-1], books.said[-1]
    yield "a take is lost", replace(books, takes=books.takes[:-1])
    yield "a take is doubled", replace(books, takes=[*books.takes, take])
    yield "a take is nobody's", replace(books, takes=[*books.takes, replace(take, delivery_id="o-nobodys")])
    yield "a word is lost", replace(books, said=[*books.said, replace(said, text="nobody has this", ends=())])
    yield "a word comes twice", replace(books, said=[*books.said, said])
    yield "events are lost", replace(books, ingest={})
    yield "an event is nobody's", replace(books, events=books.events[:-1])
    yield "the spool is not empty", replace(books, spool=[{"message_id": "m-1"}])
    open_word = {"id": "n-1", "state": "queued", "channel_type": "agent", "content": "{}"}
    yield "the host has not said all", replace(books, outbox=[open_word])
    yield "a session is stuck", replace(books, sessions=[{"id": "s-1", "container_status": "running"}])
    for box in books.boxes:
        for row in box.messages:
            if row["trigger"] and row["status"] in ("completed", "failed"):
                less = replace(box, messages=[one for one in box.messages if one is not row])
                yield f"a {row['status']} message is lost: {row['content']}", _with(books, box, less)
                double = replace(box, messages=[*box.messages, {**row, "id": f"{row['id']}-again"}])
                yield f"a {row['status']} message is doubled: {row['content']}", _with(books, box, double)
                held = [{**one, "status": "processing"} if one is row else one for one in box.messages]
                yield f"a message is stuck: {row['content']}", _with(books, box, replace(box, messages=held))
        for row in box.deliveries:
            if row["turn_id"] and row["state"] in ("sent", "failed"):
                less = replace(box, deliveries=[one for one in box.deliveries if one is not row])
                yield f"a {row['state']} delivery is lost: {row['content']}", _with(books, box, less)
                held = [{**one, "state": "sending"} if one is row else one for one in box.deliveries]
                yield f"a delivery is stuck: {row['content']}", _with(books, box, replace(box, deliveries=held))


def _with(books: Books, box: Box, changed: Box) -> Books:
    return replace(books, boxes=[changed if one is box else one for one in books.boxes])
