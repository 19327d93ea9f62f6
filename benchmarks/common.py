"""What the benchmarks share: percentiles, the disk's own speed, the table, and build/bench.json."""

import fcntl
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BENCH_FILE = Path(__file__).resolve().parents[1] / "build" / "bench.json"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `goal` is the most it may be (the least where `more_is_better`); None: shown, not judged."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    more_is_better: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        if self.goal is None:
            return None
        return self.value >= self.goal if self.more_is_better else self.value <= self.goal


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of what was measured: always one of the values. Raises ValueError for none."""
    if not values:
        raise ValueError("nothing was measured")
    ranked = sorted(values)
    rank = -(-len(ranked) * percent // 100)  # rounded up
    return ranked[max(0, int(rank) - 1)]


def fsync_p50_ms(folder: Path, times: int = 200) -> float:
    """The median of writing and syncing 4 KiB in this folder, in milliseconds: what one commit costs on its disk."""
    took: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            os.pwrite(file.fileno(), os.urandom(4096), 0)
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def table(title: str, figures: Sequence[Figure], conditions: Mapping[str, str]) -> str:
    """One table for people; `conditions` (the disk, the image, the count) stand under its title."""
    head = [title, *(f"  {name}: {value}" for name, value in conditions.items())]
    return "\n".join([*head, *_lines(figures)])


def table_of_all(saved: Mapping[str, Any]) -> str:
    """One table of what `save` wrote, every benchmark's conditions above it."""
    heads, figures = [], []
    for title, part in saved.items():
        said = ", ".join(f"{name} {value}" for name, value in part["conditions"].items())
        heads.append(f"  {title}: {said}")
        for name, saved_figure in part["figures"].items():
            known = {key: value for key, value in saved_figure.items() if key != "met"}
            figures.append(Figure(f"{title}: {name}", **known))
    return "\n".join([*heads, *_lines(figures)])


def _lines(figures: Sequence[Figure]) -> list[str]:
    rows = [("figure", "measured", "goal", "")]
    for figure in figures:
        bound = "" if figure.goal is None else f"{'≥' if figure.more_is_better else '≤'} {figure.goal:g} {figure.unit}"
        verdict = {None: "", True: "ok", False: "MISSED"}[figure.met]
        rows.append((figure.name, f"{figure.value:.4g} {figure.unit}", bound, verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def save(title: str, figures: Sequence[Figure], conditions: Mapping[str, str], path: Path = BENCH_FILE) -> None:
    """Puts this table into build/bench.json beside the other benchmarks' tables, in place of its own earlier one."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        known = json.loads(text) if text else {}
        known[title] = {
            "conditions": dict(conditions),
            "figures": {
                figure.name: {
                    "value": figure.value,
                    "unit": figure.unit,
                    "goal": figure.goal,
                    "more_is_better": figure.more_is_better,
                    "met": figure.met,
                }
                for figure in figures
            },
        }
        file.truncate(0)
        file.write(json.dumps(known, indent=1) + "\n")


def report(title: str, figures: Sequence[Figure], conditions: Mapping[str, str] | None = None) -> bool:
    """Prints the table and saves it. True when every goal is met."""
    print(table(title, figures, conditions or {}) + "\n", flush=True)
    save(title, figures, conditions or {})
    return all(figure.met is not False for figure in figures)
