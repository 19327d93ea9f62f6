"""A runner that only commits, at full speed, as a process of its own: ``python writer.py OUTBOUND_DB SECONDS``.

In each commit, `next_seq` and `beat` of the state and the turn id of every row and claim carry one and the same number,
and how many rows there are follows from it. It prints the last number that it committed.
"""

import os
import sys
import time
from pathlib import Path

from mailboxes.schema import open_outbound, transaction

ROWS_MOST = 40


def rows_of(number: int) -> int:
    return 1 + number * 7 % ROWS_MOST


def main(path: str, seconds: str) -> None:
    connection = open_outbound(Path(path))
    ends, number = time.monotonic() + float(seconds), 0
    connection.execute(
        "INSERT INTO runner_state (id, state, next_seq, beat, runner_hash) VALUES (1, 'busy', 0, 0, 'x')"
    )
    print(os.getpid(), flush=True)  # noqa: T201
    while time.monotonic() < ends:
        number += 1
        with transaction(connection):
            connection.execute("DELETE FROM messages_out")
            connection.execute("UPDATE runner_state SET next_seq = ?, beat = ?", (number, number))
            connection.executemany(
                "INSERT INTO messages_out (id, seq, turn_id, timestamp, kind, content) "
                "VALUES (?, ?, ?, '2026-01-01T00:00:00.000Z', 'chat', ?)",
                [
                    (f"o-{n}", 2 * n + 1, f"t-{number}", '{"text":"' + "x" * (n * 131 % 3000) + '"}')
                    for n in range(rows_of(number))
                ],
            )
            connection.execute(
                "INSERT OR REPLACE INTO claims VALUES ('m-1', 0, ?, 'processing', NULL, 1)", (f"t-{number}",)
            )
    print(number, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
