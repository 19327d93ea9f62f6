import asyncio
import os
import resource
import secrets
from pathlib import Path

import pytest

from agent_runner.tools import shell
from agent_runner.tools.registry import MAX_OUTPUT, Toolbox
from mailboxes.layout import Workspace


def _alive(argument: str) -> bool:
    """Whether a process with that argument runs."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and argument.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


async def _until(path: Path) -> None:
    async with asyncio.timeout(10):
        while not path.exists():
            await asyncio.sleep(0.01)


@pytest.mark.req("R202")
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("echo out", "out"),
        ("echo out; echo err >&2", "out\n--- stderr ---\nerr"),
        ("echo err >&2; exit 3", "--- stderr ---\nerr\n[exit code: 3]"),
        ("exit 4", "[exit code: 4]"),
        ("true", "[no output]"),
        ("cat", "[no output]"),
        ("-n", "--- stderr ---"),
        (r"printf '\xff'", "�"),
    ],
)
async def test_output_errors_and_exit_code_are_told(toolbox: Toolbox, command: str, answer: str) -> None:
    assert (await toolbox.call("bash", {"command": command})).startswith(answer)


async def test_a_command_runs_in_the_working_folder(toolbox: Toolbox, workspace: Workspace) -> None:
    assert await toolbox.call("bash", {"command": "pwd"}) == str(workspace.home)


@pytest.mark.req("R202")
@pytest.mark.parametrize("command", ["rm -rf /", "rm -rf / --force", "mkfs.ext4 x", "echo > /dev/sda", "dd if=x"])
async def test_the_four_dangerous_commands_are_refused(toolbox: Toolbox, command: str) -> None:
    answer = await toolbox.call("bash", {"command": command})
    assert answer.startswith("Error: commands with '")
    assert answer.endswith("' are refused")


@pytest.mark.fault(128)
@pytest.mark.parametrize(
    "command", ["ls 2>/dev/null", "rm -rf /tmp/nothing-here", "echo https://example.org/x", "cat /etc/hostname || true"]
)
def test_the_seat_belt_blocks_no_ordinary_command(command: str) -> None:
    assert shell.refused(command) is None


@pytest.mark.req("R202")
async def test_a_command_that_takes_too_long_is_stopped(toolbox: Toolbox) -> None:
    answer = await toolbox.call("bash", {"command": "echo begun; sleep 86411", "timeout": 1})
    assert answer == "Error: The command took longer than 1 s and was stopped.\nbegun"
    assert not _alive("86411")


@pytest.mark.parametrize("timeout", [0, 301])
async def test_a_timeout_has_bounds(toolbox: Toolbox, timeout: int) -> None:
    answer = await toolbox.call("bash", {"command": "true", "timeout": timeout})
    assert answer == "Error: timeout must be between 1 and 300 seconds"


@pytest.mark.parametrize("leave", ["sleep {} &", "setsid sleep {} &", "(setsid sleep {} &) &", "nohup sleep {} &"])
async def test_nothing_that_a_command_starts_outlives_it(toolbox: Toolbox, leave: str) -> None:
    number = str(10**8 + secrets.randbelow(10**8))  # its own: the same test may run beside this one
    assert await toolbox.call("bash", {"command": f"{leave.format(number)} echo done"}) == "done"
    assert not _alive(number)


async def test_a_shell_that_is_reaped_at_once_is_not_waited_for_through_its_jobs(
    toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(pid: int) -> int:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(os, "pidfd_open", gone)  # what the kernel says of a process that was reaped already
    async with asyncio.timeout(10):
        assert await toolbox.call("bash", {"command": "setsid sleep 86414 & echo done"}) == "done"
    assert not _alive("86414")


async def test_closing_the_toolbox_kills_the_whole_tree(toolbox: Toolbox, workspace: Workspace) -> None:
    number = f"{os.getpid()}.86413"  # what another run has left behind is none of ours
    command = f"setsid sleep {number} & touch begun; sleep {number}"
    call = asyncio.create_task(toolbox.call("bash", {"command": command}))
    await _until(workspace.home / "begun")
    await toolbox.close()
    assert await call == "Error: bash was stopped."
    assert not _alive(number)


@pytest.mark.req("R202")
async def test_endless_output_costs_no_memory(toolbox: Toolbox) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = await toolbox.call("bash", {"command": "yes | head -c 300000000"})
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 100_000, "kilobytes"
    assert len(answer) <= MAX_OUTPUT
    assert answer.endswith("... [cut: 300000000 characters in total]")


@pytest.mark.req("R202")
async def test_a_cut_output_keeps_its_errors_and_its_exit_code(toolbox: Toolbox) -> None:
    command = "yes | head -c 90000; yes e | head -c 80000 >&2; exit 7"
    answer = await toolbox.call("bash", {"command": command})
    assert len(answer) <= MAX_OUTPUT
    assert "[cut: 90000 characters in total]" in answer
    assert "[cut: 80000 characters in total]" in answer
    assert answer.endswith("[exit code: 7]")
