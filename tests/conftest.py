"""Fixtures that every area shares. The plugins beside hold what the suite demands of each test."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.home import Home, find_home
from tests.fakes.clock import FakeClock

pytest_plugins = [
    "pytester",
    "tests.plugins.ledger",
    "tests.plugins.docker",
    "tests.plugins.loop_guard",
    "tests.plugins.leftovers",
]

ROOT = Path(__file__).resolve().parents[1]

# A child that a test starts as `python -m host...` runs this tree's code, whatever version the venv has installed.
os.environ["PYTHONPATH"] = str(ROOT)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--seeds N`: how many seeded storms a test with `storm_seed` goes through; `--weeks N` likewise for weeks."""
    parser.addoption("--seeds", type=int, default=20, help="seeds of each storm test (default 20)")
    parser.addoption("--weeks", type=int, default=1, help="seeds of the simulated week (default 1)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `storm_seed` or `week_seed` runs once per seed."""
    for name, option in (("storm_seed", "seeds"), ("week_seed", "weeks")):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(metafunc.config.getoption(option)))


@pytest.fixture(autouse=True)
def _nobodys_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the key, the home or the model of whoever runs it."""
    for name in list(os.environ):
        if name.startswith(("ANTHROPIC_", "TELEGRAM_", "SLACK_", "INNKEEPER_HOME", "INNKEEPER_DATABASE_URL")):
            monkeypatch.delenv(name)


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A prepared home, and the environment that leads a child process to it; its sockets lie in a short folder."""
    runtime = tempfile.mkdtemp(prefix="ik-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("INNKEEPER_HOME", str(tmp_path / "home"))
    made = find_home(None, os.environ)
    made.prepare()
    yield made
    shutil.rmtree(runtime)


@pytest.fixture
def on_tmpfs() -> Iterator[Path]:
    """A folder whose fsync costs nothing; the test is skipped where the machine has no /dev/shm."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no writable /dev/shm on this machine")
    folder = Path(tempfile.mkdtemp(prefix="ik-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)
