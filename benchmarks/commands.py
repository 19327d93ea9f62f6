"""What a command costs before it does anything: imports."""

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import Figure, percentile, report
from benchmarks.rig import TMPFS, new_home

TIMES = 11
GOAL = 150.0
"""cli.md: `--help` and `status` within 150 ms."""


def command_ms(home: Path, *arguments: str, times: int = TIMES) -> float:
    """The median of running this command as a process of its own, in milliseconds, whatever it says."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "host", *arguments], env={**os.environ, "INNKEEPER_HOME": str(home)},
            check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        took.append((time.perf_counter() - began) * 1000)
    return percentile(took, 50)


def main() -> int:
    with new_home(TMPFS) as home:
        figures = [
            Figure("host --help", command_ms(home.root, "--help"), "ms", GOAL),
            Figure("host status, no host", command_ms(home.root, "status"), "ms", GOAL),
        ]
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        conditions = {"python itself": f"{(time.perf_counter() - began) * 1000:.0f} ms"}
    return 0 if report("commands", figures, conditions) else 1


if __name__ == "__main__":
    sys.exit(main())
