"""Tries a cage from inside: a short program runs in a sandbox like any other and says what it could do."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from host.runtime.base import Limits, Probe, SandboxSpec

PROBE_SESSION = "probe"
_PROBE_ID = 1_999_999_999  # below those of the agent groups, so that no agent ever shares it
_MEMORY = 64 * 1024**2

# It runs before anything of ours is known to work in there, so it uses the standard library alone.
SCRIPT = """
import importlib.util, json, os, socket
facts = {}
for name in ("outbound", "state", "agent/home"):
    path = f"/workspace/{name}/.probe"
    try:
        open(path, "x").close()
        os.unlink(path)
        facts[f"write {name}"] = "yes"
    except OSError as error:
        facts[f"write {name}"] = error.strerror
for name in ("inbound", "run", "agent", "..", "../dev"):
    path = f"/workspace/{name}/.probe"
    try:
        open(path, "x").close()
        os.unlink(path)
        facts[f"protect {name}"] = "no"
    except OSError:
        facts[f"protect {name}"] = "yes"
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
facts["no privileges"] = "yes" if int(status["CapEff"], 16) == 0 and status["NoNewPrivs"].strip() == "1" else "no"
facts["no network"] = "yes" if [name for _, name in socket.if_nameindex() if name != "lo"] == [] else "no"
facts["user"] = f"{os.getuid()}:{os.getgid()}"
try:
    for module in ("agent_runner", "anthropic"):
        open(importlib.util.find_spec(module).origin).close()
    facts["runner"] = "yes"
except (AttributeError, ImportError, OSError) as error:
    facts["runner"] = f"{type(error).__name__}: {error}"
child = os.fork()
if child == 0:
    try:
        hog = bytearray(MEMORY)
        hog[::4096] = b"x" * len(hog[::4096])
    except MemoryError:
        os._exit(1)
    os._exit(0)
facts["memory limit"] = "yes" if os.waitpid(child, 0)[1] != 0 else "no"
for path in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
    if os.path.exists(path):
        facts["process limit"] = "no" if open(path).read().strip() == "max" else "yes"
print("FACTS" + json.dumps(facts))
""".replace("MEMORY", str(2 * _MEMORY))

_NEEDED = {
    "write outbound": "A sandbox cannot write its mailbox",
    "write state": "A sandbox cannot write its own folder state",
    "write agent/home": "A sandbox cannot write its agent's home folder",
    "protect inbound": "A sandbox can write what only the host may",
    "protect run": "A sandbox can write the folder of the host's sockets",
    "protect agent": "A sandbox can write its agent's rules",
    "protect ..": "A sandbox can write its root file system",
    "protect ../dev": "A sandbox can write among its devices",
    "no privileges": "A sandbox keeps privileges that it must not have",
    "no network": "A sandbox reaches the network",
    "runner": "A sandbox cannot read the program that it should run",
}
_WANTED = {
    "memory limit": "The memory limit has no effect here: one agent can use up this machine's memory. "
    "Start the kernel with cgroup_enable=memory",
    "process limit": "The limit on processes has no effect here. Use a kernel with the pids control group",
}


@contextmanager
def probe_spec(parent: Path) -> Iterator[SandboxSpec]:
    """Folders like those of a session, with the owners that they would have, below `parent`; removed afterwards."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    root = Path(mkdtemp(prefix=".probe-", dir=parent))
    as_root = os.geteuid() == 0
    uid, gid = (_PROBE_ID, _PROBE_ID) if as_root else (os.geteuid(), os.getegid())
    try:
        for name in ("inbound", "outbound", "state", "run", "agent", "agent/home"):
            folder = root / name
            folder.mkdir(mode=0o700)
            if as_root:
                mine = name in {"inbound", "run", "agent"}
                os.chown(folder, 0 if mine else uid, gid)
                folder.chmod(0o750 if mine else 0o700)
        yield SandboxSpec(
            session_id=PROBE_SESSION,
            agent_group_id=PROBE_SESSION,
            inbound=root / "inbound",
            outbound=root / "outbound",
            state=root / "state",
            run=root / "run",
            agent=root / "agent",
            home=root / "agent" / "home",
            uid=uid,
            gid=gid,
            environment={},
            limits=Limits(memory_bytes=_MEMORY, processes=64),
        )
    finally:
        rmtree(root, ignore_errors=True)


def judge(output: str, exit_code: int | None, facts: dict[str, str]) -> Probe:
    """A probe's result from what the program printed. `facts` are what is known besides."""
    lines = [line for line in output.splitlines() if line.startswith("FACTS")]
    if not lines:
        last = output.strip().splitlines()[-1:] or ["it said nothing"]
        return Probe(False, (f"A sandbox started to try it out ended at once (exit {exit_code}): {last[0]}",), facts)
    found: dict[str, str] = json.loads(lines[-1].removeprefix("FACTS"))
    broken = [f"{text} ({found.get(key, 'unknown')})." for key, text in _NEEDED.items() if found.get(key) != "yes"]
    weak = [f"{text}." for key, text in _WANTED.items() if found.get(key) == "no"]
    return Probe(not broken, (*broken, *weak), {**facts, **found, "host python": sys.version.split()[0]})
