"""The agent image: built in the background when it is missing, so that nobody waits for it."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import structlog

from host.runtime import image
from host.runtime.base import Runtime, RuntimeName, RuntimeUnavailable
from host.runtime.image import BuildFailed
from host.settings import CurrentSettings
from mailboxes.clock import Clock

RETRY_SECONDS = 300.0
"""An engine that is away, or a build that failed, is tried again so much later."""

SETTING_SECONDS = 5.0
"""How soon a changed setting is noticed."""

LOOK_SECONDS = 2.0
"""How long the start of the host waits for an engine that may not be there."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


Progress: TypeAlias = Callable[[object], Awaitable[None]]


class Moves(Protocol):
    """Where it is noted that containers can be used."""

    image_ready: bool


class Builder(Protocol):
    """What is asked of host.runtime.image; all of it blocks."""

    def image_tag(self) -> str:
        """The name of the image that this code needs."""
        ...

    def image_exists(self, tag: str) -> bool:
        """Raises RuntimeUnavailable."""
        ...

    def build(self, progress: Callable[[str], None]) -> str:
        """Raises BuildFailed, RuntimeUnavailable."""
        ...

    def prune_images(self, in_use: str) -> list[str]:
        """Raises RuntimeUnavailable."""
        ...


class Images:
    """`state` is what a person reads of it; `problem` the sentence with the fix, "" where all is well."""

    def __init__(
        self, runtime: Runtime, moves: Moves, settings: CurrentSettings, clock: Clock, builder: Builder = image
    ) -> None:
        self._runtime = runtime
        self._moves = moves
        self._settings = settings
        self._clock = clock
        self._builder = builder
        self._building = asyncio.Lock()
        self.state = "not looked at yet"
        self.problem = ""

    @property
    def _wanted(self) -> bool:
        return self._settings.value.runtime in ("auto", RuntimeName.DOCKER)

    async def look(self) -> None:
        """Whether today's image is there already; quick, and for the start: an engine that does not answer is no
        error."""
        if self._wanted:
            with contextlib.suppress(RuntimeUnavailable, TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    tag = await asyncio.to_thread(self._builder.image_tag)
                    self._moves.image_ready = await asyncio.to_thread(self._builder.image_exists, tag)
        if self._moves.image_ready:
            self.state = "ready"

    async def run(self) -> None:
        """Keeps trying until containers can be used; returns never."""
        while True:
            if self._wanted and not self._moves.image_ready:
                await self._try()
            tried = self._wanted and not self._moves.image_ready
            await self._clock.sleep(RETRY_SECONDS if tried else SETTING_SECONDS)

    async def _try(self) -> None:
        probe = await self._runtime.probe()
        if not probe.usable:
            self.state, self.problem = "no engine", " ".join(probe.problems)
            log.info("containers cannot be used", reason=self.problem)
            return
        with contextlib.suppress(BuildFailed, RuntimeUnavailable):  # it stands in `problem`
            _, built = await self.make_ready(_to_log)
            if built:
                # Without an image nothing could be tried from inside, and the image itself was what was missing.
                probe = await self._runtime.probe()
            self.problem = " ".join(probe.problems)

    async def make_ready(self, progress: Progress) -> tuple[str, bool]:
        """Builds today's image where it is missing; its tag, and whether it was built now. Raises BuildFailed,
        RuntimeUnavailable."""
        async with self._building:
            try:
                tag = await asyncio.to_thread(self._builder.image_tag)
                built = not await asyncio.to_thread(self._builder.image_exists, tag)
                if built:
                    self.state = "building the image"
                    await asyncio.to_thread(self._builder.build, _from_thread(progress))
            except (BuildFailed, RuntimeUnavailable) as failed:
                self.state, self.problem = "the build failed", str(failed)
                log.error("the agent image could not be built", reason=self.problem)  # noqa: TRY400
                raise
            self.state, self.problem = "ready", ""
            self._moves.image_ready = True
            if built:
                with contextlib.suppress(RuntimeUnavailable):  # the next build does it
                    await asyncio.to_thread(self._builder.prune_images, tag)
            return tag, built


def _from_thread(progress: Progress) -> Callable[[str], None]:
    loop = asyncio.get_running_loop()

    def told(line: str) -> None:
        asyncio.run_coroutine_threadsafe(_tell(progress, line), loop)

    return told


async def _tell(progress: Progress, line: str) -> None:
    await progress(line)


async def _to_log(line: object) -> None:
    log.debug("building the image", line=line)
