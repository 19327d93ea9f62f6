"""A host that is killed around a take-over loses nothing and does nothing twice."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from host.mailbox import Mailbox
from mailboxes.rows import InStatus
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, message, row_of, table


def take_over(folder: Path, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.mailbox.children", "take_over", str(folder)],
        env=os.environ | {"INNKEEPER_CRASH_AT": crash_at},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.req("R026", "R134")
@pytest.mark.parametrize(("point", "committed"), [("before_take_over", False), ("after_take_over", True)])
def test_a_kill_around_the_take_over_loses_nothing_and_doubles_nothing(
    folder: Path, clock: FakeClock, point: str, committed: bool
) -> None:
    mailbox = Mailbox(KEY, folder, clock.now)
    mailbox.put([message()])
    mailbox.close()

    assert take_over(folder, point).returncode == -signal.SIGKILL
    assert len(table(folder, "deliveries")) == (2 if committed else 0)
    assert row_of(folder, "m-1")["status"] == (InStatus.COMPLETED if committed else InStatus.PENDING)

    again = take_over(folder)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.split() == ([] if committed else ["o-1", "o-2"])
    assert [row["id"] for row in table(folder, "deliveries")] == ["o-1", "o-2"]
    assert row_of(folder, "m-1")["status"] == InStatus.COMPLETED

    opened = Mailbox(KEY, folder, clock.now)
    try:
        assert [item.id for item in opened.open_items()] == ["o-1", "o-2"]
    finally:
        opened.close()
