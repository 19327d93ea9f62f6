"""A hostile program in a sandbox, with all that the runner has, against what lies around it: in both runtimes alike."""

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from host.runtime.base import SandboxSpec
from tests.runtime.conftest import DOOR, Caged, CagedProcess, ask, door

CANARY = "sk-canary-9e1b77"

_HANDLES = """
import os
answer = {}
for name in os.listdir("/proc/self/fd"):
    try:
        answer[name] = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        pass  # the listing's own
"""

_REACH = """
import ctypes, os, socket, glob
libc = ctypes.CDLL(None, use_errno=True)
answer = {}

def tried(name, attempt):
    try:
        answer[name] = bool(attempt())
    except (OSError, ValueError):
        answer[name] = False

def syscall(*arguments):
    return libc.syscall(*arguments) >= 0

pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
answer["others"] = [pid for pid in pids if pid not in (1, os.getpid(), os.getppid())]
tried("signal all", lambda: [os.kill(pid, 0) for pid in range(2, 40000) if pid not in (os.getpid(), os.getppid())
                             and os.path.exists(f"/proc/{pid}")])
tried("trace the first process", lambda: libc.ptrace(16, 1, 0, 0) == 0 and os.getpid() != 1)
tried("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0)
tried("unmount the agent's folder", lambda: libc.umount2(b"/workspace/agent/home", 2) == 0)
tried("write again what is read-only", lambda: libc.mount(None, b"/workspace/inbound", None, 32 | 4096, None) == 0)
tried("a device", lambda: (os.mknod("/tmp/disk", 0o060600, os.makedev(8, 0)), os.open("/tmp/disk", 0)))
tried("another user", lambda: os.setuid(0) is None and os.getuid() == 0 and open("/workspace/run/x", "w"))
tried("the kernel's settings", lambda: open("/proc/sys/kernel/core_pattern", "w"))
tried("the sysrq door", lambda: open("/proc/sysrq-trigger", "w"))
tried("the machine's memory", lambda: os.open("/proc/kcore", 0))
tried("the first process's root", lambda: os.getpid() != 1 and os.listdir("/proc/1/root/") and
      os.path.exists("/proc/1/root/root"))
tried("the network", lambda: socket.create_connection(("127.0.0.1", PORT), 1))
tried("another network's settings", lambda: libc.setns(os.open("/proc/1/ns/net", 0), 0) == 0 and
      socket.create_connection(("127.0.0.1", PORT), 1))
def abstract():
    client = socket.socket(socket.AF_UNIX)
    client.connect(NAME)
    return True
tried("a nameless socket of the host's", abstract)
tried("the engine's socket", lambda: [path for path in ("/var/run/docker.sock", "/run/docker.sock")
                                      if os.path.exists(path)])
for name in ("run", "inbound", "agent"):
    tried(f"rename in {name}", lambda: os.rename(f"/workspace/{name}/mine", f"/workspace/{name}/yours") is None)
    tried(f"swap {name}", lambda: os.rename(f"/workspace/{name}", "/workspace/gone") is None)
for name in ("outbound", "state", "agent/home"):
    tried(f"swap {name}", lambda: os.rename(f"/workspace/{name}", f"/workspace/{name}.old") is None)
"""


async def test_no_handle_of_the_hosts_is_open_inside(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    leaked = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        handles: dict[str, str] = await ask(runtime, spec, logs, _HANDLES)
    finally:
        os.close(leaked)
    assert set(handles) <= {"0", "1", "2"}
    assert all(target.startswith(("pipe:", "/dev/null")) for target in handles.values()), handles


@pytest.mark.req("R083", "R084")
async def test_nothing_outside_can_be_reached_or_swapped(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    for folder in (spec.run, spec.inbound, spec.agent):
        (folder / "mine").write_text("the host's")
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        name = f"\0innkeeper-attack-{os.getpid()}"
        abstract = await asyncio.start_unix_server(lambda *_: None, name)
        program = f"PORT, NAME = {port}, {name!r}\n{_REACH}"
        answer: dict[str, Any] = await ask(runtime, spec, logs, program)
        abstract.close()
    assert {name for name, reached in answer.items() if reached} == set()


@pytest.mark.req("R084")
async def test_two_sandboxes_of_one_agent_do_not_see_each_other(
    runtime: Caged, make_spec: Callable[..., SandboxSpec], logs: Path
) -> None:
    first, second = make_spec("s-one"), make_spec("s-two")
    assert first.uid == second.uid
    (first.state / "secret").write_text(CANARY)
    if os.geteuid() == 0:
        os.chown(first.state / "secret", first.uid, first.gid)
    runtime.program = f"""{DOOR}
import os
open("/tmp/secret", "w").write({CANARY!r})
open("/dev/shm/secret", "w").write({CANARY!r})
door.sendall(b"ready\\n")
door.recv(1)
"""
    async with door(first) as knock:
        sandbox = await runtime.start(first)
        await knock()
        program = f"""
import os, subprocess
found = []
for top in ("/tmp", "/dev/shm", "/workspace", "/proc"):
    for folder, _, names in os.walk(top, onerror=None):
        if folder.count("/") > 5 or "/task" in folder:
            continue
        for name in names:
            try:
                path = os.path.join(folder, name)
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                content = os.read(handle, 65536)
                os.close(handle)
                if {CANARY[:9]!r}.encode() + {CANARY[9:]!r}.encode() in content and b"found" not in content:
                    found.append(path)
            except OSError:
                pass
answer = [found, sum(name.isdigit() for name in os.listdir("/proc"))]
"""
        try:
            found, processes = await ask(runtime, second, logs, program)
        finally:
            await sandbox.kill()
    assert found == []
    assert processes <= 2


async def test_a_process_sandbox_is_the_first_to_go_when_memory_runs_out(
    processes: CagedProcess, spec: SandboxSpec, logs: Path
) -> None:
    assert await ask(processes, spec, logs, 'answer = int(open("/proc/self/oom_score_adj").read())') == 1000


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of the system calls are this machine's")
async def test_the_keys_that_the_kernel_keeps_for_a_user_stay_outside(
    processes: CagedProcess, spec: SandboxSpec, logs: Path
) -> None:
    join, search, session, add_key, keyctl = 1, 10, -3, 248, 250
    libc = ctypes.CDLL(None)
    libc.syscall(keyctl, join, None)
    if libc.syscall(add_key, b"user", b"ik-canary", CANARY.encode(), len(CANARY), session) < 0:
        pytest.skip("this kernel keeps no keys")
    assert libc.syscall(keyctl, search, session, b"user", b"ik-canary", 0) > 0
    program = f"""
import ctypes
answer = ctypes.CDLL(None).syscall({keyctl}, {search}, {session}, b"user", b"ik-canary", 0)
"""
    assert await ask(processes, spec, logs, program) == -1
