"""The home lock, with real processes."""

import os
import signal
import subprocess
import sys

import pytest

from host.home import Home
from host.lock import HomeTaken, holder, home_lock

_HOLD = """
import sys, time
from pathlib import Path
from host.lock import home_lock
with home_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def _other_host(home: Home) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(home.lock_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_host_on_one_home_is_refused_with_the_process_that_holds_it(home: Home) -> None:
    with _other_host(home) as other:
        assert holder(home.lock_file) == other.pid
        with pytest.raises(HomeTaken, match=f"process {other.pid}"), home_lock(home.lock_file):
            pass
        assert other.stdin is not None
        other.stdin.close()
    with home_lock(home.lock_file):
        assert holder(home.lock_file) == os.getpid()


def test_a_killed_host_leaves_no_lock_behind(home: Home) -> None:
    with _other_host(home) as other:
        other.send_signal(signal.SIGKILL)
    assert holder(home.lock_file) is None
    with home_lock(home.lock_file):
        pass


def test_what_the_file_says_decides_nothing(home: Home) -> None:
    home.lock_file.write_text("1\n")
    with home_lock(home.lock_file):
        pass


def test_a_link_in_its_place_is_not_followed(home: Home) -> None:
    victim = home.root / "victim"
    victim.write_text("precious")
    home.lock_file.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"), home_lock(home.lock_file):
        pass
    assert victim.read_text() == "precious"
