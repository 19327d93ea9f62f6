"""Containers: what the engine is asked for, who finds them again, and what happens when the engine is away."""

import asyncio
import gc
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from structlog.testing import capture_logs

from host.runtime.base import AlreadyRunning, Limits, Mount, RuntimeUnavailable, SandboxRefused, SandboxSpec
from host.runtime.docker import DockerRuntime, container_options
from mailboxes import schema
from mailboxes.clock import SystemClock
from mailboxes.layout import INBOUND_DB, OUTBOUND_DB
from mailboxes.limits import EXIT_CONFIGURATION
from tests.fakes.engine_door import EngineDoor
from tests.runtime.conftest import DEADLINE, DOOR, CagedDocker, as_user, door, needs_root, output_of, run

MakeRuntime = Callable[..., CagedDocker]

WAITS = f"{DOOR}door.sendall(b'ready\\n'); door.recv(1)"


def inspect(container_id: str) -> dict[str, Any]:
    client = docker.APIClient()
    try:
        return dict(client.inspect_container(container_id))
    finally:
        client.close()


def by_hand(action: Callable[[docker.APIClient], Any]) -> Any:
    """What somebody else does to the engine."""
    client = docker.APIClient()
    try:
        return action(client)
    finally:
        client.close()


@pytest.mark.req("R083", "R085", "R086")
def test_these_options_and_no_others_make_a_container() -> None:
    home = Path("/home/ada/.innkeeper")
    session = home / "sessions" / "ag-1" / "s-1"
    spec = SandboxSpec(
        session_id="s-1",
        agent_group_id="ag-1",
        inbound=session / "inbound",
        outbound=session / "outbound",
        state=session / "state",
        run=Path("/run/innkeeper/x/y"),
        agent=home / "groups" / "cook",
        home=home / "groups" / "cook" / "home",
        uid=1000,
        gid=1001,
        environment={"INNKEEPER_TURN_MINUTES": "60"},
        limits=Limits(memory_bytes=1024, cpus=0.5, processes=7, open_files=9),
        extra_mounts=(Mount(Path("/srv/books"), "/workspace/extra/books"),),
    )
    options = container_options(spec, "innkeeper-agent:1", "inst", image_variables=["PIP_CERT", "PATH"])
    assert options.pop("Labels").pop("innkeeper.options").isalnum()
    assert options == {
        "Image": "innkeeper-agent:1",
        "Entrypoint": ["/opt/innkeeper/bin/python", "-I", "-m", "agent_runner"],
        "Cmd": [],
        "User": "1000:1001",
        "WorkingDir": "/",
        "Env": [
            "HOME=/workspace/agent/home",
            "INNKEEPER_TURN_MINUTES=60",
            "PATH=/opt/innkeeper/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOSTNAME",
            "PIP_CERT",
        ],
        "OpenStdin": False,
        "AttachStdin": False,
        "Tty": False,
        "NetworkDisabled": True,
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "private",
            "Privileged": False,
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,size=268435456,mode=1777"},
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Memory": 1024,
            "MemorySwap": 1024,
            "NanoCpus": 500_000_000,
            "PidsLimit": 7,
            "Ulimits": [
                {"Name": "nofile", "Soft": 9, "Hard": 9},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            "LogConfig": {"Type": "local", "Config": {"max-size": "512k", "max-file": "2", "compress": "false"}},
            "RestartPolicy": {"Name": "no"},
            "Init": False,
            "Mounts": [
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
                for source, target, read_only in (
                    ("/home/ada/.innkeeper/sessions/ag-1/s-1/inbound", "/workspace/inbound", True),
                    ("/home/ada/.innkeeper/sessions/ag-1/s-1/outbound", "/workspace/outbound", False),
                    ("/home/ada/.innkeeper/sessions/ag-1/s-1/state", "/workspace/state", False),
                    ("/run/innkeeper/x/y", "/workspace/run", True),
                    ("/home/ada/.innkeeper/groups/cook", "/workspace/agent", True),
                    ("/home/ada/.innkeeper/groups/cook/home", "/workspace/agent/home", False),
                    ("/srv/books", "/workspace/extra/books", True),
                )
            ],
        },
    }


@pytest.mark.docker
@pytest.mark.req("R089")
async def test_what_the_engine_knows_of_a_container_holds_no_secret(
    containers: MakeRuntime, spec: SandboxSpec, monkeypatch: pytest.MonkeyPatch, installation: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-77")
    runtime = containers()
    runtime.program = WAITS
    async with door(spec) as knock:
        sandbox = await runtime.start(spec)
        await knock()
        known = await asyncio.to_thread(inspect, sandbox.id)
        await sandbox.kill()
    assert "sk-canary-77" not in json.dumps(known)
    assert known["Config"]["Labels"] == {
        **known["Config"]["Labels"],
        "innkeeper.installation": installation,
        "innkeeper.session": spec.session_id,
        "innkeeper.options": runtime.options_hash(spec),
    }
    assert not any(known["Config"][key] for key in ("OpenStdin", "AttachStdin", "StdinOnce"))


@pytest.mark.docker
@pytest.mark.req("R088")
@pytest.mark.fault(76, 77)
async def test_the_next_host_finds_the_containers_of_its_own_installation_and_touches_no_others(
    containers: MakeRuntime, make_spec: Callable[..., SandboxSpec], logs: Path
) -> None:
    first, other = containers(), containers(f"test-{secrets.token_hex(4)}")
    spec, dead, foreign = make_spec("s-one"), make_spec("s-dead"), make_spec("s-other")
    first.program = other.program = WAITS
    async with door(spec) as knock, door(foreign) as other_knock:
        await first.start(spec)
        theirs = await other.start(foreign)
        await asyncio.gather(knock(), other_knock())
        await first.close()
        await asyncio.to_thread(_leave_a_dead_one, first, dead)

        second = containers()
        (found,) = await second.find_ours()
        assert (found.session_id, found.options_hash) == ("s-one", first.options_hash(spec))
        assert await asyncio.to_thread(output_of, logs, "s-dead") == "last words\n"
        with pytest.raises(AlreadyRunning):
            await second.start(spec)
        await found.sandbox.stop(0)
        assert (await found.sandbox.wait()).code == 137
        assert await second.find_ours() == []
        assert [one.sandbox.id for one in await other.find_ours()] == [theirs.id]


def _leave_a_dead_one(runtime: CagedDocker, spec: SandboxSpec) -> None:
    options = container_options(
        spec, runtime._image, runtime._installation, ["/opt/innkeeper/bin/python", "-c", "print('last words')"]
    )

    def start(client: docker.APIClient) -> None:
        name = f"innkeeper-{runtime._installation}-{spec.session_id}"
        made = client.create_container_from_config(options, name)  # type: ignore[no-untyped-call]
        client.start(made)
        client.wait(made)

    by_hand(start)


@pytest.mark.docker
@pytest.mark.fault(16)
async def test_a_dead_leftover_does_not_keep_a_session_from_starting(
    containers: MakeRuntime, spec: SandboxSpec, logs: Path
) -> None:
    runtime = containers()
    await asyncio.to_thread(_leave_a_dead_one, runtime, spec)
    assert (await run(runtime, spec, "print('new')")).code == 0
    assert sorted((await asyncio.to_thread(output_of, logs, spec.session_id)).split("\n")) == ["", "last words", "new"]


@pytest.mark.docker
@pytest.mark.req("R088")
async def test_a_container_that_somebody_else_removed_has_ended(containers: MakeRuntime, spec: SandboxSpec) -> None:
    runtime = containers()
    runtime.program = WAITS
    async with door(spec) as knock:
        sandbox = await runtime.start(spec)
        await knock()
        await asyncio.to_thread(by_hand, lambda client: client.remove_container(sandbox.id, force=True))
        ended = await asyncio.wait_for(sandbox.wait(), DEADLINE)
    assert ended.code in {137, None}
    await sandbox.stop(1)
    await sandbox.kill()


@pytest.mark.docker
async def test_a_container_that_runs_out_of_memory_says_so(containers: MakeRuntime, spec: SandboxSpec) -> None:
    small = replace(spec, limits=Limits(memory_bytes=64 * 1024**2))
    ended = await run(containers(), small, "hog = bytearray(512 * 1024**2); hog[::4096] = b'x' * len(hog[::4096])")
    assert (ended.code, ended.detail) == (137, "It ran out of memory.")


@pytest.mark.docker
@pytest.mark.req("R091")
async def test_a_missing_image_says_how_to_make_it(spec: SandboxSpec, logs: Path) -> None:
    runtime = DockerRuntime("test-none", "innkeeper-agent:none", logs, SystemClock())
    with pytest.raises(SandboxRefused, match=r"innkeeper-agent:none is not there. Make it with: host build"):
        await runtime.start(spec)
    probe = await runtime.probe()
    assert probe.usable
    assert probe.facts["image"] == "no"
    await runtime.close()


@pytest.mark.fault(82)
async def test_without_an_engine_every_call_says_what_to_do(spec: SandboxSpec, root: Path, logs: Path) -> None:
    runtime = DockerRuntime("test-none", "innkeeper-agent:none", logs, SystemClock(), f"unix://{root}/none.sock")
    try:
        for call in (runtime.start(spec), runtime.find_ours()):
            with pytest.raises(RuntimeUnavailable, match=r"No container engine answers at .*none\.sock\. Start it"):
                await call
        probe = await runtime.probe()
        assert not probe.usable
        assert "sudo apt-get install docker.io" in probe.problems[0]
    finally:
        await runtime.close()


@pytest.mark.docker
@needs_root
def test_somebody_who_may_not_use_the_engine_is_told_the_line_that_changes_it(root: Path) -> None:
    done = as_user(_PROBE, root)
    assert done.returncode == 0, done.stderr
    assert "is there, but you may not use it" in done.stdout
    assert "sudo usermod -aG docker $USER" in done.stdout
    assert "newgrp docker" in done.stdout


_PROBE = """
import asyncio, os
from pathlib import Path
from host.runtime.docker import DockerRuntime
from mailboxes.clock import SystemClock

async def main():
    runtime = DockerRuntime("test-none", "innkeeper-agent:none", Path(os.environ["FOLDER"]), SystemClock())
    probe = await runtime.probe()
    assert not probe.usable
    print(*probe.problems)
    await runtime.close()

asyncio.run(main())
"""


# The engine's client forgets a socket that it could not connect; it is collected before the next test.
forgets_sockets = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def engine_door(root: Path) -> Iterator[EngineDoor]:
    yield EngineDoor(root / "engine.sock")
    gc.collect()


@pytest.mark.docker
@forgets_sockets
@pytest.mark.fault(82)
async def test_an_end_that_came_while_the_engine_was_away_is_heard_of_when_it_is_back(
    engine_door: EngineDoor, containers: MakeRuntime, spec: SandboxSpec
) -> None:
    engine = engine_door
    runtime = containers(base_url=engine.url)
    runtime.program = WAITS
    with pytest.raises(RuntimeUnavailable):
        await runtime.start(spec)
    await engine.open()
    async with door(spec) as knock:
        sandbox = await runtime.start(spec)
        await knock()
        await engine.shut()
        await asyncio.to_thread(by_hand, lambda client: client.kill(sandbox.id))
        with pytest.raises(RuntimeUnavailable):
            await runtime.find_ours()
        await engine.open()
        assert (await asyncio.wait_for(sandbox.wait(), DEADLINE)).code == 137
        assert await runtime.find_ours() == []
    await runtime.close()
    await engine.shut()


@pytest.mark.docker
@forgets_sockets
@pytest.mark.fault(76)
async def test_a_stop_that_fails_is_told_as_a_failure(
    engine_door: EngineDoor, containers: MakeRuntime, spec: SandboxSpec
) -> None:
    engine = engine_door
    await engine.open()
    runtime = containers(base_url=engine.url)
    runtime.program = WAITS
    async with door(spec) as knock:
        sandbox = await runtime.start(spec)
        await knock()
        await engine.shut()
        with capture_logs() as events, pytest.raises(RuntimeUnavailable):
            await sandbox.stop(0)
        assert ("sandbox_stop_failed", "error") in {(event["event"], event["log_level"]) for event in events}
        assert (await asyncio.to_thread(inspect, sandbox.id))["State"]["Running"]
        await engine.open()
        await sandbox.stop(0)
        assert (await sandbox.wait()).code == 137
    await runtime.close()
    await engine.shut()


@pytest.mark.docker
@pytest.mark.req("R273")
async def test_a_container_of_the_image_as_it_is_runs_the_runner(
    agent_image: str, spec: SandboxSpec, logs: Path, installation: str
) -> None:
    runtime = DockerRuntime(installation, agent_image, logs, SystemClock())
    sandbox = await runtime.start(spec)
    # Nobody but the runner ends like this where there is no mailbox.
    ended = await asyncio.wait_for(sandbox.wait(), DEADLINE)
    assert ended.code == EXIT_CONFIGURATION
    assert "There is no mailbox" in ended.detail
    assert os.listdir(spec.inbound) == []
    await runtime.close()


LEAVES_ORPHANS = "for n in $(seq 10); do (true &); done"
COUNTS_ZOMBIES = "cat /proc/[0-9]*/stat | grep -c ') Z '"


def inside(container_id: str, script: str) -> str:
    """What a shell prints that somebody runs in a container."""

    def work(client: docker.APIClient) -> str:
        command = client.exec_create(container_id, ["/bin/sh", "-c", script])
        return bytes(client.exec_start(command["Id"])).decode()

    return str(by_hand(work))


@pytest.mark.docker
async def test_orphans_of_the_agents_commands_are_reaped_and_a_stop_reaches_the_runner(
    agent_image: str, spec: SandboxSpec, logs: Path, installation: str
) -> None:
    inbound, outbound = spec.inbound / INBOUND_DB, spec.outbound / OUTBOUND_DB
    await asyncio.to_thread(schema.create_inbound, inbound)
    inbound.chmod(0o640)
    outbound.write_bytes(schema.outbound_template())
    if os.geteuid() == 0:
        os.chown(inbound, 0, spec.gid)
        os.chown(outbound, spec.uid, spec.gid)
    runtime = DockerRuntime(installation, agent_image, logs, SystemClock())
    sandbox = await runtime.start(spec)
    try:
        async with asyncio.timeout(DEADLINE):
            # In all more than the processes that a sandbox may have (32); ten at once are no crowd.
            for _ in range(5):
                assert await asyncio.to_thread(inside, sandbox.id, LEAVES_ORPHANS) == ""
                while (await asyncio.to_thread(inside, sandbox.id, COUNTS_ZOMBIES)).strip() != "0":
                    await asyncio.sleep(0.02)  # no event tells of a reaped process
            while outbound.read_bytes() == schema.outbound_template():
                await asyncio.sleep(0.02)  # until it works: it writes its state
    finally:
        await sandbox.stop(DEADLINE)
    assert (await sandbox.wait()).code == 0
    await runtime.close()
