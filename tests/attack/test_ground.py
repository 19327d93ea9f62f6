"""The ground that the host stands on: homes that others can exchange, disks that fill, processes without end."""

import fcntl
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from host.home import Home, HomeRefused
from host.lock import holder, home_lock
from host.runtime.cage import LOGS_KEPT, log_path, write_log
from tests.runtime.conftest import USER, as_user, needs_root


@needs_root
@pytest.mark.parametrize("squatted", ["home", "runtime"])
def test_a_folder_that_another_user_could_exchange_is_refused(on_tmpfs: Path, squatted: str) -> None:
    theirs, ours = on_tmpfs / "theirs", on_tmpfs / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
    os.chown(theirs, USER, USER)
    home = Home(theirs / "x", ours / "run") if squatted == "home" else Home(ours / "x", theirs / "run")
    with pytest.raises(HomeRefused, match=f"{theirs}, above .*, belongs to another user"):
        home.prepare()
    os.chown(theirs, 0, 0)
    theirs.chmod(0o777)
    with pytest.raises(HomeRefused, match=f"Everybody can write {theirs}"):
        home.prepare()
    theirs.chmod(0o1777)
    home.prepare()


@pytest.mark.fault(112)
@pytest.mark.parametrize("name", ["groups", "sessions", "logs", "backups"])
def test_a_link_that_was_planted_in_a_home_is_refused_and_nothing_is_made_behind_it(tmp_path: Path, name: str) -> None:
    home, elsewhere = Home(tmp_path / "home", tmp_path / "run"), tmp_path / "elsewhere"
    for folder in (home.root, elsewhere):
        folder.mkdir(mode=0o700)
    (home.root / name).symlink_to(elsewhere)
    with pytest.raises(HomeRefused, match=f"{name} is a link"):
        home.prepare()
    assert list(elsewhere.iterdir()) == []


def test_a_sandbox_that_ends_again_and_again_does_not_fill_the_disk_with_logs(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for number in range(3 * LOGS_KEPT):
        path = log_path(tmp_path, "s-1", now + timedelta(seconds=number))
        write_log(path, b"x")
        write_log(path.with_suffix(".earlier.log"), b"x")
    kept = sorted((tmp_path / "s-1").iterdir())
    assert len(kept) <= LOGS_KEPT + 1
    assert path in kept


_BOMB = """
import asyncio, json, os
from dataclasses import replace
from pathlib import Path
from host.runtime.base import Limits
from host.runtime.probe import probe_spec
from host.runtime.process import ProcessRuntime, python_prelude

BOMB = '''
import os
count = 0
try:
    while count < 300:
        if os.fork() == 0:
            os.read(os.pipe()[0], 1)
        count += 1
except BlockingIOError:
    pass
print(count, flush=True)
'''

class Caged(ProcessRuntime):
    def _command(self, spec):
        return [str(self._place.python), "-I", "-c", python_prelude(self._place) + BOMB]

async def main():
    logs = Path(os.environ["FOLDER"]) / "logs"
    runtime = Caged("test", logs)
    with probe_spec(logs) as spec:
        spec = replace(spec, session_id="s-one", limits=Limits(processes=40))
        sandbox = await runtime.start(spec)
        await asyncio.wait_for(sandbox.wait(), 30)
        said = "".join(path.read_text() for path in (logs / "s-one").iterdir())
    print(json.dumps(int(said)))
    await runtime.close()

asyncio.run(main())
"""


@needs_root
@pytest.mark.req("R091")
def test_a_users_sandbox_cannot_use_up_the_users_processes(root: Path) -> None:
    done = as_user(_BOMB, root)
    assert done.returncode == 0, done.stderr
    assert 10 < json.loads(done.stdout) < 40


def test_somebody_who_only_looks_does_not_keep_a_host_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "host.lock"
    looked = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(looked, fcntl.LOCK_SH)
    going = threading.Timer(0.01, os.close, [looked])
    going.start()
    with home_lock(path):
        assert holder(path) == os.getpid()
    going.join()
