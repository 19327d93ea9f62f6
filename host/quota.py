"""What sandboxes may take of the disk. No runtime limits a folder, so it is measured, and who has too much is stopped.

A look at the free space costs microseconds and is taken every few seconds; a session is measured, in a child process,
every few minutes, and all of them at once when the free space shrinks fast or is small. So a sandbox that fills the
disk is stopped within seconds, and a house full of quiet ones costs next to nothing.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import structlog

from host import sessions as session_folders
from host import untrusted
from host.db.agent_groups import AgentGroup
from host.home import Home
from host.items import SessionRef
from host.settings import CurrentSettings
from mailboxes.clock import Clock

LOOK_SECONDS = 5.0
MEASURE_SECONDS = 300.0
"""Between two measurements of a session while the disk is in no hurry."""

LITTLE_BYTES = 1024**3
"""Less free space than this is little."""

MAX_ENTRIES = 1_000_000
"""Files and folders that one session, or one agent's home, may have: they use up a file system as well."""

_MIB = 1024**2

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Stoppable(Protocol):
    """What is asked of host.life.Life."""

    def kill(self, why: str) -> None:
        """Ends it for what it does."""
        ...


class Quota:
    """See the module. `live` and `groups` say what lives now; `tell` says something to the chat of a session that waits
    for it, once per cause: (session, cause, text); `free` is how many bytes the home's disk has left."""

    def __init__(
        self,
        home: Home,
        settings: CurrentSettings,
        clock: Clock,
        live: Callable[[], Mapping[SessionRef, Stoppable]],
        groups: Callable[[], Mapping[str, AgentGroup]],
        tell: Callable[[SessionRef, str, str], Awaitable[None]],
        free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self._home = home
        self._settings = settings
        self._clock = clock
        self._live = live
        self._groups = groups
        self._tell = tell
        self._free = free
        self._measured: dict[SessionRef, float] = {}
        self._free_then: int | None = None

    async def run(self) -> None:
        """Looks, for ever."""
        while True:
            await self.tick()
            await self._clock.sleep(LOOK_SECONDS)

    async def tick(self) -> None:
        """One look."""
        free, now, live = self._free(self._home.root), self._clock.monotonic(), self._live()
        self._measured = {key: at for key, at in self._measured.items() if key in live}
        if self._hurries(free):
            due = list(live)
        else:
            due = [key for key in live if now - self._measured.setdefault(key, now) >= MEASURE_SECONDS]
        homes: dict[str, str | None] = {}
        for key in due:
            self._measured[key] = now
            folder = self._home.session_folder(key.agent_group_id, key.session_id)
            reason = await self._too_much("session", folder / "outbound", folder / "state")
            if reason is None and key.agent_group_id not in homes:
                homes[key.agent_group_id] = await self._home_of(key.agent_group_id)
            if reason := reason or homes.get(key.agent_group_id):
                log.warning("a sandbox has too much on the disk and is stopped", session=key.session_id, reason=reason)
                live[key].kill(reason)
                await self._tell(key, "quota", f"{reason} So I was stopped.")
        if due or self._free_then is None:
            self._free_then = self._free(self._home.root)

    def _hurries(self, free: int) -> bool:
        """Whether the disk has lost a quarter of one session's share since the last measurement, or is nearly full."""
        lost = 0 if self._free_then is None else self._free_then - free
        return lost >= self._settings.value.disk_mib * _MIB // 4 or (free < LITTLE_BYTES and lost > 0)

    async def _home_of(self, agent_group_id: str) -> str | None:
        group = self._groups().get(agent_group_id)
        if group is None:
            return None
        return await self._too_much(
            "agent", session_folders.agent_folder(self._home, group) / session_folders.AGENT_HOME
        )

    async def _too_much(self, whose: str, *folders: Path) -> str | None:
        """Why folders are too large together, as a sentence for a person."""
        taken = entries = 0
        for folder in folders:
            try:
                size = await asyncio.to_thread(untrusted.measure, folder)
            except (untrusted.TreeNotDone, OSError) as error:
                log.warning("a folder could not be measured", folder=str(folder), reason=str(error))
            else:
                taken, entries = taken + size.bytes, entries + size.entries
        limit = self._settings.value.disk_mib
        if taken > limit * _MIB:
            return f"The files of this {whose} take {taken // _MIB} MiB of the disk; disk_mib allows {limit}."
        if entries > MAX_ENTRIES:
            return f"This {whose} has more than {MAX_ENTRIES} files."
        return None
