"""From an accepted event to its row in the mailbox, over 200 sessions: real intake, real mailboxes, no sandboxes."""

import asyncio
import sys
import time

from benchmarks.common import Figure, percentile, report
from benchmarks.rig import TMPFS, Rig, new_home, running
from host.items import SessionRef

SESSIONS = 200
ONE_BY_ONE = 1000
AT_ONCE = 20
"""Messages to each session, said without waiting."""


class Stamps:
    """In the fleet's place: it is told when a session's row is committed, and no sandbox is started."""

    def __init__(self, rig: Rig) -> None:
        self._waiting: dict[SessionRef, asyncio.Future[float]] = {}
        rig.host.postmaster.notify = self.notify

    def notify(self, key: SessionRef) -> None:
        """host.postmaster.Postmaster.notify."""
        if key in self._waiting:
            self._waiting.pop(key).set_result(time.perf_counter())

    def next_row(self, key: SessionRef) -> asyncio.Future[float]:
        """When this session's next row is committed."""
        return self._waiting.setdefault(key, asyncio.get_running_loop().create_future())


async def measure(
    sessions: int = SESSIONS, one_by_one: int = ONE_BY_ONE, at_once: int = AT_ONCE
) -> tuple[list[float], float]:
    """Milliseconds of each message that is alone, and messages a second of those at once."""
    alone = []
    with new_home(TMPFS) as home:
        async with running(home, "process") as rig:
            stamps = Stamps(rig)
            chats = await rig.add_chats(sessions)
            for chat in chats:  # the first message opens the mailbox
                await rig.channel.say(chat, "hello")
            await rig.host.intake.idle()
            for number in range(one_by_one):
                chat = chats[number % sessions]
                row = stamps.next_row(rig.chats[chat])
                began = await rig.channel.say(chat, f"alone {number}")
                alone.append((await row - began) * 1000)
            began = time.perf_counter()
            await asyncio.gather(
                *(rig.channel.say(chat, f"at once {number}") for number in range(at_once) for chat in chats)
            )
            await rig.host.intake.idle()
            return alone, sessions * at_once / (time.perf_counter() - began)


def main() -> int:
    alone, rate = asyncio.run(measure())
    figures = [
        Figure("accept to row p50", percentile(alone, 50), "ms"),
        Figure("accept to row p95", percentile(alone, 95), "ms", 2),
        Figure("accepted and written", rate, "/s", 2000, more_is_better=True),
    ]
    return 0 if report("intake", figures, {"sessions": str(SESSIONS), "home": "tmpfs"}) else 1


if __name__ == "__main__":
    sys.exit(main())
