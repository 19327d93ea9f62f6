"""Where things lie in a session's folder and inside its sandbox."""

from dataclasses import dataclass
from pathlib import Path

INBOUND_DB = "inbound.db"
OUTBOUND_DB = "outbound.db"
OUTBOUND_LOCK = ".lock"
FILES = "files"
BELL_SOCKET = "bell.sock"
BROKER_SOCKET = "broker.sock"

MAX_SOCKET_PATH = 107
"""Bytes of a Unix socket path (sockaddr_un holds 108 with the closing NUL)."""

MAX_SESSION_ID = 16


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folders of one session as the runner sees them; `SANDBOX` is how every sandbox mounts them."""

    inbound: Path
    outbound: Path
    state: Path
    run: Path
    agent: Path

    @property
    def home(self) -> Path:
        """The agent's own folder: the tools' working folder."""
        return self.agent / "home"

    @classmethod
    def below(cls, root: Path) -> "Workspace":
        """The five folders below one root."""
        return cls(root / "inbound", root / "outbound", root / "state", root / "run", root / "agent")


SANDBOX = Workspace.below(Path("/workspace"))
