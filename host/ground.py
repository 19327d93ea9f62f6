"""What the fleet stands on: a session's folders, its settings and its way out, made ready at each wake."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from host import sessions as session_folders
from host import untrusted
from host.broker.keys import KeyStore
from host.broker.server import Broker, Door
from host.db import agent_groups, pending_questions, sessions
from host.db.agent_groups import AgentGroup, AgentGroupRefused, ContainerConfig
from host.db.engine import CentralDatabase, sqlite_path
from host.db.sessions import ContainerStatus, Session
from host.home import Home
from host.items import SessionRef
from host.life import Prepared
from host.mounts import extra_mounts
from host.postmaster import COUNTER
from host.runtime.base import Limits, Runtime, RuntimeName, RuntimeUnavailable, SandboxRefused, SandboxSpec
from host.settings import CurrentSettings
from mailboxes.clock import Clock, from_text
from mailboxes.layout import BROKER_SOCKET

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def default_provider(*, has_key: bool) -> str:
    """What answers where no provider is set: the model once there is a key, else the deterministic stand-in."""
    return "claude" if has_key else "rehearsal"


class Ground:
    """Implements host.life.Ground. `extra_environment` is for crash tests alone."""

    def __init__(
        self,
        home: Home,
        database: CentralDatabase,
        keys: KeyStore,
        broker: Broker,
        runtimes: Mapping[RuntimeName, Runtime],
        settings: CurrentSettings,
        clock: Clock,
        extra_environment: Mapping[str, str],
    ) -> None:
        self._home = home
        self._database = database
        self._keys = keys
        self._broker = broker
        self._runtimes = runtimes
        self._settings = settings
        self._clock = clock
        self._extra_environment = extra_environment
        self.image_ready = False

    def preferred(self) -> RuntimeName:
        """The runtime that a session would be started in now: containers once there is an image, processes until
        then."""
        chosen = self._settings.value.runtime
        if chosen == "auto":
            return RuntimeName.DOCKER if self.image_ready else RuntimeName.PROCESS
        return RuntimeName(chosen)

    async def prepare(self, key: SessionRef) -> Prepared:
        """Makes a session's folders whole and says how to start it. Raises SandboxRefused, RuntimeUnavailable."""
        if self.preferred() == RuntimeName.DOCKER and not self.image_ready:
            raise RuntimeUnavailable("The image for containers is not there yet. See: host status")
        session, group = await self._rows(key)
        settings = self._settings.value
        default = settings.provider or default_provider(has_key=await self._keys.current() is not None)
        zone = await asyncio.to_thread(lambda: settings.zone)  # the first time a zone is read from its file
        environment = {
            "AGENT_PROVIDER": sessions.provider_of(session, group, default),
            "MODEL_ID": group.model or settings.model,
            "TZ": str(zone),
            "ASSISTANT_NAME": group.name,
            **self._extra_environment,
        }
        limits = Limits(settings.memory_mib * 1024**2, settings.cpus, settings.processes)
        try:
            config = agent_groups.container_config(group)
            spec = await asyncio.to_thread(self._prepare_folders, session, group, config, environment, limits)
        except (AgentGroupRefused, session_folders.IdRefused, untrusted.BadFile) as error:
            raise SandboxRefused(str(error)) from error
        except OSError as error:  # a full disk, a folder that may not be written: somebody can mend it
            raise RuntimeUnavailable(f"The session's folders cannot be made ready: {error}.") from error
        turn_seconds = config.timeout or settings.turn_minutes * 60
        return Prepared(self._runtimes[self.preferred()], spec, turn_seconds)

    async def _rows(self, key: SessionRef) -> tuple[Session, AgentGroup]:
        def rows(connection: Connection) -> tuple[Session | None, AgentGroup | None]:
            return sessions.get(connection, key.session_id), agent_groups.get(connection, key.agent_group_id)

        session, group = await self._database.run(rows)
        if session is None or group is None:
            raise SandboxRefused(f"Session {key.session_id} is not in the database any more.")
        return session, group

    def _prepare_folders(
        self,
        session: Session,
        group: AgentGroup,
        config: ContainerConfig,
        environment: Mapping[str, str],
        limits: Limits,
    ) -> SandboxSpec:
        agent = session_folders.provision_group(self._home, group)
        folder = session_folders.provision(self._home, session, group)
        owner = session_folders.owner_of(group)
        run = self._run_folder(session.id, owner.gid)
        uid, gid = (os.geteuid(), os.getegid()) if owner.uid is None or owner.gid is None else (owner.uid, owner.gid)
        return SandboxSpec(
            session_id=session.id,
            agent_group_id=group.id,
            inbound=folder / "inbound",
            outbound=folder / "outbound",
            state=folder / "state",
            run=run,
            agent=agent,
            home=agent / session_folders.AGENT_HOME,
            uid=uid,
            gid=gid,
            environment=environment,
            limits=limits,
            extra_mounts=extra_mounts(self._home, group.name, config, self._guarded()),
        )

    def _guarded(self) -> list[Path]:
        """Where a database lies that is not in the home."""
        path = sqlite_path(self._database.url)
        return [] if path is None else [Path(path).parent]

    def _run_folder(self, session_id: str, gid: int | None) -> Path:
        run = self._home.run_folder(session_id)
        run.mkdir(mode=0o700, exist_ok=True)
        if gid is not None:
            os.chown(run, -1, gid, follow_symlinks=False)
            run.chmod(0o750)
        return run

    async def counter(self, spec: SandboxSpec) -> bytes:
        """outbound.db's change counter before the runner starts. Its last runner is gone and judged: a file that cannot
        be one, or that is of another version (it was drained), is replaced first. Raises RuntimeUnavailable."""
        try:
            return await asyncio.to_thread(self._counter, spec)
        except OSError as error:
            raise RuntimeUnavailable(f"The session's mailbox cannot be made ready: {error}.") from error

    def _counter(self, spec: SandboxSpec) -> bytes:
        folder = spec.outbound.parent
        try:
            if untrusted.needs_new_outbound(spec.outbound):
                log.info("an outbound mailbox of another version is replaced", session=spec.session_id)
                untrusted.replace_outbound(folder, self._clock.now(), spec.uid, spec.gid)
            return untrusted.read_outbound(spec.outbound)[COUNTER]
        except (untrusted.JournalActive, untrusted.TornSnapshot):
            return b""
        except untrusted.BadFile as error:
            log.error(  # noqa: TRY400  the sentence says it all
                "an outbound mailbox was bad before the start and is set aside",
                session=spec.session_id,
                reason=str(error),
            )
            untrusted.replace_outbound(folder, self._clock.now(), spec.uid, spec.gid)
            return b""

    async def open_door(self, key: SessionRef, spec: SandboxSpec) -> Door:
        """Opens the session's broker socket."""
        shared = os.geteuid() == 0
        return await self._broker.open(
            key.session_id, spec.run / BROKER_SOCKET, 0o660 if shared else 0o600, spec.gid if shared else None
        )

    async def questions_until(self, key: SessionRef) -> datetime | None:
        """When the last open question of a session ends; None where none is open."""

        def ends(connection: Connection) -> list[str]:
            every = pending_questions.every(connection)
            return [one.expires_at for one in every if one.session_id == key.session_id]

        found = await self._database.run(ends)
        return from_text(max(found)) if found else None

    async def set_status(self, statuses: Sequence[tuple[SessionRef, ContainerStatus]]) -> None:
        """Writes sessions.container_status."""

        def write(connection: Connection) -> None:
            for key, status in statuses:
                sessions.set_container_status(connection, key.session_id, status)

        if statuses:
            try:
                await self._database.run(write)
            except OperationalError as error:  # a full disk: what runs goes on
                log.warning("the states of sessions could not be written", reason=str(error.orig))
