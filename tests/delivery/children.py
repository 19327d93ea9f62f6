"""A host that delivers one session's words and is killed at a named point:
`python -m tests.delivery.children <home> <file that the platform writes>`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from host.channels.base import Outgoing
from host.delivery import Delivery
from host.home import find_home
from host.mailbox_pool import MailboxPool
from mailboxes.clock import SystemClock
from mailboxes.rows import Address
from tests.delivery.conftest import Books, nobody, until
from tests.fakes.recording_channel import RecordingChannel
from tests.mailbox.made import KEY, said, snapshot, take


class Platform(RecordingChannel):
    """Keeps what it took in a file, for it outlives the host."""

    def __init__(self, taken: Path) -> None:
        super().__init__()
        self._file = taken

    async def deliver(self, address: Address, outgoing: Outgoing) -> list[str]:
        with self._file.open("a") as file:
            file.write(f"{outgoing.text}\n")
        return await super().deliver(address, outgoing)


async def run(arguments: Sequence[str]) -> None:
    clock = SystemClock()
    pool = MailboxPool(find_home(arguments[0], os.environ), clock, nobody)
    delivery = Delivery({("telegram", "bot"): Platform(Path(arguments[1]))}, Books(pool), clock)
    delivery.add(await pool.call(KEY, lambda mailbox: mailbox.open_items()))
    rows = [said("o-1", 1, "one"), said("o-2", 3, "two")]
    taken = await pool.call(KEY, lambda mailbox: take(mailbox, snapshot(rows), reserve=delivery.reserve))
    delivery.add(taken.items)
    await until(lambda: not delivery._lanes)
    await delivery.close()
    await pool.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1:]))
