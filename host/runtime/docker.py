"""Containers. Nothing here blocks the event loop: the engine's client is synchronous and lives in a few threads.

What this file promises: a container's options come from `container_options` alone; only containers that carry our
installation's label are ever touched; the output of each is kept before it is removed.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import docker
import structlog
from docker.errors import APIError, ImageNotFound, NotFound
from docker.types.daemon import CancellableStream

from host.runtime.base import (
    AlreadyRunning,
    Exit,
    Found,
    Probe,
    RuntimeName,
    RuntimeUnavailable,
    SandboxRefused,
    SandboxSpec,
)
from host.runtime.cage import INSTALLATION_ID, check, digest, last_words, log_path, mounts_of, write_log
from host.runtime.engine import ENGINE_ERRORS, connect, why_away
from host.runtime.probe import SCRIPT, judge, probe_spec
from mailboxes.clock import Clock
from mailboxes.ids import is_row_id
from mailboxes.layout import SANDBOX
from mailboxes.limits import EXIT_CONFIGURATION

INSTALLATION_LABEL = "innkeeper.installation"
SESSION_LABEL = "innkeeper.session"
OPTIONS_LABEL = "innkeeper.options"
PROBE_LABEL = "innkeeper.probe"
"""Of a container that tries the engine out: no session's, so no host adopts or reaps it."""

PYTHON = "/opt/innkeeper/bin/python"
RUNNER = (PYTHON, "-I", "-m", "agent_runner")
PATH = "/opt/innkeeper/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_OTHER_WAYS = (
    "Engines that map users (rootless, userns-remap) or forbid mounts (SELinux) do this. Use the system's own engine, "
    "or processes: host config set runtime process"
)
_TMP_BYTES = 256 * 1024**2
_THREADS = 4
_CALL_SECONDS = 60
_KILL_SECONDS = 15.0
_FIRST_DELAY, _LAST_DELAY = 0.2, 30.0

_log = structlog.get_logger(__name__)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def container_options(
    spec: SandboxSpec,
    image: str,
    installation: str,
    command: Sequence[str] = RUNNER,
    image_variables: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole request that makes a container, in the engine's own words. Pure; nothing else adds an option.

    `image_variables` are the names that the image itself sets: an entry without "=" takes one away again.
    """
    ours = {**spec.environment, "PATH": PATH, "HOME": str(SANDBOX.home)}
    unset = sorted({"HOSTNAME", *image_variables} - set(ours))
    limits = spec.limits
    options: dict[str, Any] = {
        "Image": image,
        "Entrypoint": list(command),
        "Cmd": [],
        "User": f"{spec.uid}:{spec.gid}",
        "WorkingDir": "/",
        "Env": [*(f"{name}={value}" for name, value in sorted(ours.items())), *unset],
        "OpenStdin": False,
        "AttachStdin": False,
        "Tty": False,
        "NetworkDisabled": True,
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "private",
            "Privileged": False,
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,size={_TMP_BYTES},mode=1777"},  # noqa: S108  the sandbox's own
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "Memory": limits.memory_bytes,
            "MemorySwap": limits.memory_bytes,
            "NanoCpus": int(limits.cpus * 1e9),
            "PidsLimit": limits.processes,
            "Ulimits": [
                {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            "LogConfig": {"Type": "local", "Config": {"max-size": "512k", "max-file": "2", "compress": "false"}},
            "RestartPolicy": {"Name": "no"},
            # No init of the engine's: not every engine brings one. The runner has its own (agent_runner.init).
            "Init": False,
            "Mounts": [
                {"Type": "bind", "Source": str(mount.source), "Target": mount.target, "ReadOnly": mount.read_only}
                for mount in mounts_of(spec)
            ],
        },
    }
    labels = {INSTALLATION_LABEL: installation, SESSION_LABEL: spec.session_id, OPTIONS_LABEL: digest(options)}
    return {**options, "Labels": labels}


class DockerRuntime:
    """One engine, one installation. Threads start at the first use; the engine may come and go."""

    name = RuntimeName.DOCKER
    sandboxed = True

    def __init__(
        self, installation_id: str, image_tag: str, logs_folder: Path, clock: Clock, base_url: str | None = None
    ) -> None:
        if not INSTALLATION_ID.fullmatch(installation_id):
            raise ValueError(f"{installation_id!r} is no installation id")
        self._installation = installation_id
        self._image = image_tag
        self._logs = logs_folder
        self.clock = clock
        self._base_url = base_url
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")
        self._client: docker.APIClient | None = None
        self._client_lock = threading.Lock()
        self._image_variables: tuple[str, ...] | None = None
        self._containers: dict[str, _Container] = {}
        self._starting: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: threading.Thread | None = None
        self._stream: CancellableStream[Any] | None = None
        self._closing = threading.Event()

    # What the contract asks for

    def options_hash(self, spec: SandboxSpec) -> str:
        """See `Runtime`. What the base image happens to set plays no part: it is taken away."""
        options = container_options(spec, self._image, self._installation, self._command(spec))
        return str(options["Labels"][OPTIONS_LABEL])

    async def probe(self) -> Probe:
        """Asks the engine, then tries a sandbox of our image where it is there."""
        try:
            return await self.call(self._probe)
        except (RuntimeUnavailable, SandboxRefused, OSError) as error:
            return Probe(False, (str(error),))

    async def start(self, spec: SandboxSpec) -> "_Container":
        """See `Runtime`. Raises AlreadyRunning where a container of this session lives."""
        self._listen()
        name = self._container_name(spec.session_id)
        if name in self._starting:
            raise AlreadyRunning(f"The sandbox of session {spec.session_id} is being started already.")
        self._starting.add(name)
        try:
            container_id = await self.call(self._create, spec, name)
            # Known before it runs: its end cannot be missed.
            container = self._know(container_id, spec.session_id)
            try:
                await self.call(self._start, container_id)
            except (RuntimeUnavailable, SandboxRefused):
                self.forget(container_id)
                raise
        finally:
            self._starting.discard(name)
        return container

    async def find_ours(self) -> list[Found]:
        """See `Runtime`. The output of dead ones is kept before they are removed."""
        self._listen()
        found = []
        for row in await self.call(self._list):
            labels = row["Labels"]
            session_id = labels.get(SESSION_LABEL, "")
            if row["Names"] and row["Names"][0].lstrip("/") in self._starting:
                continue
            if row["State"] == "created":  # a start that was broken off
                await self.call(self._remove, row["Id"])
                continue
            container = self._know(row["Id"], session_id)
            if row["State"] in {"running", "paused", "restarting"}:
                found.append(Found(container, session_id, labels.get(OPTIONS_LABEL, "")))
            else:
                await container.look()
        return found

    async def close(self) -> None:
        """Lets go of the engine. The containers run on."""
        self._closing.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._hang_up)

    def _command(self, spec: SandboxSpec) -> Sequence[str]:  # noqa: ARG002  tests run other programs by the spec
        return RUNNER

    # Threads and the loop

    async def call(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs one blocking call in the pool."""

        def run() -> _R:
            try:
                return function(*args, **kwargs)
            except APIError as error:
                raise RuntimeUnavailable(f"The container engine failed: {error.explanation or error}") from error
            except ENGINE_ERRORS as error:
                self._drop_client()
                raise RuntimeUnavailable(why_away(error, self._base_url)) from error

        return await asyncio.get_running_loop().run_in_executor(self._pool, run)

    def spawn(self, container: "_Container") -> None:
        """Looks at a container in the background."""
        task = asyncio.get_running_loop().create_task(container.look())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _know(self, container_id: str, session_id: str) -> "_Container":
        if container_id not in self._containers:
            self._containers[container_id] = _Container(self, container_id, session_id)
        return self._containers[container_id]

    def _listen(self) -> None:
        if self._listener is None:
            loop = asyncio.get_running_loop()
            self._listener = threading.Thread(target=self._hear, args=(loop,), name="docker-events", daemon=True)
            self._listener.start()

    def _hear(self, loop: asyncio.AbstractEventLoop) -> None:
        """The events thread: tells the loop who died. After each reconnect all are looked at, for what was missed."""
        delay, told = _FIRST_DELAY, ""
        label = f"{INSTALLATION_LABEL}={self._installation}"
        filters = {"type": "container", "event": ["die", "destroy"], "label": label}
        while not self._closing.is_set():
            try:
                # From a moment before: the engine answers before it listens.
                since = int((self.clock.now() - timedelta(seconds=2)).timestamp())
                self._stream = self._connect().events(since=since, filters=filters, decode=True)
                if self._closing.is_set():
                    self._stream.close()
                loop.call_soon_threadsafe(self._look_at_all)
                delay, told = _FIRST_DELAY, ""
                for event in self._stream:
                    loop.call_soon_threadsafe(self._died, event["id"])
            except RuntimeError:
                return  # the loop is closed
            except (*ENGINE_ERRORS, ValueError) as error:
                self._drop_client()
                if str(error) != told:  # once for each reason: it may be a week until somebody mends it
                    _log.warning("engine_events_lost", reason=str(error), retry_in=delay)
                told = str(error)
            self._closing.wait(delay)
            delay = min(delay * 2, _LAST_DELAY)

    def _hang_up(self) -> None:
        """Ends the events thread and the connections."""
        if self._stream is not None:
            with contextlib.suppress(OSError, AttributeError):  # broken already: the client has no word for that
                self._stream.close()
        if self._listener is not None:
            self._listener.join(_CALL_SECONDS)
        self._pool.shutdown()
        self._drop_client()

    def _look_at_all(self) -> None:
        for container in list(self._containers.values()):
            self.spawn(container)

    def _died(self, container_id: str) -> None:
        if container_id in self._containers:
            self.spawn(self._containers[container_id])

    # Blocking calls, each run in the pool

    def _connect(self) -> docker.APIClient:
        with self._client_lock:
            if self._client is None:
                self._client = connect(self._base_url, _CALL_SECONDS)
            return self._client

    def _drop_client(self) -> None:
        with self._client_lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def _no_image(self) -> str:
        return f"The image {self._image} is not there. Make it with: host build"

    def _container_name(self, session_id: str) -> str:
        return f"innkeeper-{self._installation}-{session_id}"

    def _options(self, spec: SandboxSpec, command: Sequence[str]) -> dict[str, Any]:
        if self._image_variables is None:
            try:
                config = self._image_config()
            except ImageNotFound:
                raise SandboxRefused(self._no_image()) from None
            self._image_variables = tuple(entry.partition("=")[0] for entry in config.get("Env") or ())
        plain = container_options(spec, self._image, self._installation, command)
        full = container_options(spec, self._image, self._installation, command, self._image_variables)
        # The label is the digest that `options_hash` can tell without asking the engine.
        return {**full, "Labels": plain["Labels"]}

    def _create(self, spec: SandboxSpec, name: str, *, again: bool = True) -> str:
        check(spec)
        try:
            return self._make(self._options(spec, self._command(spec)), name)
        except ImageNotFound:
            self._image_variables = None
            raise SandboxRefused(self._no_image()) from None
        except APIError as error:
            if error.status_code != 409 or not again:
                raise _refused(spec.session_id, error) from error
        self._remove_leftover(name, spec.session_id)
        return self._create(spec, name, again=False)

    # types-docker leaves these two calls untyped.

    def _image_config(self) -> dict[str, Any]:
        found: dict[str, Any] = self._connect().inspect_image(self._image)  # type: ignore[no-untyped-call]
        return dict(found["Config"])

    def _make(self, options: dict[str, Any], name: str | None) -> str:
        made = self._connect().create_container_from_config(options, name)  # type: ignore[no-untyped-call]
        return str(made["Id"])

    def _remove_leftover(self, name: str, session_id: str) -> None:
        try:
            found = self._connect().inspect_container(name)
        except NotFound:
            return
        if found["Config"]["Labels"].get(INSTALLATION_LABEL) != self._installation:
            raise SandboxRefused(f"A container called {name} is there, and it is not ours. Rename or remove it.")
        if found["State"]["Running"]:
            raise AlreadyRunning(f"Session {session_id} has a running sandbox already (container {found['Id'][:12]}).")
        if found["State"]["Status"] == "created":  # a start that was broken off: it has said nothing
            self._remove(found["Id"])
        else:
            self.collect(found["Id"], session_id)

    def _start(self, container_id: str) -> None:
        try:
            self._connect().start(container_id)
        except APIError as error:
            self._remove(container_id)
            raise _refused(container_id[:12], error) from error

    def _list(self) -> list[dict[str, Any]]:
        label = f"{INSTALLATION_LABEL}={self._installation}"
        rows = self._connect().containers(all=True, filters={"label": label})
        return list(rows)

    def signal(self, container_id: str, name: str) -> None:
        """Sends a signal; to one that is gone already it is no error. Blocks."""
        try:
            self._connect().kill(container_id, name)
        except APIError as error:
            if error.status_code not in {404, 409}:
                raise

    def collect(self, container_id: str, session_id: str) -> Exit | None:
        """How a container ended, after its output was kept and it was removed; None while it lives. Blocks."""
        try:
            state = self._connect().inspect_container(container_id)["State"]
        except NotFound:
            return Exit(None, "the container is gone")
        if state["Running"] or state["Status"] == "created":
            return None
        output = b""
        try:
            output = self._keep_output(container_id, session_id)
        except (APIError, OSError) as error:
            _log.warning("sandbox_output_lost", session_id=session_id, reason=str(error))
        self._remove(container_id)
        detail = "It ran out of memory." if state.get("OOMKilled") else str(state.get("Error") or "")
        if state["ExitCode"] == EXIT_CONFIGURATION:
            detail = last_words(output)
        return Exit(int(state["ExitCode"]), detail)

    def _keep_output(self, container_id: str, session_id: str) -> bytes:
        output: bytes = self._connect().logs(container_id, stdout=True, stderr=True)  # the engine keeps 1 MiB at most
        if output and is_row_id(session_id):
            write_log(log_path(self._logs, session_id, self.clock.now()), output)
        return output

    def _remove(self, container_id: str) -> None:
        try:
            self._connect().remove_container(container_id, v=True, force=True)
        except APIError as error:
            if error.status_code not in {404, 409}:
                _log.warning("container_not_removed", container=container_id[:12], reason=str(error.explanation))

    def _probe(self) -> Probe:
        engine = self._connect()
        info = engine.info()
        facts = {
            "engine": str(info.get("ServerVersion", "")),
            "cgroups": str(info.get("CgroupVersion", "1")),
            "warnings": "; ".join(info.get("Warnings") or ()),
        }
        try:
            self._image_config()
        except ImageNotFound:
            return Probe(True, (self._no_image(),), {**facts, "image": "no"})
        for old in engine.containers(all=True, filters={"label": PROBE_LABEL, "status": "exited"}):
            self._remove(old["Id"])  # its host was killed while it tried
        with probe_spec(self._logs) as spec:
            options = self._options(spec, (PYTHON, "-I", "-c", SCRIPT))
            options["Labels"] = {PROBE_LABEL: self._installation}
            container_id = self._make(options, None)
            try:
                engine.start(container_id)
                code = engine.wait(container_id, timeout=_CALL_SECONDS)["StatusCode"]
                output = engine.logs(container_id).decode(errors="replace")
            finally:
                self._remove(container_id)
        result = judge(output, code, {**facts, "image": "yes"})
        return result if result.usable else Probe(False, (*result.problems, _OTHER_WAYS), result.facts)

    def forget(self, container_id: str) -> None:
        """Drops what is known of one that ended."""
        self._containers.pop(container_id, None)


class _Container:
    """A container that runs or ran. Its end is a fact once: collected under a lock, then kept."""

    def __init__(self, runtime: DockerRuntime, container_id: str, session_id: str) -> None:
        self.id = container_id
        self.session_id = session_id
        self._runtime = runtime
        self._ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._lock = asyncio.Lock()

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    async def stop(self, grace_seconds: float) -> None:
        try:
            await self._send("SIGTERM")
            if await self._ends_within(grace_seconds):
                return
        except RuntimeUnavailable as error:
            _log.error("sandbox_stop_failed", session_id=self.session_id, reason=str(error))
        await self.kill()

    async def kill(self) -> None:
        await self._send("SIGKILL")
        if not await self._ends_within(_KILL_SECONDS):
            _log.error("sandbox_kill_failed", session_id=self.session_id, container=self.id[:12])
            raise RuntimeUnavailable(f"The container {self.id[:12]} of session {self.session_id} could not be stopped.")

    async def look(self) -> None:
        """Finds out whether it ended, asking again for as long as the engine does not answer."""
        delay = _FIRST_DELAY
        async with self._lock:
            while not self._ended.done():
                try:
                    ended = await self._runtime.call(self._runtime.collect, self.id, self.session_id)
                except RuntimeUnavailable as error:
                    _log.warning("sandbox_unknown", session_id=self.session_id, reason=str(error), retry_in=delay)
                    await self._runtime.clock.sleep(delay)
                    delay = min(delay * 2, _LAST_DELAY)
                    continue
                if ended is None:
                    return
                self._ended.set_result(ended)
                self._runtime.forget(self.id)

    async def _send(self, signal: str) -> None:
        if not self._ended.done():
            await self._runtime.call(self._runtime.signal, self.id, signal)
            self._runtime.spawn(self)

    async def _ends_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait({self._ended}, timeout=seconds)
        return bool(done)


def _refused(what: str, error: APIError) -> RuntimeUnavailable | SandboxRefused:
    reason = f"The container engine refused to start {what}: {error.explanation or error}"
    passing = error.status_code == 409 or (error.status_code or 500) >= 500  # 409: the name is being given free
    return RuntimeUnavailable(reason) if passing else SandboxRefused(reason)
