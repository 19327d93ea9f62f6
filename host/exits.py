"""Sandboxes that have ended and whose claims are not judged yet.

Until a session's exit is judged no runner may start for it, because a runner drops the claims that it finds.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from host.items import SessionRef
from host.life import Prepared
from host.postmaster import Postmaster, Pulled
from host.runtime.base import RuntimeUnavailable
from host.untrusted import BadFile, JournalActive, TornSnapshot
from mailboxes.clock import Clock

RECOVER_SECONDS = 30.0
JUDGE_TRIES = 3

ROLL_BACK_AGAIN_SECONDS = 600.0
"""Between two sandboxes of one session that are started for a journal alone: they take no place, and nobody asked for
them."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sandbox ended: a sentence, and whether that counts as a try."""

    reason: str
    counted: bool


class Exits:
    """Keeps an ending for as long as it could not be judged."""

    def __init__(self, postmaster: Postmaster, clock: Clock, damaged: Callable[[SessionRef, str], None]) -> None:
        self._postmaster = postmaster
        self._damaged = damaged
        self._clock = clock
        self._open: dict[SessionRef, Ending] = {}
        self._rolled_back: dict[SessionRef, float] = {}

    def note(self, key: SessionRef, ending: Ending) -> None:
        """A session's sandbox has ended."""
        self._open[key] = ending

    def of(self, key: SessionRef) -> Ending:
        """The ending that waits to be judged. Raises KeyError."""
        return self._open[key]

    async def judge(self, key: SessionRef, prepared: Prepared) -> Pulled | None:
        """Reads the mailbox of a runner that is gone to its end and judges the claims; does nothing where that is done.

        A journal that the runner left is rolled back by a sandbox that does nothing else (another one within ten
        minutes has to wait); a bad file is set aside and replaced. Returns the last reading. Raises what
        `Runtime.start` raises, OSError, sqlite3.Error, InboundHeld.
        """
        ending = self._open.get(key)
        if ending is None:
            return None
        pulled, rolled_back = None, False
        for _ in range(JUDGE_TRIES):
            try:
                pulled = await self._postmaster.pull(key, counted=ending.counted, ended=ending.reason)
                while pulled is not None and pulled.more:
                    pulled = await self._postmaster.pull(key, counted=ending.counted, ended=ending.reason)
            except JournalActive:
                if rolled_back:
                    continue
                await self._roll_back(key, prepared)
                rolled_back = True
            except TornSnapshot:
                await self._clock.sleep(0.01)
            except BadFile as error:
                await self._replace_bad(key, prepared, str(error))
                break
            else:
                break
        else:
            await self._replace_bad(key, prepared, "it could not be read after its runner had ended")
        self._open.pop(key, None)
        return pulled

    async def _replace_bad(self, key: SessionRef, prepared: Prepared, reason: str) -> None:
        self._damaged(key, reason)
        await self._postmaster.replace_bad(key, reason, uid=prepared.spec.uid, gid=prepared.spec.gid)

    async def _roll_back(self, key: SessionRef, prepared: Prepared) -> None:
        spec, now = prepared.spec, self._clock.monotonic()
        wait = self._rolled_back.get(key, -ROLL_BACK_AGAIN_SECONDS) + ROLL_BACK_AGAIN_SECONDS - now
        if wait > 0:
            raise RuntimeUnavailable(
                "My sandbox ended in the middle of writing, twice in a short time. I put that in order in "
                f"{max(1, round(wait / 60))} min and go on then."
            )
        log.info("a commit that was killed in the middle is rolled back", session=spec.session_id)
        recover = replace(spec, environment={**spec.environment, "RUNNER_MODE": "recover"})
        sandbox = await prepared.runtime.start(recover)
        self._rolled_back = {
            one: then for one, then in self._rolled_back.items() if now - then < ROLL_BACK_AGAIN_SECONDS
        }
        self._rolled_back[key] = now
        try:
            async with asyncio.timeout(RECOVER_SECONDS):
                await sandbox.wait()
        except TimeoutError:
            await sandbox.kill()
