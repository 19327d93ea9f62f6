"""Fails a run that leaves something behind: a child process, a run folder, a container of a test's installation."""

import os
import time
from pathlib import Path

import docker
import pytest

from host.runtime.docker import INSTALLATION_LABEL
from tests.plugins.docker import why_no_engine
from tests.plugins.ledger import is_whole_suite

_RUN_FOLDERS = Path("/run/innkeeper")
_GRACE_SECONDS = 3.0


def children() -> set[int]:
    """The processes that this one has started and not reaped."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except FileNotFoundError:  # a thread that ended meanwhile, or a kernel without this file
            continue
    return found


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except FileNotFoundError:
        return "gone by now"
    return words.decode(errors="replace").strip() or "ended, but nobody waited for it"


def _run_folders() -> set[str]:
    return set(os.listdir(_RUN_FOLDERS)) if _RUN_FOLDERS.is_dir() else set()


def _containers() -> set[str]:
    if why_no_engine() is not None:
        return set()
    client = docker.from_env(timeout=10)
    try:
        ours = client.containers.list(all=True, filters={"label": INSTALLATION_LABEL})
        return {str(container.name) for container in ours}
    finally:
        client.close()


class _Watch:
    """Compares the end of a session with its start. What others on this machine do is watched in a whole run only."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._worker = hasattr(config, "workerinput")
        self._spreads = bool(getattr(config.option, "numprocesses", None))
        self._machine = is_whole_suite(config) and not self._worker
        self._children = children()
        self._folders = _run_folders() if self._machine else set()
        self._containers = _containers() if self._machine else set()
        self.found: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._worker or not self._spreads:  # a controller's children are its workers
            self.found += (f"process {pid}: {_command(pid)}" for pid in self._lasting_children())
        if self._worker:
            self._config.workeroutput["leftovers"] = self.found  # type: ignore[attr-defined]  # xdist's door to the controller
            return
        if self._machine:
            self.found += (f"run folder: {_RUN_FOLDERS / name}" for name in _run_folders() - self._folders)
            self.found += (f"container: {name}" for name in _containers() - self._containers)
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _lasting_children(self) -> set[int]:
        deadline = time.monotonic() + _GRACE_SECONDS
        while (lasting := children() - self._children) and time.monotonic() < deadline:
            time.sleep(0.05)
        return lasting

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.found += getattr(node, "workeroutput", {}).get("leftovers", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.found:
            terminalreporter.section("left behind", red=True)
            for line in self.found:
                terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """One watch per process of the run."""
    if not config.option.collectonly:
        config.pluginmanager.register(_Watch(config), "innkeeper-leftovers")
