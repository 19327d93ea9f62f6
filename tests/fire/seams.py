"""What a forged host of these tests gets in place of the real thing: the sandboxes' program, and shorter waits.

tests/whole/forge.py installs them where INNKEEPER_TEST_SEAMS is set; nothing outside the tests knows that name.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from host.runtime.base import SandboxSpec
from host.runtime.docker import PYTHON, DockerRuntime
from host.runtime.process import ProcessRuntime, python_prelude

INSIDE = Path(__file__).with_name("inside.py")


def install(text: str) -> None:
    """`text` is JSON: {"module:NAME": value} for the constants of this process; a list becomes a tuple."""
    constants: Mapping[str, object] = json.loads(text)
    for name, value in constants.items():
        module, _, constant = name.partition(":")
        loaded = importlib.import_module(module)
        getattr(loaded, constant)  # a constant that is gone would make the test wait for the real time
        setattr(loaded, constant, tuple(value) if isinstance(value, list) else value)
    program = INSIDE.read_text(encoding="utf-8")

    def process(self: ProcessRuntime, spec: SandboxSpec) -> list[str]:
        place = self._place
        return [str(place.python), "-I", "-c", f"{python_prelude(place)}{program}\nplay({spec.agent.name!r})"]

    def container(_: DockerRuntime, spec: SandboxSpec) -> Sequence[str]:
        return (PYTHON, "-I", "-c", f"{program}\nplay({spec.agent.name!r})")

    ProcessRuntime._command = process  # type: ignore[method-assign]
    DockerRuntime._command = container  # type: ignore[method-assign]
