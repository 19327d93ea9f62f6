"""The runtime contract: start a sandbox, hear of its end, find it again after a restart of the host, stop it.

A runtime knows nothing of mailboxes or turns. Its calls never block the event loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class RuntimeUnavailable(Exception):
    """The engine does not answer, or refuses to work; the text says why and what to do. Worth another try later."""


class SandboxRefused(Exception):
    """This sandbox can never start as it was asked for (a bad mount, a missing image); the text says what to change."""


class AlreadyRunning(SandboxRefused):
    """The session's sandbox lives already; a second one would share its mailbox. `find_ours` finds the first."""


class RuntimeName(StrEnum):
    """The code's names; users read "container" and "process"."""

    DOCKER = "docker"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use."""

    memory_bytes: int = 1024**3
    cpus: float = 1.0
    processes: int = 256
    open_files: int = 4096


@dataclass(frozen=True, slots=True)
class Mount:
    """An extra folder from the operator's allow-list; both paths absolute, the target below /workspace/extra/."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """All that a sandbox gets. Every path is on the host, made and owned by it (docs/architecture.md).

    `inbound`, `run` and `agent` are mounted read-only, `outbound`, `state` and `home` (a child of `agent`) read-write.
    `environment` is the whole environment of the runner but for PATH and HOME: nothing else is passed, no secret is
    in it.
    """

    session_id: str
    agent_group_id: str
    inbound: Path
    outbound: Path
    state: Path
    run: Path
    agent: Path
    home: Path
    uid: int
    gid: int
    environment: Mapping[str, str]
    limits: Limits = Limits()
    extra_mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a sandbox ended. `code` is None when the engine cannot say (it vanished); `detail` is for a log line."""

    code: int | None
    detail: str = ""


class Sandbox(Protocol):
    """One that was started, or found running."""

    id: str
    session_id: str

    async def wait(self) -> Exit:
        """Returns when it has ended, however often it is asked."""
        ...

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM, then after the grace SIGKILL; returns when it is gone. One that is gone already is no error."""
        ...

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox of this installation that an earlier host left running."""

    sandbox: Sandbox
    session_id: str
    options_hash: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a runtime can do on this machine, tried and not looked up. `problems` are sentences with their fix."""

    usable: bool
    problems: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class Runtime(Protocol):
    """One way of running sandboxes."""

    name: RuntimeName
    sandboxed: bool
    """False only where a process runs without a working cage: such a runner gets no tools."""

    async def probe(self) -> Probe:
        """Tries it out."""
        ...

    def options_hash(self, spec: SandboxSpec) -> str:
        """A digest of every option that `start` would use (image, limits, mounts, user, environment)."""
        ...

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Starts one. Raises RuntimeUnavailable or SandboxRefused."""
        ...

    async def find_ours(self) -> list[Found]:
        """The live sandboxes that carry this installation's id, whoever started them; dead ones are removed."""
        ...

    async def close(self) -> None:
        """Lets go of the engine; sandboxes that run go on where the runtime can leave them running."""
        ...
