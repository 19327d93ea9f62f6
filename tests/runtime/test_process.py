"""Processes: what holds for the cage of bubblewrap alone, as root and as a user, and what happens without it."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from host.runtime.base import RuntimeUnavailable, SandboxSpec
from host.runtime.process import Place, ProcessRuntime, cage_arguments
from tests.runtime.conftest import (
    AS_USER,
    DEADLINE,
    USER,
    CagedProcess,
    as_user,
    needs_root,
    packages,
    run,
    system_python,
)

_AS_USER = """
import asyncio, json, os
from dataclasses import replace
from pathlib import Path
from host.runtime.base import Limits
from host.runtime.probe import probe_spec
from host.runtime.process import ProcessRuntime, python_prelude

LOOK = '''
import json, os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
print(json.dumps({
    "uid": os.getuid(), "capabilities": int(status["CapEff"], 16), "no new": status["NoNewPrivs"].strip(),
    "network": [name for _, name in socket.if_nameindex() if name.startswith(("e", "w"))],
    "host": [path for path in (SEEN) if os.access(path, os.R_OK)], "environment": sorted(os.environ),
}))
'''

class Caged(ProcessRuntime):
    def _command(self, spec):
        look = LOOK.replace("SEEN", repr([os.environ["FOLDER"], "/etc/passwd", "/root"]))
        return [str(self._place.python), "-I", "-c", python_prelude(self._place) + look]

async def main():
    folder = Path(os.environ["FOLDER"])
    runtime = Caged("test", folder / "logs")
    probe = await runtime.probe()
    with probe_spec(folder) as spec:
        sandbox = await runtime.start(replace(spec, session_id="s-user"))
        code = (await sandbox.wait()).code
    said = "".join(path.read_text() for path in (folder / "logs" / "s-user").iterdir())
    print(json.dumps([probe.usable, probe.problems, runtime.sandboxed, code, said]))
    await runtime.close()

asyncio.run(main())
"""


@needs_root
@pytest.mark.req("R091")
def test_an_ordinary_users_host_cages_its_runners_too(root: Path) -> None:
    done = as_user(_AS_USER, root)
    assert done.returncode == 0, done.stderr
    usable, problems, sandboxed, code, said = json.loads(done.stdout)
    assert (usable, problems, sandboxed, code) == (True, [], True, 0), said
    seen = json.loads(said)
    assert {key: seen[key] for key in ("uid", "capabilities", "no new", "network", "host")} == {
        "uid": USER,
        "capabilities": 0,
        "no new": "1",
        "network": [],
        "host": [],
    }
    assert set(seen["environment"]) <= {"HOME", "PATH", "PWD", "LC_CTYPE"}


def _path_without_bubblewrap(folder: Path) -> str:
    tools = folder / "bin"
    tools.mkdir()
    for name in ("setpriv", "prlimit"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    return str(tools)


_WITHOUT_CAGE = """
import asyncio, os, sys
from pathlib import Path
from host.runtime.process import ProcessRuntime
from host.runtime.probe import probe_spec

class Plain(ProcessRuntime):
    def _plain_command(self, spec):
        # What the real command would be, and a program that looks at it in the runner's place.
        look = "import os, sys; assert set(os.environ) <= {'HOME', 'PATH', 'LC_CTYPE'}, os.environ"
        return [sys.executable, "-I", "-c", look, *super()._plain_command(spec)]

async def main():
    folder = Path(os.environ["FOLDER"])
    for unsafe in (False, True):
        runtime = Plain("test", folder / "logs", unsafe)
        probe = await runtime.probe()
        with probe_spec(folder) as spec:
            command = runtime._arguments(spec)
            ended = await (await runtime.start(spec)).wait()
        assert ended.code == 0, ended
        print(probe.usable, runtime.sandboxed, "--no-tools" in command, command[command.index("--outbound") + 1])
        print(" ".join(probe.problems))

asyncio.run(main())
"""


@needs_root
@pytest.mark.req("R091")
def test_a_users_host_without_bubblewrap_chats_and_has_no_tools_unless_told_otherwise(root: Path) -> None:
    done = as_user(_WITHOUT_CAGE, root, _path_without_bubblewrap(root))
    assert done.returncode == 0, done.stderr
    safe, why, unsafe, why_unsafe = done.stdout.splitlines()
    assert safe.startswith(f"True False True {root}/.probe-")
    assert unsafe.startswith(f"True False False {root}/.probe-")
    assert "sudo apt-get install bubblewrap" in why
    assert "have no tools" in why
    assert "without a cage, as you asked" in why_unsafe


@needs_root
@pytest.mark.req("R091")
@pytest.mark.parametrize("unsafe", [False, True])
async def test_a_host_that_runs_as_root_starts_nothing_without_a_cage(
    spec: SandboxSpec, root: Path, logs: Path, monkeypatch: pytest.MonkeyPatch, unsafe: bool
) -> None:
    monkeypatch.setenv("PATH", _path_without_bubblewrap(root))
    runtime = ProcessRuntime("test", logs, unsafe)
    with pytest.raises(RuntimeUnavailable, match="sudo apt-get install bubblewrap"):
        await runtime.start(spec)
    assert not (await runtime.probe()).usable


@pytest.mark.req("R091")
async def test_a_bubblewrap_that_is_there_and_does_not_work_counts_as_none(
    root: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = Path(_path_without_bubblewrap(root))
    (tools / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace'\nexit 1\n")
    (tools / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    runtime = ProcessRuntime("test", logs)
    probe = await runtime.probe()
    assert not runtime.sandboxed
    assert "No permissions to create new namespace" in probe.problems[0]


_HOST = """
import asyncio, os
from host.runtime.probe import probe_spec
from host.runtime.process import ProcessRuntime, python_prelude
from pathlib import Path

class Caged(ProcessRuntime):
    def _command(self, spec):
        # Its own child must go as well, although it ignores what can be ignored.
        program = "import os, signal; os.fork(); signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
        return [str(self._place.python), "-I", "-c", python_prelude(self._place) + program]

async def main():
    folder = Path(os.environ["FOLDER"])
    runtime = Caged("test", folder / "logs")
    with probe_spec(folder) as spec:
        await runtime.start(spec)
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def _below(pid: int) -> list[int]:
    """Every process under one."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(deeper for child in found for deeper in _below(child))]


@pytest.mark.req("R088", "R091")
@pytest.mark.fault(78)
@pytest.mark.parametrize("user", [False, pytest.param(True, marks=needs_root)])
async def test_a_host_that_is_killed_takes_its_cages_along(root: Path, user: bool) -> None:
    if user:
        os.chown(root, USER, USER)
    command = [*AS_USER, system_python()] if user else [sys.executable]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": packages(), "FOLDER": str(root)}
    host = await asyncio.create_subprocess_exec(
        *command, "-c", _HOST, env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    assert host.stdout is not None
    assert await asyncio.wait_for(host.stdout.readline(), DEADLINE) == b"ready\n"
    caged = await asyncio.to_thread(_wait_for_children, host.pid)
    handles = [os.pidfd_open(pid) for pid in caged]
    os.kill(host.pid, signal.SIGKILL)
    await host.wait()
    for handle in handles:
        assert await asyncio.to_thread(_gone, handle)
        os.close(handle)


def _wait_for_children(pid: int) -> list[int]:
    """Bubblewrap, its process 1, the program and the program's child."""
    deadline = time.monotonic() + DEADLINE
    while len(found := _below(pid)) < 4:
        assert time.monotonic() < deadline, found
    return found


def _gone(handle: int) -> bool:
    return bool(select.select([handle], [], [], DEADLINE)[0])


async def test_nothing_is_left_of_a_cage_that_ended(processes: CagedProcess, spec: SandboxSpec) -> None:
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\nraise SystemExit(3)"
    assert (await run(processes, spec, program)).code == 3
    assert await processes.find_ours() == []
    marker = str(spec.state).encode()
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if marker in command]


@pytest.mark.req("R083", "R089")
def test_the_cage_is_made_of_these_parts(spec: SandboxSpec) -> None:
    place = Place(Path("/usr"), Path("/usr/bin/python3"), ())
    rooted = cage_arguments(spec, place, as_root=True)
    users = cage_arguments(spec, place, as_root=False)
    for arguments in (rooted, users):
        assert {"--die-with-parent", "--clearenv", "--new-session", "--no-new-privs"} <= set(arguments)
        assert "--share-net" not in arguments
        binds = [(arguments[i + 1], arguments[i + 2]) for i, word in enumerate(arguments) if word == "--bind"]
        assert binds == [
            (str(spec.outbound), "/workspace/outbound"),
            (str(spec.state), "/workspace/state"),
            (str(spec.home), "/workspace/agent/home"),
        ]
    assert "--unshare-all" in users
    assert "--unshare-user" not in rooted
    assert "--unshare-all" not in rooted
    assert {"--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--clear-groups"} <= set(rooted)
