"""What a forged host of these tests gets in place of the real thing: the sandboxes' program, and shorter waits.

tests/whole/forge.py installs them where INNKEEPER_TEST_SEAMS is set; nothing outside the tests knows that name.
"""

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from host.runtime.base import SandboxSpec
from host.runtime.docker import PYTHON, DockerRuntime
from host.runtime.process import ProcessRuntime, python_prelude
from mailboxes.clock import SystemClock

INSIDE = Path(__file__).with_name("inside.py")


def _follow_wall(path: Path) -> None:
    """The wall clock of this process is off by the seconds in that file."""
    real = SystemClock.now
    SystemClock.now = lambda self: real(self) + timedelta(seconds=float(path.read_text()))  # type: ignore[method-assign]


def install(text: str) -> None:
    """`text` is JSON: {"module:NAME": value} for the constants of this process; a list becomes a tuple."""
    constants: Mapping[str, object] = json.loads(text)
    for name, value in constants.items():
        module, _, constant = name.partition(":")
        loaded = importlib.import_module(module)
        getattr(loaded, constant)  # a constant that is gone would make the test wait for the real time
        setattr(loaded, constant, tuple(value) if isinstance(value, list) else value)
    if wall := os.environ.pop("INNKEEPER_TEST_WALL", None):
        _follow_wall(Path(wall))
    program = INSIDE.read_text(encoding="utf-8")

    def process(self: ProcessRuntime, spec: SandboxSpec) -> list[str]:
        place = self._place
        return [str(place.python), "-I", "-c", f"{python_prelude(place)}{program}\nplay({spec.agent.name!r})"]

    def container(_: DockerRuntime, spec: SandboxSpec) -> Sequence[str]:
        return (PYTHON, "-I", "-c", f"{program}\nplay({spec.agent.name!r})")

    ProcessRuntime._command = process  # type: ignore[method-assign]
    DockerRuntime._command = container  # type: ignore[method-assign, assignment]
