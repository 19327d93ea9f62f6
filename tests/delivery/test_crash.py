"""The only moment in which a message can arrive twice lies between the platform's yes and its record."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from host.home import Home
from tests.mailbox.made import KEY, make_session, row_of


def deliver(home: Home, taken: Path, crash_at: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.delivery.children", str(home.root), str(taken)],
        env=os.environ | {"INNKEEPER_CRASH_AT": crash_at},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.req("R134", "R140")
@pytest.mark.parametrize(
    ("point", "arrived"),
    [
        ("before_take_over", ["one", "two"]),
        ("after_take_over", ["one", "two"]),
        ("before_send", ["one", "two"]),
        ("after_send", ["one", "one", "two"]),
    ],
)
def test_a_killed_host_loses_nothing_and_doubles_only_what_it_could_not_record(
    home: Home, tmp_path: Path, point: str, arrived: list[str]
) -> None:
    folder = make_session(home.session_folder(KEY.agent_group_id, KEY.session_id))
    taken = tmp_path / "taken.txt"
    assert deliver(home, taken, point).returncode == -signal.SIGKILL
    again = deliver(home, taken)
    assert again.returncode == 0, again.stderr
    assert taken.read_text().split() == arrived
    assert [row_of(folder, name, "deliveries")["state"] for name in ("o-1", "o-2")] == ["sent", "sent"]
