"""What the benchmarks share is right: percentiles, verdicts, the merged file."""

import json
from pathlib import Path

import pytest

from benchmarks.common import Figure, fsync_p50_ms, percentile, save, table


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
