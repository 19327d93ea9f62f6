"""A terminal that a test types on: a pseudo-terminal, and a process that has it as its controlling one."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

_ESCAPE = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()=>][0-9A-Z]?)")


class Screen:
    """Runs `arguments`; `said` is all that it has written, without escape sequences."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd="/",
            env={**environment, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"},
        )
        os.close(slave)
        self._raw = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)

    @property
    def said(self) -> str:
        return _ESCAPE.sub("", self._raw.decode(errors="replace"))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str, *, after: str = "", seconds: float = 60.0) -> None:
        """Waits until it has said `text` behind `after`."""
        deadline = time.monotonic() + seconds
        while text not in self.said.partition(after)[2] if after else text not in self.said:
            assert self._read(deadline), f"{text!r} did not come; what came:\n{self.said}"

    def end(self, *, pressing: str = "", seconds: float = 60.0) -> int:
        """Waits until the process has ended; its exit code.

        `pressing` is typed at first and again after each five quiet seconds, as a person does: between two prompts the
        terminal is in its own mode and takes a Ctrl-D for itself.
        """
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if pressing:
                self.type(pressing)
            quiet_until = min(time.monotonic() + 5, deadline) if pressing else deadline
            while self._read(quiet_until):
                pass
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(quiet_until - time.monotonic(), 0.1))
        return self.process.wait(max(deadline - time.monotonic(), 0.1))

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return False
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # the last one on the other side has closed it
            return False
        self._raw += chunk
        return bool(chunk)
