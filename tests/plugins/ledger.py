"""Counts which rows of the requirement ledger have a passing test, by pytest's own report.

A test names its rows with `@pytest.mark.req("R034")` and the faults of the field with `@pytest.mark.fault(27)`. Only a
test that was collected, ran and passed to the end of its teardown counts. A run of the whole suite leaves
`build/ledger.json`; `python -m tests.plugins.ledger` reads it where it is of this very tree, and else runs the suite.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS_FILE = ROOT / "tests" / "ledger_rows.txt"
REPORT_FILE = ROOT / "build" / "ledger.json"

_SOURCES = (".ci", "agent_runner", "benchmarks", "docs", "groups/template", "host", "mailboxes", "migrations", "tests")
_TOP_LEVEL = ("*.toml", "*.lock", "*.md", "Dockerfile", "Makefile", "up")
_ROW = re.compile(r"R(\d{3})(?:-R(\d{3}))?")


def wanted_rows(text: str) -> list[str]:
    """The rows that a list such as "R001-R003 R007" names, in order. Raises ValueError for anything else in it."""
    rows: list[str] = []
    for line in text.splitlines():
        for word in line.partition("#")[0].replace(",", " ").split():
            if not (match := _ROW.fullmatch(word)):
                raise ValueError(f"{word!r} is no row and no range of rows")
            first, last = int(match[1]), int(match[2] or match[1])
            rows += [f"R{number:03}" for number in range(first, last + 1)]
    return rows


def tree_hash(root: Path = ROOT) -> str:
    """A digest of every file that can change a test's outcome: names and contents, no times."""
    paths = [path for pattern in _TOP_LEVEL for path in root.glob(pattern)]
    for folder in _SOURCES:
        paths += (path for path in (root / folder).rglob("*") if "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        if path.is_file():
            digest.update(f"{path.relative_to(root)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def is_whole_suite(config: pytest.Config) -> bool:
    """True when this run leaves nothing out: no paths, no -k, no -m, not only the last failures."""
    option = config.option
    narrowed = option.keyword or option.markexpr or option.deselect or option.ignore or option.ignore_glob
    last_failed = getattr(option, "lf", False) or getattr(option, "stepwise", False)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not narrowed and not last_failed


@dataclass(slots=True)
class Tally:
    """What one run has shown so far; `rows` and `faults` map an id to the tests that passed for it."""

    passed: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    docker: set[str] = field(default_factory=set)
    rows: dict[str, set[str]] = field(default_factory=dict)
    faults: dict[str, set[str]] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """Takes in the report of one phase of one test."""
        if report.failed or hasattr(report, "wasxfail"):
            self.broken.add(report.nodeid)
        if report.when != "call" or not report.passed:
            return
        self.passed.add(report.nodeid)
        for name, value in report.user_properties:
            if name == "docker":
                self.docker.add(report.nodeid)
            elif name in ("req", "fault"):
                kept = self.rows if name == "req" else self.faults
                kept.setdefault(str(value), set()).add(report.nodeid)

    def summary(self, wanted: list[str], tree: str) -> dict[str, object]:
        """The report's JSON: counts, the rows that are done with their tests, and those that are open."""
        good = self.passed - self.broken
        rows = {row: sorted(tests & good) for row, tests in sorted(self.rows.items()) if tests & good}
        return {
            "tree": tree,
            "passed": len(good),
            "failed": len(self.broken),
            "docker_passed": len(self.docker & good),
            "rows_wanted": len(wanted),
            "rows_open": [row for row in wanted if row not in rows],
            "rows": rows,
            "faults": {fault: sorted(tests & good) for fault, tests in sorted(self.faults.items()) if tests & good},
        }


def three_lines(summary: dict[str, object]) -> Iterator[str]:
    """What CI prints at its end."""
    wanted = summary["rows_wanted"]
    still_open = summary["rows_open"]
    if not isinstance(wanted, int) or not isinstance(still_open, list):
        raise TypeError("build/ledger.json is not a report of ours")
    yield f"tests passed: {summary['passed']}"
    yield f"docker tests passed: {summary['docker_passed']}"
    yield f"ledger rows covered: {wanted - len(still_open)} of {wanted}"


_TALLY = pytest.StashKey[Tally]()


def pytest_configure(config: pytest.Config) -> None:
    """Workers only run tests; the one process that sees every report counts."""
    if not hasattr(config, "workerinput"):
        config.stash[_TALLY] = Tally()
        config.pluginmanager.register(_Counter(config), "innkeeper-ledger")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Writes each test's ids into its report, which is how they cross from a worker."""
    for item in items:
        for name in ("req", "fault"):
            for mark in item.iter_markers(name):
                for value in mark.args:
                    if name == "req" and not re.fullmatch(r"R\d{3}", str(value)):
                        raise pytest.UsageError(f"{item.nodeid}: {value!r} is no row of the ledger (R034).")
                    item.user_properties.append((name, str(value)))
        if item.get_closest_marker("docker"):
            item.user_properties.append(("docker", "yes"))


class _Counter:
    """Hears every report of the run, whoever ran the test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tally = config.stash[_TALLY]
        self._tree = tree_hash() if is_whole_suite(config) else ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tally.add(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._tree or self._config.option.collectonly:
            return
        summary = self._tally.summary(wanted_rows(ROWS_FILE.read_text()), self._tree)
        REPORT_FILE.parent.mkdir(exist_ok=True)
        REPORT_FILE.write_text(json.dumps(summary, indent=1) + "\n")
        terminalreporter.section("innkeeper")
        for line in three_lines(summary):
            terminalreporter.write_line(line)


def _report_of_this_tree() -> dict[str, object] | None:
    try:
        summary = json.loads(REPORT_FILE.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return summary if summary["tree"] == tree_hash() else None


def main() -> int:
    """Prints rows done and rows open; 1 when one of the list is open."""
    if (summary := _report_of_this_tree()) is None:
        print("No report of the whole suite for this tree: running it.", flush=True)
        whole_suite = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "loadgroup", "-q"]
        subprocess.run(whole_suite, cwd=ROOT, check=False)
        summary = _report_of_this_tree()
    if summary is None:
        print("The suite left no report of this tree (it did not run to its end, or a file changed meanwhile).")
        return 1
    still_open = summary["rows_open"]
    print("rows open:", " ".join(map(str, still_open)) if isinstance(still_open, list) and still_open else "none")
    print(*three_lines(summary), sep="\n")
    return 1 if still_open else 0


if __name__ == "__main__":
    sys.exit(main())
