"""What every sandbox has in common: which folders lie where in it, whether they may be mounted, and its log.

The folders are the host's. Only the last part of a path is checked for a link: nothing above a mount lies in a folder
that a sandbox can write (docs/architecture.md, "Isolation").
"""

import errno
import hashlib
import json
import os
import re
from datetime import datetime
from pathlib import Path, PurePosixPath

from host.runtime.base import Mount, SandboxRefused, SandboxSpec
from host.text import printable
from mailboxes.clock import to_text
from mailboxes.ids import is_row_id
from mailboxes.layout import MAX_SESSION_ID, SANDBOX

EXTRA = PurePosixPath("/workspace/extra")
LOG_BYTES = 256 * 1024
"""How much of a sandbox's output is kept: its end, which says why it died."""

_WORDS = 400

LOGS_KEPT = 20
"""Files of a session's earlier sandboxes that stay."""

INSTALLATION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def mounts_of(spec: SandboxSpec) -> tuple[Mount, ...]:
    """Every folder of a sandbox, parents before children. The same in every runtime (ledger R083)."""
    return (
        Mount(spec.inbound, str(SANDBOX.inbound)),
        Mount(spec.outbound, str(SANDBOX.outbound), read_only=False),
        Mount(spec.state, str(SANDBOX.state), read_only=False),
        Mount(spec.run, str(SANDBOX.run)),
        Mount(spec.agent, str(SANDBOX.agent)),
        Mount(spec.home, str(SANDBOX.home), read_only=False),
        *sorted(spec.extra_mounts, key=lambda mount: mount.target),
    )


def check(spec: SandboxSpec) -> None:
    """Raises SandboxRefused unless names, variables and every mount are what a sandbox may have."""
    if not is_row_id(spec.session_id) or len(spec.session_id) > MAX_SESSION_ID:
        raise SandboxRefused(f"{spec.session_id!r} is no session id; no sandbox can be named after it.")
    for name, value in spec.environment.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise SandboxRefused(f"{name!r} cannot be a variable of a sandbox. Its name takes letters, digits and _.")
    if spec.home != spec.agent / "home":
        raise SandboxRefused(f"{spec.home} is not the folder home in {spec.agent}.")
    for mount in spec.extra_mounts:
        target = PurePosixPath(mount.target)
        if EXTRA not in target.parents or ".." in target.parts or str(target) != mount.target or "\0" in mount.target:
            raise SandboxRefused(f"{mount.source} cannot be mounted at {mount.target!r}. Take one below {EXTRA}/.")
    for mount in mounts_of(spec):
        _check_source(mount.source)


def _check_source(source: Path) -> None:
    if not source.is_absolute() or ".." in source.parts:
        raise SandboxRefused(f"The folder {source} cannot be mounted: its path is not absolute and plain.")
    try:
        handle = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOTDIR, errno.ELOOP}:
            reason = "it is a link or a file, and only a real folder may be"
        else:
            reason = error.strerror or "it cannot be opened"
        raise SandboxRefused(f"The folder {source} cannot be mounted: {reason}.") from None
    os.close(handle)


def digest(options: object) -> str:
    """A short digest of options: 16 hexadecimal characters, equal for equal options."""
    text = json.dumps(options, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def log_path(logs_folder: Path, session_id: str, now: datetime) -> Path:
    """Where the output of a session's sandbox that starts or ends now is kept; its folder is made."""
    folder = logs_folder / session_id
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A sandbox that ends and is started again, time after time, must not fill the disk with its last words.
    for old in sorted(folder.iterdir())[: -LOGS_KEPT + 1]:
        old.unlink(missing_ok=True)
    return folder / f"{to_text(now).replace(':', '')}.log"


def write_log(path: Path, output: bytes) -> None:
    """Adds the end of some output to a log that only we can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "ab") as file:
        file.write(output[-LOG_BYTES:])


def last_words(output: bytes) -> str:
    """The last line of a sandbox's output, printable and cut: why a runner said that it cannot work.

    They are marked as what they are: a sandbox can say anything, and these words are shown as the host's."""
    lines = output[-LOG_BYTES:].decode(errors="replace").strip().splitlines()
    return f"The sandbox says: {printable(lines[-1])[:_WORDS]}" if lines else ""
