"""What a test of its own process does with a mailbox: `python -m tests.mailbox.children <what> <session folder>`."""

import fcntl
import os
import signal
import sys
from pathlib import Path

from host.mailbox import Mailbox
from mailboxes import schema
from mailboxes.clock import SystemClock
from mailboxes.layout import INBOUND_DB
from mailboxes.rows import ClaimState
from tests.mailbox.made import KEY, claim, said, snapshot, take

_SHARED_BYTES = 0x40000002
"""Where SQLite's shared locks lie in a file (its os.h)."""


def hold(folder: Path) -> None:
    """Reads inbound.db as a sandbox does and stays in the middle of it until it is killed."""
    connection = schema.open_inbound_to_read(folder / "inbound" / INBOUND_DB)
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM messages_in").fetchall()
    print("held", flush=True)  # noqa: T201  its parent reads it
    sys.stdin.read()


def hold_bytes(folder: Path) -> None:
    """Locks the bytes that SQLite's readers lock, without SQLite, which would not do so beside a hot journal."""
    with (folder / "inbound" / INBOUND_DB).open("rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH, 510, _SHARED_BYTES)
        print("held", flush=True)  # noqa: T201  its parent reads it
        sys.stdin.read()


def die_in_commit(folder: Path) -> None:
    """Dies with changes half in the file and a journal that can take them back."""
    connection = schema.open_inbound(folder / "inbound" / INBOUND_DB)
    connection.execute("PRAGMA cache_size=1")
    connection.execute("BEGIN IMMEDIATE")
    for number in range(200):
        connection.execute("INSERT INTO destinations VALUES (?, 'chat', ?)", (f"d-{number}", "x" * 500))
    os.kill(os.getpid(), signal.SIGKILL)


def take_over(folder: Path) -> None:
    """Takes one turn over, as the host does."""
    mailbox = Mailbox(KEY, folder, SystemClock().now)
    rows = [said("o-1", 1), said("o-2", 3)]
    taken = take(mailbox, snapshot(rows, [claim(state=ClaimState.COMPLETED)]), reserve=lambda _: True)
    print(*(item.id for item in taken.items), flush=True)  # noqa: T201  its parent reads it
    mailbox.close()


if __name__ == "__main__":
    run = {"hold": hold, "hold_bytes": hold_bytes, "die_in_commit": die_in_commit, "take_over": take_over}[sys.argv[1]]
    run(Path(sys.argv[2]))
