"""Machines that fail: a folder that is removed, a disk that is full, a wall clock that jumps."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.failure import Failure
from tests.fire.scene import QUICK, SAYS, House, house
from tests.whole.harness import Forge, wait_until

DAY = 86_400
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@pytest.mark.req("R155")
@pytest.mark.fault(92)
async def test_a_session_whose_folder_was_removed_while_it_ran_goes_on_in_a_new_one(forge: Forge) -> None:
    async with house(forge) as made:
        terminal = await made.agent("honest")
        await terminal.ask("hello")
        await asyncio.to_thread(shutil.rmtree, await made.folder("honest"))
        assert await terminal.ask("again") == [f"{SAYS}again"]
        assert [row["content"] for row in await made.rows("honest", "SELECT content FROM messages_in")] != []
        [said] = await made.said("honest")
        assert "missing" in said or "replaced" in said
        await made.neighbour_answers()
        await made.neighbour_was_never_touched()


@pytest.mark.req("R155")
@pytest.mark.fault(92)
async def test_a_session_whose_folder_was_removed_while_it_was_stopped_is_made_anew(forge: Forge) -> None:
    async with house(forge, INNKEEPER_IDLE_MINUTES="0.005") as made:
        terminal = await made.agent("honest")
        await terminal.ask("hello")
        await wait_until(lambda: len(made.host.events("a sandbox has ended")) >= 2)
        folder = await made.folder("honest")
        await asyncio.to_thread(shutil.rmtree, folder)
        assert await terminal.ask("again") == [f"{SAYS}again"]
        await wait_until(lambda: len(made.host.events("a sandbox has ended")) >= 3)
        shutil.copytree(folder, folder.with_name("copy"))  # what was put back from a copy is another file as well
        await asyncio.to_thread(shutil.rmtree, folder)
        folder.with_name("copy").rename(folder)
        await _give(folder)
        assert await terminal.ask("once more") == [f"{SAYS}once more"]
        said = [row["content"] for row in await made.rows("honest", "SELECT content FROM messages_in ORDER BY seq")]
        assert ["again" in said[0], "once more" in said[1]] == [True, True]


async def _give(folder: Path) -> None:
    """The sandbox's folders to the sandbox's user, as they were before the copy."""
    if os.geteuid() == 0:
        owner = (folder.parent.parent.parent / "groups" / "honest" / "home").stat().st_uid
        for part in ("outbound", "state"):
            for path in [folder / part, *(folder / part).rglob("*")]:
                os.chown(path, owner, owner)
        for path in [folder / "inbound", *(folder / "inbound").rglob("*")]:
            os.chown(path, 0, owner)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 48 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=0755", "innkeeper-test", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@needs_root
@pytest.mark.req("R024", "R155")
@pytest.mark.fault(88)
async def test_on_a_full_disk_what_was_accepted_waits_and_the_rest_is_refused_with_the_reason(
    forge: Forge, small_disk: Path
) -> None:
    seams = {**QUICK, "host.backoff:SECONDS": [0.2]}
    async with house(forge, seams=seams, root=small_disk) as made:
        terminal = await made.agent("honest")
        await terminal.ask("hello")
        ballast = small_disk / "ballast"
        await asyncio.to_thread(_fill, ballast)
        accepted, refusal = await _send_until_refused(made)
        assert "not taken: database or disk is full" in refusal.message
        assert refusal.next
        [said] = [line for line in (await made.call("status"))["problems"] if line["what"].startswith("The disk")]
        assert "Make room" in said["next"]
        ballast.unlink()
        await terminal.until(lambda: terminal.texts[1:] == [f"{SAYS}{text}" for text in accepted])
        assert not [notice for notice in terminal.notices if "is here and waits" not in notice]
        assert await terminal.ask("there is room") == [f"{SAYS}there is room"]
        await made.neighbour_answers()
        assert [row["what"] for row in (await made.call("status"))["problems"]] == []


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


async def _send_until_refused(made: House) -> tuple[list[str], Failure]:
    accepted: list[str] = []
    while len(accepted) < 200:
        text = f"message {len(accepted)}"
        try:
            await made.call("chat.send", chat="cli-honest", text=text, key=f"key-{len(accepted):06d}")
        except Failure as refusal:
            return accepted, refusal
        accepted.append(text)
    raise AssertionError("a full disk takes everything")


@pytest.mark.req("R152")
@pytest.mark.fault(74)
async def test_a_wall_clock_that_jumps_a_day_kills_nothing_and_moves_what_is_due(forge: Forge, tmp_path: Path) -> None:
    wall = tmp_path / "wall"
    wall.write_text("0")
    seams = {"host.life:BEAT_LOST_SECONDS": 4.0}
    async with house(forge, seams=seams, INNKEEPER_TEST_WALL=str(wall)) as made:
        terminal = await made.agent("honest")
        await terminal.ask("hello")
        states = [await made.folder(name) / "state" for name in ("honest", "calm")]
        await _jump(wall, states, DAY)
        slow = await terminal.send("/rehearse slow 3")
        await made.works_on("honest")
        await _jump(wall, states, -DAY)
        await terminal.until(lambda: slow in terminal.settled)
        assert len(terminal.texts) == 2
        # A retry that is due in five seconds is due at once, a day later.
        crashed = await terminal.send("/rehearse crash")
        await made.until_there("honest", "SELECT 1 FROM messages_in WHERE tries = 1")
        await _jump(wall, states, DAY)
        await terminal.until(lambda: crashed in terminal.settled, 4.0)
        assert terminal.notices == []
        await made.neighbour_answers()
        await made.neighbour_was_never_touched()
        assert made.host.events("a sandbox is killed") == []


async def _jump(wall: Path, states: list[Path], seconds: float) -> None:
    for path in [wall, *(state / "wall" for state in states)]:
        building = path.with_name("wall.new")
        building.write_text(str(seconds))
        building.chmod(0o644)
        building.rename(path)
