"""A sandbox that fills the disk is stopped, soon, and alone; quiet ones are seldom looked at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from host import quota, untrusted
from host.db.agent_groups import AgentGroup
from host.home import Home
from host.items import SessionRef
from host.quota import LITTLE_BYTES, MEASURE_SECONDS, Quota
from host.settings import CurrentSettings, Settings
from tests.fakes.clock import FakeClock

MIB = 1024**2
ONE, TWO = SessionRef("a-1", "s-1"), SessionRef("a-2", "s-2")


class Life:
    """A sandbox that hears why it is killed."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def kill(self, why: str) -> None:
        self.killed.append(why)


class Disk:
    """Two sessions of two agents on a disk whose free space the test says; a share is 2 MiB."""

    def __init__(self, home: Home, clock: FakeClock) -> None:
        self.home = home
        self.clock = clock
        self.lives = {ONE: Life(), TWO: Life()}
        self.left = 100 * LITTLE_BYTES
        self.told: list[tuple[SessionRef, str]] = []
        groups = {
            key.agent_group_id: AgentGroup(key.agent_group_id, "x", key.agent_group_id, None, None, "", 1, None, 0)
            for key in self.lives
        }
        self.quota = Quota(
            home, CurrentSettings(Settings(disk_mib=2)), clock, lambda: self.lives, lambda: groups, self.tell, self.free
        )

    def free(self, path: Path) -> int:
        assert path == self.home.root
        return self.left

    async def tell(self, key: SessionRef, cause: str, text: str) -> None:
        assert cause == "quota"
        self.told.append((key, text))

    def state(self, key: SessionRef = ONE) -> Path:
        return self.home.session_folder(key.agent_group_id, key.session_id) / "state"

    def fill(self, folder: Path, mib: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{mib}").write_bytes(b"x" * mib * MIB)
        self.left -= mib * MIB

    def killed(self) -> list[int]:
        return [len(life.killed) for life in self.lives.values()]


@pytest.fixture
def disk(home: Home, clock: FakeClock) -> Disk:
    return Disk(home, clock)


@pytest.mark.parametrize("where", ["state", "outbound", "home"])
async def test_a_session_that_has_too_much_is_stopped_at_the_next_look_and_told(disk: Disk, where: str) -> None:
    await disk.quota.tick()
    folder = disk.home.groups / "a-1" / "home" if where == "home" else disk.state().with_name(where)
    disk.fill(folder, 3)
    await disk.quota.tick()
    assert disk.killed() == [1, 0]
    [why] = disk.lives[ONE].killed
    assert "3 MiB" in why
    assert "disk_mib allows 2" in why
    assert disk.told == [(ONE, f"{why} So I was stopped.")]


async def test_what_the_host_keeps_for_a_session_is_not_held_against_it(disk: Disk) -> None:
    await disk.quota.tick()
    for name in ("sent", "inbound"):
        disk.fill(disk.state().with_name(name), 3)
    await disk.quota.tick()
    assert disk.killed() == [0, 0]


async def test_while_the_disk_is_in_no_hurry_a_session_is_measured_every_few_minutes(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Path] = []
    measure: Callable[[Path], object] = untrusted.measure

    def counted(folder: Path) -> object:
        measured.append(folder)
        return measure(folder)

    monkeypatch.setattr(untrusted, "measure", counted)
    disk.fill(disk.state(), 3)
    for _ in range(10):
        await disk.quota.tick()
        await disk.clock.advance(MEASURE_SECONDS / 10 - 1)
    assert measured == []
    await disk.clock.advance(11)
    await disk.quota.tick()
    assert disk.killed() == [1, 0]
    count = len(measured)
    await disk.quota.tick()
    assert len(measured) == count


async def test_where_little_is_left_every_loss_is_looked_into(disk: Disk) -> None:
    disk.left = LITTLE_BYTES // 2
    await disk.quota.tick()
    disk.fill(disk.state(), 3)
    disk.left = LITTLE_BYTES // 2 - 1
    await disk.quota.tick()
    assert disk.killed() == [1, 0]


async def test_too_many_files_are_too_much(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MAX_ENTRIES", 20)
    disk.state().mkdir(parents=True)
    for number in range(30):
        (disk.state() / str(number)).touch()
    await disk.quota.tick()
    disk.left -= MIB
    await disk.quota.tick()
    assert disk.lives[ONE].killed == ["This session has more than 20 files."]
