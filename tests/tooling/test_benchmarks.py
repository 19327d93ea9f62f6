"""What the benchmarks share is right, and they run. Nothing here judges a time."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import NAMES
from benchmarks.common import Figure, fsync_p50_ms, percentile, save, table, table_of_all


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (95, 10), (100, 10), (10, 1), (0, 1)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected


def test_no_measurement_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 50)


def test_a_goal_is_judged_in_its_own_direction() -> None:
    assert Figure("p50", 2.0, "ms", goal=3.0).met is True
    assert Figure("p50", 4.0, "ms", goal=3.0).met is False
    assert Figure("rate", 4.0, "/s", goal=3.0, more_is_better=True).met is True
    assert Figure("seen", 4.0, "ms").met is None


def test_the_table_names_what_missed_its_goal() -> None:
    text = table("warm", [Figure("p50", 4.0, "ms", goal=3.0)], {"disk": "tmpfs"})
    assert "disk: tmpfs" in text
    assert text.splitlines()[-1].split() == ["p50", "4", "ms", "≤", "3", "ms", "MISSED"]


def test_each_benchmark_keeps_its_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    save("warm", [Figure("p50", 9.0, "ms")], {}, path)
    save("cold", [Figure("p50", 300.0, "ms")], {}, path)
    save("warm", [Figure("p50", 1.0, "ms", goal=3.0)], {"disk": "tmpfs"}, path)

    saved = json.loads(path.read_text())
    assert saved["cold"]["figures"]["p50"]["value"] == 300.0
    assert saved["warm"] == {
        "conditions": {"disk": "tmpfs"},
        "figures": {"p50": {"value": 1.0, "unit": "ms", "goal": 3.0, "more_is_better": False, "met": True}},
    }


def test_the_disks_own_speed_is_measured(tmp_path: Path) -> None:
    assert fsync_p50_ms(tmp_path, times=3) > 0


@pytest.mark.parametrize("name", NAMES)
def test_each_benchmark_can_be_run_by_itself(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").main)


def test_one_table_shows_all_that_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    save("warm", [Figure("p50", 4.0, "ms", goal=3.0)], {"disk": "tmpfs"}, path)
    save("intake", [Figure("rate", 3000.0, "/s", goal=2000.0, more_is_better=True)], {}, path)
    lines = table_of_all(json.loads(path.read_text())).splitlines()
    assert "warm: disk tmpfs" in lines[0]
    assert lines[-2].split() == ["warm:", "p50", "4", "ms", "≤", "3", "ms", "MISSED"]
    assert lines[-1].split() == ["intake:", "rate", "3000", "/s", "≥", "2000", "/s", "ok"]


def test_a_whole_host_is_measured_in_one_process() -> None:
    small = "import asyncio, benchmarks.intake as b; print(*(f.name for f in asyncio.run(b.measure(2, 2, 2))), sep='|')"
    ran = subprocess.run([sys.executable, "-c", small], capture_output=True, text=True, check=True, timeout=50)
    assert ran.stdout.strip().split("|")[0] == "accept to row p50"
