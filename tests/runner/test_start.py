"""How a runner starts, and how it says that it cannot."""

import asyncio
import stat
import subprocess
import sys
from datetime import UTC
from pathlib import Path

import pytest

from agent_runner.loop import Runner, Setup
from agent_runner.mailbox import Mailbox
from agent_runner.providers.rehearsal import make
from agent_runner.tools.registry import ToolContext, build_toolbox
from mailboxes.limits import BEAT_SECONDS, EXIT_CONFIGURATION, EXIT_SECOND_RUNNER
from tests.fakes.clock import FakeClock
from tests.runner.conftest import Start
from tests.runner.harness import DEADLINE, ROOT, Bell, HostSide


@pytest.mark.req("R025")
@pytest.mark.parametrize("missing", ["inbound/inbound.db", "outbound/outbound.db"])
async def test_without_a_mailbox_it_exits_and_names_the_missing_file(
    host: HostSide, start: Start, tmp_path: Path, missing: str
) -> None:
    (tmp_path / missing).unlink()
    runner = await start()
    assert await runner.ended() == EXIT_CONFIGURATION
    errors = await runner.errors()
    assert len(errors.splitlines()) == 1
    assert str(tmp_path / missing) in errors
    assert not (tmp_path / missing).exists()


@pytest.mark.req("R025")
async def test_pointed_at_an_empty_folder_it_exits_with_one_clear_line(
    host: HostSide, start: Start, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere"
    runner = await start("--inbound", str(nowhere), "--outbound", str(nowhere))
    assert await runner.ended() == EXIT_CONFIGURATION
    assert len((await runner.errors()).splitlines()) == 1


@pytest.mark.req("R124")
async def test_an_unknown_provider_ends_it_with_the_names_of_those_there_are(host: HostSide, start: Start) -> None:
    message = host.chat("hello")
    runner = await start(AGENT_PROVIDER="zzz")
    assert await runner.ended() == EXIT_CONFIGURATION
    errors = await runner.errors()
    assert len(errors.splitlines()) == 1
    assert "'zzz'" in errors
    assert "claude" in errors
    assert "rehearsal" in errors
    assert host.snapshot().claim(message) is None


async def test_a_second_runner_on_one_mailbox_leaves(host: HostSide, start: Start) -> None:
    first = await start()
    await first.answered(host.chat("hello"))
    second = await start()
    assert await second.ended() == EXIT_SECOND_RUNNER
    assert await first.stop() == 0
    third = await start()
    await third.answered(host.chat("again"))


async def test_what_it_writes_is_for_its_own_eyes(host: HostSide, start: Start) -> None:
    await (await start()).answered(host.chat("/rehearse long 300000"))
    written = [
        path for folder in (host.workspace.state, host.workspace.outbound / "files") for path in folder.rglob("*")
    ]
    assert written
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in written)


async def test_without_tools_a_turn_has_none(host: HostSide, start: Start) -> None:
    snapshot = await (await start("--no-tools")).answered(host.chat("/rehearse tool"))
    assert "there is no tool here" in snapshot.texts()[0]


async def test_with_tools_a_turn_runs_one(host: HostSide, start: Start) -> None:
    snapshot = await (await start()).answered(host.chat("/rehearse tool"))
    assert "get_current_time says: " in snapshot.texts()[0]


def test_no_provider_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, agent_runner.__main__;"
        "slow = {'anthropic', 'httpx', 'structlog', 'zoneinfo', 'mcp'} & set(sys.modules);"
        "assert not slow, slow; assert 'agent_runner.providers.claude' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def _setup(host: HostSide) -> Setup:
    return Setup(
        workspace=host.workspace,
        model="",
        assistant_name="Ivy",
        zone=lambda: UTC,
        load_provider=lambda: make(host.workspace.run),
        load_toolbox=lambda _desk: build_toolbox(ToolContext(host.workspace.home, host.workspace, enabled=False)),
        run_scripts=False,
        runner_hash="hash",
    )


async def test_without_a_bell_each_beat_is_counted_in_the_mailbox(host: HostSide) -> None:
    clock = FakeClock()
    runner = Runner(_setup(host), Mailbox(host.workspace), clock)
    running = asyncio.create_task(runner.run())
    while len(clock._sleepers) < 2:  # the beat, and the next try at the bell
        await asyncio.sleep(0)
    for _ in range(3):
        await clock.advance(BEAT_SECONDS)
    runner.stop()
    await running
    state = host.snapshot().state
    assert state is not None
    assert state["beat"] == 3


async def test_with_a_bell_a_beat_is_a_byte_and_costs_no_write(host: HostSide) -> None:
    clock = FakeClock()
    ringing = Bell(host)
    runner = Runner(_setup(host), Mailbox(host.workspace), clock)
    running = asyncio.create_task(runner.run())
    async with asyncio.timeout(DEADLINE):
        await ringing.accept()
    await ringing.hear(b"b")
    await clock.advance(BEAT_SECONDS)
    await ringing.hear(b"b")
    runner.stop()
    await running
    ringing.close()
    state = host.snapshot().state
    assert state is not None
    assert state["beat"] == 0


async def test_it_is_ready_without_a_key_a_model_or_its_provider_imported(host: HostSide, start: Start) -> None:
    runner = await start(AGENT_PROVIDER="claude")
    snapshot = await runner.until(lambda s: s.state is not None)
    assert snapshot.state is not None
    assert (snapshot.state["state"], snapshot.state["next_seq"]) == ("idle", 1)
    assert await runner.stop() == 0
