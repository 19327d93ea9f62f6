"""Run as a program over a mailbox: claims all, then commits answers and dies at the N-th statement of that commit.

Exits with 0 where the commit has fewer statements.
"""

import os
import signal
import sys
from pathlib import Path

from agent_runner.mailbox import Mailbox, answer
from mailboxes.clock import SystemClock
from mailboxes.layout import Workspace


def main(root: str, dies_at: int) -> None:
    mailbox = Mailbox(Workspace.below(Path(root)))
    mailbox.recover("hash")
    now = SystemClock().now()
    batch = mailbox.next_batch(now)
    assert batch is not None
    assert mailbox.claim(batch.rows, "t-1")
    outputs = [answer("chat", f"answer {row.id}", row.address, row.id) for row in batch.rows]
    left = dies_at

    def die_in_time(_sql: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    mailbox._outbound.set_trace_callback(die_in_time)
    mailbox.commit(mailbox.prepare(outputs), batch.rows, "t-1", None, now)


main(sys.argv[1], int(sys.argv[2]))
