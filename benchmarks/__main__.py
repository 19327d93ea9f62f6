"""Runs every benchmark, each in a process of its own, one after another; 1 when one of them missed a goal or failed."""

import pkgutil
import subprocess
import sys

import benchmarks


def main() -> int:
    """`python -m benchmarks [NAME ...]`: all, or the named ones."""
    every = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    wanted = sys.argv[1:] or [name for name in every if name not in ("__main__", "common")]
    codes = [subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode for name in wanted]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
