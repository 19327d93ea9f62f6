"""The home folder: where everything of one installation lies, and whether it may be trusted."""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mailboxes.layout import BROKER_SOCKET, MAX_SOCKET_PATH


class HomeRefused(Exception):
    """This home cannot be used; the text names it, the reason and the next step."""


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one installation; nothing here touches the disk but `prepare` and `check`.

    `runtime` is a short folder for sockets (a Unix socket path holds 107 bytes), derived from the home's own path.
    """

    root: Path
    runtime: Path

    @property
    def env_file(self) -> Path:
        """Secrets and nothing else; 0600."""
        return self.root / ".env"

    @property
    def database(self) -> Path:
        """The central database where no INNKEEPER_DATABASE_URL is set."""
        return self.root / "host.db"

    @property
    def groups(self) -> Path:
        """One folder per agent."""
        return self.root / "groups"

    @property
    def sessions(self) -> Path:
        """sessions/<agent_group_id>/<session_id>/."""
        return self.root / "sessions"

    @property
    def logs(self) -> Path:
        """host.log and one log per ended sandbox."""
        return self.root / "logs"

    @property
    def backups(self) -> Path:
        """Copies of the database from before a migration."""
        return self.root / "backups"

    @property
    def lock_file(self) -> Path:
        """Held by the one host of this home for as long as it lives."""
        return self.root / "host.lock"

    @property
    def control_socket(self) -> Path:
        """Where commands reach the running host."""
        return self.runtime / "control.sock"

    def session_folder(self, agent_group_id: str, session_id: str) -> Path:
        """A session's folder."""
        return self.sessions / agent_group_id / session_id

    def run_folder(self, session_id: str) -> Path:
        """The host-made folder of a session's sockets."""
        return self.runtime / hashlib.sha256(session_id.encode()).hexdigest()[:8]

    def check(self) -> None:
        """Raises HomeRefused unless home and runtime folder are ours alone (or not there yet)."""
        for folder, setting in ((self.root, "--home"), (self.runtime, "XDG_RUNTIME_DIR")):
            try:
                status = folder.lstat()
            except FileNotFoundError:
                continue
            if not stat.S_ISDIR(status.st_mode):
                raise HomeRefused(f"{folder} is not a folder. Choose another with {setting}.")
            if status.st_uid != os.geteuid():
                raise HomeRefused(
                    f"{folder} belongs to another user (uid {status.st_uid}). Choose one of yours with {setting}."
                )
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise HomeRefused(f"Others can write {folder}. Run: chmod go-w '{folder}'")
            _refuse_foreign_parents(folder, setting)
        for folder in (self.groups, self.sessions, self.logs, self.backups):
            if folder.is_symlink():
                raise HomeRefused(
                    f"{folder} is a link. Put the folder itself there, or move the whole home with --home."
                )
        deepest = len(os.fsencode(self.run_folder("s"))) + 1 + len(BROKER_SOCKET)
        if deepest > MAX_SOCKET_PATH:
            raise HomeRefused(
                f"The folder {self.runtime} is too long for a socket. Set XDG_RUNTIME_DIR to a shorter one."
            )

    def prepare(self) -> None:
        """Checks, then makes what is missing, readable by us alone."""
        self.check()
        self.runtime.parent.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.runtime, self.groups, self.sessions, self.logs, self.backups):
            folder.mkdir(mode=0o700, exist_ok=True)
        self.root.chmod(0o700)
        self.check()


def _refuse_foreign_parents(folder: Path, setting: str) -> None:
    """Whoever may rename in a folder above ours can put another in its place at any time after it was looked at.

    A group of people may share the folders above (many systems give each user a group of their own); strangers may not,
    but where the sticky bit keeps them from each other's.
    """
    for parent in folder.resolve().parents:
        status = parent.stat()
        if status.st_uid not in {0, os.geteuid()}:
            raise HomeRefused(
                f"{parent}, above {folder}, belongs to another user (uid {status.st_uid}), who could exchange it. "
                f"Choose another with {setting}."
            )
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise HomeRefused(f"Everybody can write {parent}, above {folder}. Choose another with {setting}.")


def find_home(chosen: str | None, environment: Mapping[str, str]) -> Home:
    """--home > INNKEEPER_HOME > ~/.innkeeper; never the current folder."""
    text = chosen or environment.get("INNKEEPER_HOME") or "~/.innkeeper"
    root = Path(text).expanduser().absolute()
    return Home(root, _runtime_folder(root, environment))


def _runtime_folder(root: Path, environment: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:8]
    user = os.geteuid()
    if chosen := environment.get("XDG_RUNTIME_DIR"):
        return Path(chosen) / f"innkeeper-{digest}"
    if user == 0:
        return Path("/run/innkeeper") / digest
    return Path("/tmp") / f"innkeeper-{user}-{digest}"  # noqa: S108  checked by `check`: ours, and nobody else may write
