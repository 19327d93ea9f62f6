"""Runs one shell command and leaves nothing of it behind: not on time-out, not on abort, not when it has ended.

Output is read as it comes and only its beginning and its end are kept, so that `yes` costs no memory.
"""

import asyncio
import codecs
import contextlib
import os
import re
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path

from agent_runner.tools.registry import MAX_OUTPUT, ToolError, clip

_CHUNK = 65536
_MARK = "INNKEEPER_COMMAND"
_STDERR_SHARE = 15_000
_ROOM_FOR_NOTES = 500
_SWEEPS = 20

# A seat belt against a slip of the model, not a boundary: the sandbox is the boundary (ledger R202, fault 128).
_REFUSED = (
    (re.compile(r"\brm\s+-(rf|fr)\s+/(\s|\*|;|&|\||$)"), "rm -rf /"),
    (re.compile(r"\bmkfs"), "mkfs"),
    (re.compile(r">\s*/dev/sd"), "> /dev/sd"),
    (re.compile(r"\bdd\s+if="), "dd if="),
)


def refused(command: str) -> str | None:
    """The part for which a command is refused, or None."""
    return next((name for pattern, name in _REFUSED if pattern.search(command)), None)


class _Kept:
    """The beginning and the end of a stream, decoded, and how much there was of it."""

    def __init__(self) -> None:
        self.text = ""
        self.end = ""
        self.total = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    async def read(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(_CHUNK):
            self._take(self._decoder.decode(chunk))
        self._take(self._decoder.decode(b"", final=True))

    def _take(self, text: str) -> None:
        self.total += len(text)
        self.text += text[: max(0, MAX_OUTPUT - len(self.text))]
        self.end = (self.end + text)[-MAX_OUTPUT:]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command gave: the beginning, the end (either at most MAX_OUTPUT characters) and the length of each stream.
    `code` is None when its time was over."""

    out: str
    out_end: str
    out_total: int
    err: str
    err_end: str
    err_total: int
    code: int | None

    def text(self, timeout: int) -> str:
        """As the model reads it: stdout, stderr, exit code (ledger R202), within MAX_OUTPUT."""
        room = MAX_OUTPUT - _ROOM_FOR_NOTES
        err = clip(self.err, min(room, max(_STDERR_SHARE, room - self.out_total)), self.err_total)
        out = clip(self.out, room - len(err), self.out_total)
        parts = [out.rstrip("\n")] if out else []
        if err:
            parts.append(f"--- stderr ---\n{err.rstrip(chr(10))}")
        if self.code is None:
            parts.append(f"Error: The command took longer than {timeout} s and was stopped.")
            parts.reverse()
        elif self.code:
            parts.append(f"[exit code: {self.code}]")
        return "\n".join(parts) or "[no output]"


async def run(command: str, folder: Path, timeout: int) -> Outcome:
    """Runs `command` with bash (sh where there is none) in `folder`, at most `timeout` seconds."""
    mark = secrets.token_hex(8)
    process = await _start(command, folder, mark)
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = _Kept(), _Kept()
    readers = [asyncio.create_task(out.read(process.stdout)), asyncio.create_task(err.read(process.stderr))]
    code: int | None = None
    try:
        async with asyncio.timeout(timeout):
            code = await _exit_of(process)
    except TimeoutError:
        code = None
    finally:
        await _kill_all(process, mark)
        # Every writer is dead by now, so the pipes end; shielded, because an abort must not leave half-closed pipes.
        await asyncio.shield(asyncio.gather(*readers))
    return Outcome(out.text, out.end, out.total, err.text, err.end, err.total, code)


async def _start(command: str, folder: Path, mark: str) -> asyncio.subprocess.Process:
    # "--": a command that starts with a dash is no option.
    for shell in ("/bin/bash", "/bin/sh"):
        try:
            return await asyncio.create_subprocess_exec(
                shell,
                "-c",
                "--",
                command,
                cwd=folder,
                env={**os.environ, _MARK: mark},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            continue
    raise ToolError(f"there is no shell in this sandbox, or no working folder {folder}")


async def _exit_of(process: asyncio.subprocess.Process) -> int:
    """The shell's own exit code. (`Process.wait` also waits for the pipes, which a background job holds open.)"""
    with contextlib.suppress(OSError):  # it is gone and reaped already, or this sandbox knows no pidfd: polled below
        await _end_of(os.pidfd_open(process.pid))
    # asyncio reaps it in its own time; the code is there with it.
    while process.returncode is None:
        await asyncio.sleep(0.005)
    return process.returncode


async def _end_of(handle: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(handle, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def _kill_all(process: asyncio.subprocess.Process, mark: str) -> None:
    """The process group first, then whatever left it (setsid, double fork): that still carries the mark."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    needle = f"{_MARK}={mark}".encode()
    for _ in range(_SWEEPS):
        if not await asyncio.shield(asyncio.to_thread(_kill_marked, needle)):
            break
    await asyncio.shield(process.wait())


def _kill_marked(needle: bytes) -> int:
    killed = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if needle in file.read().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
                    killed += 1
        except OSError:
            continue  # gone meanwhile, or another user's
    return killed
