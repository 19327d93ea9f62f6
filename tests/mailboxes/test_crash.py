import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = "from mailboxes.crash import crash_at; crash_at('before'); crash_at('here'); print('lived')"


def _run(**environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_named_point_kills_the_process_right_there() -> None:
    assert _run(INNKEEPER_CRASH_AT="here") == (-signal.SIGKILL, "")


def test_another_point_and_no_point_do_nothing() -> None:
    assert _run(INNKEEPER_CRASH_AT="elsewhere") == (0, "lived\n")
    assert _run() == (0, "lived\n")


def test_a_counted_point_kills_so_often_and_no_more(tmp_path: Path) -> None:
    codes = [_run(INNKEEPER_CRASH_AT="here:2", INNKEEPER_CRASH_DIR=str(tmp_path))[0] for _ in range(4)]

    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0, 0]
