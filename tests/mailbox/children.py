"""What a test of its own process does with a mailbox: `python -m tests.mailbox.children <what> <session folder>`."""

import sys
from pathlib import Path

from host.mailbox import Mailbox
from mailboxes import schema
from mailboxes.clock import SystemClock
from mailboxes.layout import INBOUND_DB
from mailboxes.rows import ClaimState
from tests.mailbox.made import KEY, claim, said, snapshot, take


def hold(folder: Path) -> None:
    """Reads inbound.db as a sandbox does and stays in the middle of it until it is killed."""
    connection = schema.open_inbound_to_read(folder / "inbound" / INBOUND_DB)
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM messages_in").fetchall()
    print("held", flush=True)  # noqa: T201  its parent reads it
    sys.stdin.read()


def take_over(folder: Path) -> None:
    """Takes one turn over, as the host does."""
    mailbox = Mailbox(KEY, folder, SystemClock().now)
    rows = [said("o-1", 1), said("o-2", 3)]
    taken = take(mailbox, snapshot(rows, [claim(state=ClaimState.COMPLETED)]), reserve=lambda _: True)
    print(*(item.id for item in taken.items), flush=True)  # noqa: T201  its parent reads it
    mailbox.close()


if __name__ == "__main__":
    {"hold": hold, "take_over": take_over}[sys.argv[1]](Path(sys.argv[2]))
