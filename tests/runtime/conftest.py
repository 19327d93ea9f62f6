"""Real sandboxes for tests: a session's folders as the host makes them, and a program of the test's inside the cage."""

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from host.runtime.base import Exit, Limits, SandboxSpec
from host.runtime.docker import PYTHON, DockerRuntime
from host.runtime.image import build, image_exists, image_tag
from host.runtime.process import Place, ProcessRuntime, python_prelude
from mailboxes.clock import SystemClock

CI_BASE = "innkeeper-ci-base"
DEADLINE = 20.0
AGENT_ID = 2_000_000_007
ROOT = Path(__file__).resolve().parents[2]
USER = 12345
AS_USER = ("setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

DOOR = """
import socket
door = socket.socket(socket.AF_UNIX)
door.connect("/workspace/run/door.sock")
"""
"""A caged program's way to tell the test that it has come this far: `door.sendall(b"...")`."""


class CagedDocker(DockerRuntime):
    """Runs `program` in place of the runner."""

    program = ""

    def _command(self, spec: SandboxSpec) -> Sequence[str]:
        return (PYTHON, "-I", "-c", self.program)


class CagedProcess(ProcessRuntime):
    """Runs `program` in place of the runner."""

    program = ""

    def _command(self, spec: SandboxSpec) -> list[str]:
        return [str(self._place.python), "-I", "-c", python_prelude(self._place) + self.program]


Caged = CagedDocker | CagedProcess


def base_image() -> str | None:
    """INNKEEPER_BASE_IMAGE, else the one that CI makes where it is there, else the Dockerfile's own."""
    return os.environ.get("INNKEEPER_BASE_IMAGE") or (CI_BASE if image_exists(CI_BASE) else None)


@pytest.fixture(scope="session")
def agent_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of the agent image, built once however many workers ask for it."""
    with Path(tmp_path_factory.getbasetemp().parent, "agent-image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tag = image_tag()
        return tag if image_exists(tag) else build(lambda line: None, base_image())


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that stands for a home; short, for the sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="ik-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def logs(root: Path) -> Path:
    return root / "logs"


@pytest.fixture
def make_spec(root: Path) -> Callable[..., SandboxSpec]:
    """Makes a session's folders and what its sandbox gets; keywords replace fields."""

    def make(session_id: str = "s-one", **changes: Any) -> SandboxSpec:
        session = root / "sessions" / "ag-1" / session_id
        agent = root / "groups" / session_id
        run = root / "run" / session_id
        as_root = os.geteuid() == 0
        uid, gid = (AGENT_ID, AGENT_ID) if as_root else (os.geteuid(), os.getegid())
        hosts, agents = (session / "inbound", run, agent), (session / "outbound", session / "state", agent / "home")
        for folder in (*hosts, *agents):
            folder.mkdir(parents=True)
            if as_root:
                os.chown(folder, 0 if folder in hosts else uid, gid)
            folder.chmod(0o750 if folder in hosts else 0o700)
        (agent / "SOUL.md").write_text("I am kind.")
        spec = SandboxSpec(
            session_id=session_id,
            agent_group_id="ag-1",
            inbound=session / "inbound",
            outbound=session / "outbound",
            state=session / "state",
            run=run,
            agent=agent,
            home=agent / "home",
            uid=uid,
            gid=gid,
            environment={"INNKEEPER_TURN_MINUTES": "60"},
            limits=Limits(memory_bytes=256 * 1024**2, processes=32, open_files=512),
        )
        return replace(spec, **changes)

    return make


@pytest.fixture
def spec(make_spec: Callable[..., SandboxSpec]) -> SandboxSpec:
    return make_spec()


@pytest.fixture
def installation() -> str:
    """Another one for every test: none sees the containers of a neighbour."""
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
async def containers(
    request: pytest.FixtureRequest, installation: str, logs: Path
) -> AsyncIterator[Callable[..., CagedDocker]]:
    """Makes container runtimes; whatever they leave running is removed."""
    image = request.getfixturevalue("agent_image")
    made: list[CagedDocker] = []

    def make(name: str = installation, base_url: str | None = None) -> CagedDocker:
        runtime = CagedDocker(name, image, logs, SystemClock(), base_url)
        made.append(runtime)
        return runtime

    yield make
    for name in {installation, *(runtime._installation for runtime in made)}:
        sweeper = make(name)
        for found in await sweeper.find_ours():
            await found.sandbox.kill()
    for runtime in made:
        await runtime.close()


@pytest.fixture
async def processes(installation: str, logs: Path) -> AsyncIterator[CagedProcess]:
    runtime = CagedProcess(installation, logs)
    yield runtime
    await runtime.close()


@pytest.fixture(params=[pytest.param("docker", marks=pytest.mark.docker), "process"])
def runtime(request: pytest.FixtureRequest) -> Caged:
    """Each kind of sandbox in turn."""
    if request.param == "process":
        caged: CagedProcess = request.getfixturevalue("processes")
        return caged
    make: Callable[..., CagedDocker] = request.getfixturevalue("containers")
    return make()


def packages() -> str:
    """PYTHONPATH of a child that runs another interpreter than ours."""
    return os.pathsep.join([str(ROOT), *(str(folder) for folder in Place.here().packages)])


def system_python() -> str:
    """The one that runs the tests may lie in root's home, where an ordinary user cannot start it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"/usr/bin/{version}" if Path("/usr/bin", version).exists() else sys.executable


def as_user(code: str, folder: Path, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs Python as an ordinary user whose home is `folder`."""
    os.chown(folder, USER, USER)
    command = [*AS_USER, system_python(), "-c", code]
    environment = {"PATH": path or os.environ["PATH"], "PYTHONPATH": packages(), "FOLDER": str(folder), "USER": "ada"}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=50, check=False)


def output_of(logs: Path, session_id: str) -> str:
    """All that a session's sandboxes said."""
    return "".join(path.read_text() for path in sorted((logs / session_id).iterdir()))


async def run(runtime: Caged, spec: SandboxSpec, program: str) -> Exit:
    """Runs a program in a cage to its end."""
    runtime.program = program
    sandbox = await runtime.start(spec)
    return await asyncio.wait_for(sandbox.wait(), DEADLINE)


async def ask(runtime: Caged, spec: SandboxSpec, logs: Path, program: str) -> Any:
    """Runs a program that puts its answer into `answer`, and returns that."""
    ended = await run(runtime, spec, f"{program}\nimport json; print('ANS' + 'WER' + json.dumps(answer))")
    said = await asyncio.to_thread(output_of, logs, spec.session_id)
    assert ended.code == 0, said
    return json.loads(said.rpartition("ANSWER")[2])


@asynccontextmanager
async def door(spec: SandboxSpec) -> AsyncIterator[Callable[[], Any]]:
    """Listens in the session's `run` folder; the function that it gives waits for a line from inside the cage."""
    lines: asyncio.Queue[str] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            lines.put_nowait(line.decode().strip())
        writer.close()

    path = spec.run / "door.sock"
    server = await asyncio.start_unix_server(hear, path)
    path.chmod(0o666)
    try:
        yield lambda: asyncio.wait_for(lines.get(), DEADLINE)
    finally:
        server.close()
        path.unlink()
