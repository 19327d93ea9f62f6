"""Runs every benchmark, each in a process of its own, one after another, and prints one table."""

import json
import subprocess
import sys

from benchmarks.common import BENCH_FILE, table_of_all

NAMES = ("hand_over", "intake", "footprint", "neighbours", "crowd", "long_session", "commands")


def main() -> int:
    """`python -m benchmarks [NAME ...]`: all, or the named ones. 1 when one of them missed a goal or failed."""
    codes = []
    for name in sys.argv[1:] or NAMES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        ran = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False, stdout=subprocess.DEVNULL)
        codes.append(ran.returncode)
    print(table_of_all(json.loads(BENCH_FILE.read_text())))
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
