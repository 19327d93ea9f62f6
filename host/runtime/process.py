"""Processes: the same runner in a bubblewrap cage, for machines without a container engine.

A cage dies with its host: bubblewrap asks the kernel for that, and the kernel minds the thread that forked, so
processes are started from the event loop's thread only. A host that runs as root gives the cage the agent group's user
by `setpriv` (one user namespace maps one user, and could not write the folders of another); one that runs as a user
keeps its own.
"""

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from host.resources import source_of
from host.runtime.base import (
    AlreadyRunning,
    Exit,
    Found,
    Probe,
    RuntimeName,
    RuntimeUnavailable,
    SandboxSpec,
)
from host.runtime.cage import LOG_BYTES, check, digest, last_words, log_path, mounts_of, write_log
from host.runtime.probe import SCRIPT, judge, probe_spec
from mailboxes.clock import Clock, SystemClock
from mailboxes.layout import SANDBOX
from mailboxes.limits import EXIT_CONFIGURATION

_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/certs", "ca-certificates", "pki", "localtime", "alternatives",
    "nsswitch.conf", "mime.types",
)  # fmt: skip
_TMP_BYTES = 256 * 1024**2
_SHARED_BYTES = 64 * 1024**2
_KILL_SECONDS = 15.0
_PROBE_SECONDS = 20.0
_KEYCTL = {"x86_64": 250, "aarch64": 219}
"""The number of the system call on each machine; no library of the system's wraps it."""
_JOIN_SESSION_KEYRING = 1
_CHUNK = 64 * 1024
_FLOOD_BYTES_PER_SECOND = 4 * 1024**2
_INSTALL = "Install it with: sudo apt-get install bubblewrap util-linux"

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """What a cage takes from this machine: the interpreter (never the virtual environment's link) and its packages."""

    prefix: Path
    python: Path
    packages: tuple[Path, ...]

    @classmethod
    def here(cls) -> "Place":
        """The running interpreter's."""
        prefix = Path(os.path.realpath(sys.base_prefix))
        python = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = (Path(entry) for entry in sys.path if Path(entry).name in {"site-packages", "dist-packages"})
        return cls(prefix, python, tuple(folder for folder in packages if folder.is_dir()))


def python_prelude(place: Place) -> str:
    """Lets the caged interpreter find our two packages, then what they depend on, and nothing else."""
    paths = ["/opt/innkeeper", *(f"/opt/innkeeper/packages/{number}" for number in range(len(place.packages)))]
    return f"import sys; sys.path[:0] = {paths!r}\n"


def cage_arguments(spec: SandboxSpec, place: Place, *, as_root: bool) -> list[str]:
    """The call of bubblewrap, up to the command that runs inside."""
    if as_root:
        spaces = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        # What setpriv needs to become the group's user; it drops these as well.
        spaces += ["--cap-drop", "ALL"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            spaces += ["--cap-add", capability]
    else:
        spaces = ["--unshare-all"]
    arguments = [
        *_first_to_go(),
        "bwrap",
        *spaces,
        "--hostname",
        "sandbox",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
    ]
    for name, value in _environment(spec, place).items():
        arguments += ["--setenv", name, value]
    arguments += [*_system(place), *_ours(place)]
    arguments += [*_folders("/workspace/extra"), "--proc", "/proc", "--dev", "/dev"]
    for folder, size in (("/tmp", _TMP_BYTES), ("/dev/shm", _SHARED_BYTES)):  # noqa: S108  the cage's own
        arguments += ["--perms", "1777", "--size", str(size), "--tmpfs", folder]
    for mount in mounts_of(spec):
        arguments += [*_folders(str(Path(mount.target).parent))] if mount in spec.extra_mounts else []
        arguments += ["--ro-bind" if mount.read_only else "--bind", str(mount.source), mount.target]
    arguments += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", "--"]
    if as_root:
        arguments += [
            "setpriv", "--reuid", str(spec.uid), "--regid", str(spec.gid), "--clear-groups",
            "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all",
        ]  # fmt: skip
    else:
        arguments += ["setpriv"]
    counted_alone = as_root or _counts_by_namespace()
    return [*arguments, "--no-new-privs", *_limits(spec, counted_alone=counted_alone)]


def _environment(spec: SandboxSpec, place: Place) -> dict[str, str]:
    return {**spec.environment, "PATH": f"{place.prefix}/bin:{_SYSTEM_PATH}", "HOME": str(SANDBOX.home)}


def _outer_environment() -> dict[str, str]:
    """What bubblewrap itself gets. Its process 1 can be seen in the cage, so this is no more than it needs."""
    return {"PATH": os.environ.get("PATH", _SYSTEM_PATH)}


def _leave_keyring() -> None:
    """Gives this thread, and so every process that it starts from here on, an empty session keyring of the kernel's.

    A cage hides files, not keys: Kerberos and encrypted file systems keep a user's there, and any child may read them.
    """
    if (keyctl := _KEYCTL.get(os.uname().machine)) is not None:
        ctypes.CDLL(None).syscall(keyctl, _JOIN_SESSION_KEYRING, None)


def _first_to_go() -> list[str]:
    """Has the kernel end the sandbox and not the host where memory runs out: what processes share counts for no limit
    that a process can have."""
    return ["choom", "-n", "1000", "--"] if shutil.which("choom") else []


def _counts_by_namespace() -> bool:
    """Since Linux 5.14 a limit on processes counts those of the user namespace alone."""
    major, minor = re.match(r"(\d+)\.(\d+)", os.uname().release + ".0.0").groups()  # type: ignore[union-attr]
    return (int(major), int(minor)) >= (5, 14)


def _limits(spec: SandboxSpec, *, counted_alone: bool) -> list[str]:
    """`prlimit` and its arguments.

    Memory is limited as data, per process: the address space of a program with threads says nothing of its memory.
    Processes are counted per user: only where no others are counted with them can they have such a limit.
    """
    arguments = ["prlimit", f"--data={spec.limits.memory_bytes}", f"--nofile={spec.limits.open_files}", "--core=0"]
    return [*arguments, f"--nproc={spec.limits.processes}"] if counted_alone else arguments


def _folders(path: str) -> Iterator[str]:
    """Makes a folder and those above it readable for everybody (bubblewrap alone would make them root's)."""
    for folder in (*reversed(Path(path).parents), Path(path)):
        if folder != Path("/"):
            yield from ("--perms", "0755", "--dir", str(folder))


def _system(place: Place) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/") / name
        if path.is_symlink():
            yield from ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from _folders("/etc/ssl")
    for name in _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    if Path("/usr") not in (place.prefix, *place.prefix.parents):
        yield from _folders(str(place.prefix.parent))
        yield from ("--ro-bind", str(place.prefix), str(place.prefix))


def _ours(place: Place) -> Iterator[str]:
    yield from _folders("/opt/innkeeper/packages")
    for package in ("agent_runner", "mailboxes"):
        yield from ("--ro-bind", str(source_of(package)), f"/opt/innkeeper/{package}")
    for number, folder in enumerate(place.packages):
        yield from ("--ro-bind", str(folder), f"/opt/innkeeper/packages/{number}")
        if (folder / "host").is_dir():  # an installed host lies among the packages
            yield from ("--tmpfs", f"/opt/innkeeper/packages/{number}/host")
            yield from ("--remount-ro", f"/opt/innkeeper/packages/{number}/host")


class ProcessRuntime:
    """Runs runners as processes, caged where a cage works (`sandboxed`, known after `probe` or `start`)."""

    name = RuntimeName.PROCESS

    def __init__(
        self, installation_id: str, logs_folder: Path, unsafe: bool = False, clock: Clock | None = None
    ) -> None:
        self.sandboxed = False
        self._installation = installation_id
        self._logs = logs_folder
        self._unsafe = unsafe
        self._clock = clock or SystemClock()
        self._as_root = os.geteuid() == 0
        self._place = Place.here()
        self._tried: Probe | None = None
        self._trying = asyncio.Lock()
        self._live: dict[str, _Process | None] = {}
        self._keyring_left = False

    async def probe(self) -> Probe:
        """Runs a cage with a session's options and looks at it from inside; asked anew each time."""
        problems = [f"{name} is not installed. {_INSTALL}" for name in ("setpriv", "prlimit") if not shutil.which(name)]
        if problems:
            self._tried = Probe(False, tuple(problems))
            return self._tried
        result = await self._try_cage()
        self.sandboxed = result.usable
        facts = {**result.facts, "cage": "yes" if result.usable else "no"}
        if not result.usable and not self._as_root:
            consequence = "Agents can chat here, and have no tools."
            if self._unsafe:
                consequence = "Agents run here without a cage, as you asked: they can read and do what you can."
            result = Probe(True, (*result.problems, consequence), facts)
        self._tried = Probe(result.usable, result.problems, facts)
        return self._tried

    def options_hash(self, spec: SandboxSpec) -> str:
        """See `Runtime`."""
        environment = sorted(spec.environment.items())
        return digest([self._arguments(spec), environment, spec.uid, spec.gid, asdict(spec.limits)])

    async def start(self, spec: SandboxSpec) -> "_Process":
        """See `Runtime`. Call it from the thread of a loop that lives as long as the host does."""
        async with self._trying:
            if self._tried is None:
                await self.probe()
        assert self._tried is not None
        if not self._tried.usable:
            problems, self._tried = self._tried.problems, None  # the next start tries again: the package may be there
            raise RuntimeUnavailable(" ".join(problems))
        await asyncio.to_thread(check, spec)
        if spec.session_id in self._live:
            raise AlreadyRunning(f"Session {spec.session_id} has a running sandbox already.")
        self._live[spec.session_id] = None
        process = None
        try:
            path = await asyncio.to_thread(log_path, self._logs, spec.session_id, self._clock.now())
            process = await self._spawn(self._arguments(spec), spec, path)
            self._live[spec.session_id] = process
        finally:
            if process is None:
                del self._live[spec.session_id]
        return process

    async def find_ours(self) -> list[Found]:
        """None: the processes of an earlier host died with it."""
        return []

    async def close(self) -> None:
        """Ends what still runs: it could not outlive this host anyhow."""
        await asyncio.gather(*(process.kill() for process in list(self._live.values()) if process is not None))

    def _command(self, spec: SandboxSpec) -> list[str]:  # noqa: ARG002  tests run other programs by the spec
        start = "from agent_runner.__main__ import main; sys.exit(main())"
        return [str(self._place.python), "-I", "-c", python_prelude(self._place) + start]

    def _plain_command(self, spec: SandboxSpec) -> list[str]:
        """Without a cage: our own interpreter and the real folders."""
        root = str(source_of("agent_runner").parent)
        start = f"import sys; sys.path.insert(0, {root!r}); from agent_runner.__main__ import main; sys.exit(main())"
        folders = {"inbound": spec.inbound, "outbound": spec.outbound, "state": spec.state, "run": spec.run}
        command = [sys.executable, "-I", "-c", start]
        for name, folder in {**folders, "agent": spec.agent}.items():
            command += [f"--{name}", str(folder)]
        return command if self._unsafe else [*command, "--no-tools"]

    def _arguments(self, spec: SandboxSpec) -> list[str]:
        if self.sandboxed:
            return [*cage_arguments(spec, self._place, as_root=self._as_root), *self._command(spec)]
        # Nothing but the parent's death ends a process without a cage.
        plain = ["setpriv", "--no-new-privs", "--pdeathsig", "KILL", *_limits(spec, counted_alone=False)]
        return [*plain, *self._plain_command(spec)]

    async def _spawn(self, arguments: Sequence[str], spec: SandboxSpec, path: Path) -> "_Process":
        environment = _outer_environment()
        if not self.sandboxed:
            environment = {**_environment(spec, self._place), "HOME": str(spec.home)}
        elif not self._keyring_left:
            _leave_keyring()
            self._keyring_left = True
        reader, writer = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            os.close(reader)
            raise RuntimeUnavailable(f"No process could be started for session {spec.session_id}: {error}") from error
        finally:
            os.close(writer)
        output = _Output(reader, path, self._clock)
        return _Process(child, spec.session_id, output, self._live, caged=self.sandboxed)

    async def _try_cage(self) -> Probe:
        if not shutil.which("bwrap"):
            return Probe(False, (f"bubblewrap is not installed. {_INSTALL}",))
        folders = probe_spec(self._logs)
        spec = await asyncio.to_thread(folders.__enter__)
        try:
            command = [str(self._place.python), "-I", "-c", python_prelude(self._place) + SCRIPT]
            child = await asyncio.create_subprocess_exec(
                *cage_arguments(spec, self._place, as_root=self._as_root),
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_outer_environment(),
                start_new_session=True,
            )
            try:
                output, _ = await asyncio.wait_for(child.communicate(), _PROBE_SECONDS)
            except TimeoutError:
                child.kill()
                await child.wait()
                output = b"it did not end in time"
        finally:
            await asyncio.to_thread(folders.__exit__, None, None, None)
        result = judge(output.decode(errors="replace"), child.returncode, {})
        if result.usable:
            return result
        fix = f"bubblewrap (0.7 or later) does not work here. {_INSTALL}; some systems forbid it to users."
        return Probe(False, (*result.problems, fix), result.facts)


class _Output:
    """A sandbox's output on its way to a log: two files of LOG_BYTES at most; a flood is slowed down, not kept."""

    def __init__(self, source: int, path: Path, clock: Clock) -> None:
        self._source = source
        self._path = path
        self._clock = clock

    async def drain(self) -> None:
        """Reads until the last writer is gone."""
        stream = asyncio.StreamReader(limit=_CHUNK)
        source = await asyncio.to_thread(os.fdopen, self._source, "rb", 0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), source
        )
        size, flooded = 0, False
        try:
            while chunk := await stream.read(_CHUNK):
                full = size + len(chunk) > LOG_BYTES
                await asyncio.to_thread(self._write, chunk, start_anew=full)
                size, flooded = len(chunk) if full else size + len(chunk), flooded or full
                if flooded:
                    await self._clock.sleep(len(chunk) / _FLOOD_BYTES_PER_SECOND)
        finally:
            transport.close()

    def last_words(self) -> str:
        """The last line that was kept. Blocks."""
        return last_words(self._path.read_bytes()) if self._path.exists() else ""

    def _write(self, chunk: bytes, *, start_anew: bool) -> None:
        if start_anew:
            os.replace(self._path, self._path.with_suffix(".earlier.log"))
        write_log(self._path, chunk)


class _Process:
    """A runner that runs or ran. With a cage, `child` is bubblewrap, which ends as the runner inside ended."""

    def __init__(
        self,
        child: asyncio.subprocess.Process,
        session_id: str,
        output: _Output,
        live: "dict[str, _Process | None]",
        *,
        caged: bool,
    ) -> None:
        self.id = str(child.pid)
        self.session_id = session_id
        self._child = child
        self._output = output
        self._live = live
        self._caged = caged
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def wait(self) -> Exit:
        return await asyncio.shield(self._watching)

    async def stop(self, grace_seconds: float) -> None:
        if self._watching.done():
            return
        runner = await asyncio.to_thread(_runner_below, self._child.pid) if self._caged else self._child.pid
        if runner is None:  # nothing runs inside yet
            await self.kill()
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner, signal.SIGTERM)
        done, _ = await asyncio.wait({self._watching}, timeout=grace_seconds)
        if not done:
            await self.kill()

    async def kill(self) -> None:
        if self._child.returncode is None:
            self._kill_all()
        done, _ = await asyncio.wait({self._watching}, timeout=_KILL_SECONDS)
        if not done:
            _log.error("sandbox_kill_failed", session_id=self.session_id, process=self.id)
            raise RuntimeUnavailable(f"Process {self.id} of session {self.session_id} could not be stopped.")

    async def _watch(self) -> Exit:
        draining = asyncio.get_running_loop().create_task(self._output.drain())
        code = await self._child.wait()
        self._kill_all()  # what a runner without a cage left behind; it holds the log open
        done, _ = await asyncio.wait({draining}, timeout=1.0)
        if not done:
            draining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await draining
        self._live.pop(self.session_id, None)
        detail = await asyncio.to_thread(self._output.last_words) if code == EXIT_CONFIGURATION else ""
        # A shell's and bubblewrap's way of saying "ended by a signal".
        return Exit(code if code >= 0 else 128 - code, detail)

    def _kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)


def _runner_below(bubblewrap: int) -> int | None:
    """The runner's process id: bubblewrap's child is the cage's process 1, and that one's first child the runner."""
    found = bubblewrap
    for _ in range(2):
        try:
            children = Path(f"/proc/{found}/task/{found}/children").read_text(encoding="ascii").split()
        except OSError:
            return None
        if not children:
            return None
        found = int(children[0])
    return found
