"""What a sandbox can and cannot do, tried from inside, in both runtimes alike."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from host.runtime.base import AlreadyRunning, Limits, Mount, Sandbox, SandboxRefused, SandboxSpec
from host.runtime.cage import LOG_BYTES
from host.runtime.docker import PATH
from tests.runtime.conftest import DOOR, Caged, CagedDocker, ask, door, output_of, run

CANARY = "sk-canary-5f1c9d"

_TRY_TO_WRITE = """
import os
answer = {}
for path in %r:
    try:
        with open(path, "a") as file:
            file.write("x")
        answer[path] = True
    except OSError:
        answer[path] = False
"""


@pytest.mark.req("R083", "R091")
async def test_a_sandbox_writes_its_own_folders_and_no_others(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    own = ["/workspace/outbound/x", "/workspace/state/x", "/workspace/agent/home/x", "/tmp/x", "/dev/shm/x"]
    others = [
        "/workspace/inbound/x", "/workspace/run/x", "/workspace/agent/x", "/workspace/agent/SOUL.md", "/workspace/x",
        "/x", "/etc/x", "/usr/x", "/opt/innkeeper/x", "/home/x", "/var/x", "/dev/x",
    ]  # fmt: skip
    answer = await ask(runtime, spec, logs, _TRY_TO_WRITE % [*own, *others])
    assert answer == {**dict.fromkeys(own, True), **dict.fromkeys(others, False)}
    assert (spec.home / "x").stat().st_uid == spec.uid
    assert (spec.agent / "SOUL.md").read_text() == "I am kind."


@pytest.mark.req("R091", "R273")
async def test_a_sandbox_has_no_privilege_and_no_network(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    answer = await ask(
        runtime,
        spec,
        logs,
        """
import os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
answer = {key: status[key].split() for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")}
answer["ids"] = [os.getresuid(), os.getresgid()]
answer["groups"] = os.getgroups()
answer["network"] = [name for _, name in socket.if_nameindex()]
answer["cwd"] = os.getcwd()
answer["stdin"] = os.read(0, 1).decode()
answer["processes"] = sum(name.isdigit() for name in os.listdir("/proc"))
""",
    )
    nothing = ["0" * 16]
    assert {key: answer[key] for key in answer if key.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), nothing
    )
    assert answer["NoNewPrivs"] == ["1"]
    assert answer["ids"] == [[spec.uid] * 3, [spec.gid] * 3]
    assert set(answer["groups"]) <= {spec.gid}
    assert "lo" in answer["network"]
    assert not [name for name in answer["network"] if name.startswith(("e", "w"))]
    assert (answer["cwd"], answer["stdin"]) == ("/", "")
    assert answer["processes"] <= 2


@pytest.mark.req("R084")
async def test_a_sandbox_sees_nothing_of_the_host(
    runtime: Caged, make_spec: Callable[..., SandboxSpec], root: Path, logs: Path
) -> None:
    spec, neighbour = make_spec("s-one"), make_spec("s-two")
    database = root / "host.db"
    database.touch()
    paths = [
        str(path)
        for path in (
            root, database, neighbour.state, neighbour.agent, spec.state, logs, Path(__file__),
            Path.home() / ".ssh", Path.home() / ".bashrc",
            "/var/run/docker.sock", "/run/docker.sock", "/etc/shadow",
        )
    ]  # fmt: skip
    answer = await ask(
        runtime,
        spec,
        logs,
        f"""
import importlib.util, os
seen = [path for path in {paths} if os.access(path, os.R_OK)]
answer = [seen, importlib.util.find_spec("host") is None, sorted(os.listdir("/workspace"))]
""",
    )
    assert answer[0] == []
    assert answer[1], "the host's own package can be imported"
    assert set(answer[2]) - {"extra"} == {"inbound", "outbound", "state", "run", "agent"}


@pytest.mark.req("R089")
async def test_the_environment_is_the_specs_and_no_secret_of_the_hosts_gets_in(
    runtime: Caged, spec: SandboxSpec, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", CANARY)
    answer = await ask(
        runtime,
        spec,
        logs,
        """
import glob, os
answer = [dict(os.environ), ""]
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        answer[1] += open(path, errors="replace").read()
    except OSError:
        pass
""",
    )
    environment = answer[0]
    environment.pop("LC_CTYPE", None)  # Python's own doing where no locale is set
    assert environment.pop("PWD", "/") == "/"  # bubblewrap's
    path = environment.pop("PATH")
    assert path == PATH or path.endswith(":/usr/local/bin:/usr/bin:/bin")
    assert environment == {"HOME": "/workspace/agent/home", "INNKEEPER_TURN_MINUTES": "60"}
    assert CANARY not in answer[1]
    assert CANARY not in await asyncio.to_thread(output_of, logs, spec.session_id)


@pytest.mark.req("R083")
async def test_modules_that_an_agent_puts_into_its_folders_break_nothing(
    runtime: Caged, spec: SandboxSpec, logs: Path
) -> None:
    for folder in (spec.home, spec.state, spec.outbound):
        for name in ("email.py", "sqlite3.py", "sitecustomize.py"):
            (folder / name).write_text("raise SystemExit('the wrong module')")
    answer = await ask(runtime, spec, logs, "import email, sqlite3; answer = [email.__file__, sqlite3.__file__]")
    assert not [path for path in answer if path.startswith("/workspace")]


@pytest.mark.req("R091")
async def test_the_runner_and_what_it_needs_can_be_imported(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    program = "import agent_runner, mailboxes.schema, httpx2, anthropic; answer = anthropic.__version__"
    assert await ask(runtime, spec, logs, program)


@pytest.mark.req("R085")
async def test_an_extra_folder_is_read_only_unless_it_was_given_for_writing(
    runtime: Caged, spec: SandboxSpec, root: Path, logs: Path
) -> None:
    for name in ("books", "desk"):
        folder = root / name
        folder.mkdir()
        folder.chmod(0o777)
    mounts = (Mount(root / "books", "/workspace/extra/books"), Mount(root / "desk", "/workspace/extra/desk", False))
    paths = ["/workspace/extra/books/x", "/workspace/extra/desk/x"]
    answer = await ask(runtime, replace(spec, extra_mounts=mounts), logs, _TRY_TO_WRITE % paths)
    assert answer == {paths[0]: False, paths[1]: True}


@pytest.mark.req("R085")
@pytest.mark.parametrize(
    "target",
    ["/workspace/extra", "/workspace/inbound", "/workspace/extra/../run", "/etc", "extra/x", "/workspace/extra/x/"],
)
async def test_an_extra_folder_goes_nowhere_but_below_extra(
    runtime: Caged, spec: SandboxSpec, root: Path, target: str
) -> None:
    with pytest.raises(SandboxRefused, match="below /workspace/extra/"):
        await runtime.start(replace(spec, extra_mounts=(Mount(root, target),)))


@pytest.mark.req("R083")
@pytest.mark.parametrize("name", ["inbound", "outbound", "state", "run", "home"])
async def test_a_link_in_the_place_of_a_folder_is_refused(
    runtime: Caged, spec: SandboxSpec, root: Path, name: str
) -> None:
    folder: Path = getattr(spec, name)
    folder.rmdir()
    folder.symlink_to(root)
    with pytest.raises(SandboxRefused, match=f"{folder} cannot be mounted: it is a link"):
        await runtime.start(spec)


@pytest.mark.req("R091")
async def test_memory_beyond_the_limit_is_not_given(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    answer = await ask(
        runtime,
        replace(spec, limits=Limits(memory_bytes=128 * 1024**2)),
        logs,
        """
import os
child = os.fork()
if child == 0:
    try:
        hog = bytearray(512 * 1024**2)
        hog[::4096] = b"x" * len(hog[::4096])
    except MemoryError:
        os._exit(1)
    os._exit(0)
answer = os.waitpid(child, 0)[1] != 0
""",
    )
    assert answer


@pytest.mark.req("R091")
async def test_processes_files_and_core_dumps_have_limits(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    answer = await ask(
        runtime,
        spec,
        logs,
        """
import os, resource
children = []
try:
    while len(children) < 100:
        child = os.fork()
        if child == 0:
            os.read(os.pipe()[0], 1)
        children.append(child)
except BlockingIOError:
    pass
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
answer = [len(children), resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)]
""",
    )
    if isinstance(runtime, CagedDocker) or os.geteuid() == 0:  # a user's processes are counted with all of that user's
        assert 20 <= answer[0] < spec.limits.processes
    assert answer[1:] == [[512, 512], [0, 0]]


async def test_an_exit_code_is_told_however_often_it_is_asked(runtime: Caged, spec: SandboxSpec) -> None:
    runtime.program = "raise SystemExit(75)"
    sandbox = await runtime.start(spec)
    assert [(await sandbox.wait()).code, (await sandbox.wait()).code] == [75, 75]
    await sandbox.stop(1)
    await sandbox.kill()


@pytest.mark.fault(86)
async def test_stop_lets_the_runner_finish(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    runtime.program = f"""{DOOR}
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("put away"), sys.exit(0)))
door.sendall(b"ready\\n")
while True:
    signal.pause()
"""
    async with door(spec) as knock:
        sandbox = await runtime.start(spec)
        await knock()
        await sandbox.stop(30)
    assert (await sandbox.wait()).code == 0
    assert await asyncio.to_thread(output_of, logs, spec.session_id) == "put away\n"


@pytest.mark.fault(76)
async def test_stop_kills_what_does_not_listen(runtime: Caged, spec: SandboxSpec) -> None:
    runtime.program = f"""{DOOR}
import signal
signal.signal(signal.SIGTERM, lambda *_: door.sendall(b"no\\n"))
door.sendall(b"ready\\n")
while True:
    signal.pause()
"""
    async with door(spec) as knock:
        sandbox = await runtime.start(spec)
        assert await knock() == "ready"
        await sandbox.stop(0.3)
        assert await knock() == "no"
    assert (await sandbox.wait()).code == 137


@pytest.mark.req("R079")
@pytest.mark.fault(16)
async def test_a_session_has_one_sandbox_at_a_time(runtime: Caged, spec: SandboxSpec) -> None:
    runtime.program = f"{DOOR}door.sendall(b'ready\\n'); door.recv(1)"
    async with door(spec) as knock:
        starts: list[Awaitable[Sandbox]] = [runtime.start(spec) for _ in range(5)]
        results = await asyncio.gather(*starts, return_exceptions=True)
        (sandbox,) = (result for result in results if not isinstance(result, BaseException))
        assert sum(isinstance(result, AlreadyRunning) for result in results) == 4
        await knock()
        with pytest.raises(AlreadyRunning, match=spec.session_id):
            await runtime.start(spec)
        await sandbox.kill()
        again = await runtime.start(spec)
        await knock()
        await again.kill()


async def test_a_flood_of_output_does_not_fill_the_disk(runtime: Caged, spec: SandboxSpec, logs: Path) -> None:
    ended = await run(runtime, spec, "for n in range(40000): print(n, 'x' * 40)\nprint('the end')")
    assert ended.code == 0
    assert (await asyncio.to_thread(output_of, logs, spec.session_id)).count("the end") == 1
    assert sum(path.stat().st_size for path in (logs / spec.session_id).iterdir()) <= 2 * LOG_BYTES
    assert {path.stat().st_mode & 0o777 for path in (logs / spec.session_id).iterdir()} == {0o600}


async def test_a_name_that_is_no_session_id_becomes_no_sandbox(runtime: Caged, spec: SandboxSpec) -> None:
    for name in ("../../x", "", "a" * 17, "a b"):
        with pytest.raises(SandboxRefused, match="no session id"):
            await runtime.start(replace(spec, session_id=name))


@pytest.mark.req("R088")
async def test_the_options_hash_tells_any_two_sets_of_options_apart(
    runtime: Caged, make_spec: Callable[..., SandboxSpec], root: Path
) -> None:
    spec = make_spec()
    limits = spec.limits
    others = [
        replace(spec, uid=spec.uid + 1),
        replace(spec, gid=spec.gid + 1),
        replace(spec, environment={}),
        replace(spec, environment={**spec.environment, "A": "b"}),
        replace(spec, limits=replace(limits, memory_bytes=limits.memory_bytes + 1)),
        replace(spec, limits=replace(limits, open_files=limits.open_files + 1)),
        replace(spec, limits=replace(limits, processes=limits.processes + 1)),
        replace(spec, limits=replace(limits, cpus=limits.cpus + 1)),
        replace(spec, extra_mounts=(Mount(root, "/workspace/extra/a"),)),
        replace(spec, extra_mounts=(Mount(root, "/workspace/extra/a", read_only=False),)),
        replace(spec, inbound=root),
        replace(spec, outbound=root),
        replace(spec, state=root),
        replace(spec, run=root),
        replace(spec, agent=root),
        replace(spec, home=root),
    ]
    await runtime.probe()
    hashes = [runtime.options_hash(one) for one in (spec, *others)]
    assert len(set(hashes)) == len(hashes)
    assert runtime.options_hash(replace(spec)) == hashes[0]


@pytest.mark.req("R091")
@pytest.mark.fault(81)
async def test_the_probe_tries_the_cage_and_finds_nothing_wrong(runtime: Caged, logs: Path) -> None:
    probe = await runtime.probe()
    assert (probe.usable, probe.problems) == (True, ())
    assert {probe.facts[f"write {name}"] for name in ("outbound", "state", "agent/home")} == {"yes"}
    assert probe.facts["memory limit"] == "yes"
    assert not list(logs.iterdir())
    assert probe.facts["host python"] == sys.version.split()[0]
