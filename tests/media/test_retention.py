"""Files go after thirty days; what still needs them keeps them, and the rows stay."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from host.home import Home
from host.items import SessionRef
from host.mailbox_pool import MailboxPool
from host.retention import EVERY_SECONDS, FIRST_SECONDS, KEPT_DAYS, Retention
from host.sessions import provision
from mailboxes.clock import to_text
from mailboxes.rows import Kind, MessageIn
from tests.fakes.clock import FakeClock
from tests.media.conftest import CHAT, GROUP, session

KEY = SessionRef("a1", "s1")


@dataclass
class House:
    """One session with files in it, and the part that prunes them."""

    home: Home
    clock: FakeClock
    pool: MailboxPool
    pruned: list[SessionRef] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = provision(self.home, session(), GROUP)
        self.retention = Retention(self.home, self.pool, self.clock, self.pruned.append)

    async def message(self, name: str, status: str = "completed", days: float = 40, *, folder: bool = True) -> None:
        """A message of so many days ago, with a file."""
        now = self.clock.now()
        stamp = to_text(now - timedelta(days=days))
        row = MessageIn(name, Kind.CHAT, stamp, json.dumps({"text": "x"}), CHAT, status=status, status_changed=stamp)
        await self.pool.call(KEY, lambda mailbox: mailbox.put([replace(row)]))
        if folder:
            self.files(name, days)

    def files(self, name: str, days: float) -> Path:
        made = self.folder / "inbound" / "files" / name
        made.mkdir()
        (made / "1-a.txt").write_bytes(b"12345")
        self.age(made, days)
        return made

    def age(self, path: Path, days: float) -> None:
        then = (self.clock.now() - timedelta(days=days)).timestamp()
        os.utime(path, (then, then))

    def left(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "inbound" / "files").iterdir())

    async def deliver(self, in_reply_to: str, state: str) -> None:
        """An answer in that state."""
        stamp = to_text(self.clock.now() - timedelta(days=40))
        await self.pool.call(
            KEY,
            lambda mailbox: mailbox.write(
                lambda db: (
                    db.execute(
                        "INSERT INTO deliveries (id, in_reply_to, kind, timestamp, content, state) "
                        "VALUES (?, ?, ?, ?, ?, ?)",
                        (f"out-{in_reply_to}", in_reply_to, "chat", stamp, "{}", state),
                    )
                    and None
                )
            ),
        )


@pytest.fixture
async def house(home: Home, clock: FakeClock) -> AsyncIterator[House]:
    async def evict(_key: SessionRef) -> None:
        pass

    pool = MailboxPool(home, clock, evict)
    yield House(home, clock, pool)
    await pool.close()


async def test_old_files_go_and_their_messages_stay(house: House) -> None:
    await house.message("old")
    await house.message("young", days=KEPT_DAYS - 1)
    [found] = await house.retention.prune(dry_run=False)
    assert (found.key, found.messages, found.files, found.size) == (KEY, 1, 1, 5)
    assert house.left() == ["young"]
    assert await house.pool.call(KEY, lambda mailbox: mailbox.status_of("old")) == "completed"
    assert house.pruned == [KEY]
    assert await house.retention.prune(dry_run=False) == []


@pytest.mark.fault(41)
@pytest.mark.parametrize("status", ["pending", "processing", "paused"])
async def test_files_of_a_message_that_waits_stay_however_old_they_are(house: House, status: str) -> None:
    await house.message("old", status, days=400)
    assert await house.retention.prune(dry_run=False) == []
    assert house.left() == ["old"]


@pytest.mark.fault(41)
@pytest.mark.parametrize(("state", "stays"), [("queued", True), ("sending", True), ("unknown", True), ("sent", False)])
async def test_files_stay_while_an_answer_is_under_way(house: House, state: str, stays: bool) -> None:
    await house.message("old")
    await house.deliver("old", state)
    await house.retention.prune(dry_run=False)
    assert house.left() == (["old"] if stays else [])


async def test_a_message_dealt_with_lately_keeps_its_old_file(house: House) -> None:
    await house.message("late", days=1, folder=False)
    house.files("late", 400)
    assert await house.retention.prune(dry_run=False) == []


async def test_files_without_a_message_go_by_their_age(house: House) -> None:
    house.files("orphan", 40)
    house.files("being-fetched", 0)
    await house.message("any", days=0, folder=False)
    await house.retention.prune(dry_run=False)
    assert house.left() == ["being-fetched"]


async def test_a_dry_run_finds_the_same_and_removes_nothing(house: House) -> None:
    await house.message("old")
    found = await house.retention.prune(dry_run=True)
    assert house.left() == ["old"]
    assert found == await house.retention.prune(dry_run=False)
    assert house.left() == []


async def test_a_link_is_not_followed_and_what_no_row_is_called_stays(house: House, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_bytes(b"x")
    house.age(outside, 400)
    files = house.folder / "inbound" / "files"
    (files / "linked").symlink_to(outside)
    house.files("no row!", 400)
    house.files("old", 400)
    ((files / "old") / "2-link").symlink_to(outside)
    house.age(files / "old", 400)
    await house.message("any", days=0, folder=False)
    await house.retention.prune(dry_run=False)
    assert (outside / "mine").exists()
    assert house.left() == ["linked", "no row!"]


@pytest.mark.req("R131")
async def test_nothing_in_the_folders_of_the_sandbox_is_touched(house: House) -> None:
    await house.message("old")
    theirs = house.folder / "outbound" / "files" / "old"
    theirs.mkdir(parents=True)
    (theirs / "a.txt").write_bytes(b"x")
    for path in (theirs, theirs / "a.txt"):
        house.age(path, 400)
    await house.retention.prune(dry_run=False)
    assert (theirs / "a.txt").exists()


async def test_what_was_sent_goes_too_and_what_is_being_taken_over_does_not(house: House) -> None:
    await house.message("old", folder=False)
    await house.deliver("old", "sent")
    for name, days in (("out-old", 40.0), ("out-new", 0.0)):
        (house.folder / "sent" / name).mkdir(parents=True)
        (house.folder / "sent" / name / "a.txt").write_bytes(b"12345")
        record = [{"name": "a.txt", "size": 5, "type": "text/plain", "sha256": "0"}]
        (house.folder / "sent" / f"{name}.json").write_text(json.dumps(record))
        house.age(house.folder / "sent" / name, days)
    [found] = await house.retention.prune(dry_run=False)
    assert (found.files, found.size) == (1, 5)
    assert sorted(path.name for path in (house.folder / "sent").iterdir()) == ["out-new", "out-new.json"]


async def test_a_session_without_a_mailbox_loses_nothing_and_others_go_on(house: House) -> None:
    await house.message("old")
    other = provision(house.home, session("s2"), GROUP)
    shutil.copytree(house.folder / "inbound" / "files" / "old", other / "inbound" / "files" / "old")
    house.age(other / "inbound" / "files" / "old", 400)
    (other / "inbound" / "inbound.db").unlink()
    await house.retention.prune(dry_run=False)
    assert house.left() == []
    assert (other / "inbound" / "files" / "old" / "1-a.txt").exists()


async def test_the_host_looks_daily(house: House) -> None:
    await house.message("old")
    looking = asyncio.ensure_future(house.retention.run())
    await asyncio.sleep(0)
    await house.clock.advance(FIRST_SECONDS)
    await _until(lambda: house.left() == [])
    house.files("next", 400)
    await _until(lambda: bool(house.clock._sleepers))
    await house.clock.advance(EVERY_SECONDS)
    await _until(lambda: house.left() == [])
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)
