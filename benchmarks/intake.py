"""From an accepted event to its row in the mailbox, over 200 sessions: real intake, real mailboxes, no sandboxes."""

import argparse
import asyncio
import sys
import time
from typing import NoReturn

from benchmarks.common import Figure, percentile, report
from benchmarks.rig import TMPFS, Rig, installation_id, new_home, replace_runtime, running
from host.items import SessionRef
from host.runtime.base import SandboxSpec
from host.runtime.process import ProcessRuntime
from host.serving import Host

SESSIONS = 200
ONE_BY_ONE = 1000
AT_ONCE = 20


class NeverUp(ProcessRuntime):
    """Takes every place of the fleet and starts nothing: the other sessions queue; the processor is the intake's."""

    async def start(self, spec: SandboxSpec) -> NoReturn:
        """Waits until it is cancelled."""
        del spec
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def _hold_back(host: Host) -> None:
    replace_runtime(host, NeverUp(await installation_id(host), host.home.logs, clock=host.clock))


class Stamps:
    """Between postmaster and fleet: a session whose row is committed is told of here."""

    def __init__(self, rig: Rig) -> None:
        self._waiting: dict[SessionRef, asyncio.Future[float]] = {}
        self._fleet = rig.host.fleet
        rig.host.postmaster.notify = self.notify

    def notify(self, key: SessionRef) -> None:
        """host.postmaster.Postmaster.notify."""
        if key in self._waiting:
            self._waiting.pop(key).set_result(time.perf_counter())
        self._fleet.notify(key)

    def next_row(self, key: SessionRef) -> asyncio.Future[float]:
        """When this session's next row is committed."""
        return self._waiting.setdefault(key, asyncio.get_running_loop().create_future())


async def measure(sessions: int, one_by_one: int, at_once: int) -> list[Figure]:
    """`one_by_one` messages alone, over the sessions in turn; then `at_once` to each session without waiting."""
    alone = []
    with new_home(TMPFS) as home:
        async with running(home, "process", _hold_back) as rig:
            stamps = Stamps(rig)
            chats = await rig.add_chats(sessions)
            for chat in chats:  # the first message opens the mailbox
                await rig.channel.say(chat, "hello")
            await rig.host.reception.intake.idle()
            for number in range(one_by_one):
                chat = chats[number % sessions]
                row = stamps.next_row(rig.chats[chat])
                began = await rig.channel.say(chat, f"alone {number}")
                alone.append((await row - began) * 1000)
            began, used = time.perf_counter(), time.process_time()
            await asyncio.gather(
                *(rig.channel.say(chat, f"at once {number}") for number in range(at_once) for chat in chats)
            )
            await rig.host.reception.intake.idle()
            took, used = time.perf_counter() - began, time.process_time() - used
    count = sessions * at_once
    return [
        Figure("accept to row p50", percentile(alone, 50), "ms"),
        Figure("accept to row p95", percentile(alone, 95), "ms", 2),
        Figure("accepted and written", count / took, "/s", 2000, more_is_better=True),
        Figure("processor for each of these", used / count * 1000, "ms"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--alone", type=int, default=ONE_BY_ONE, help="messages said one by one")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="messages to each session said without waiting")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.sessions, options.alone, options.at_once))
    return 0 if report("intake", figures, {"sessions": str(options.sessions), "home": "tmpfs"}) else 1


if __name__ == "__main__":
    sys.exit(main())
