"""`python -I -m agent_runner`: reads its arguments and environment, builds the runner, runs it to SIGTERM.

It starts fast because it imports little: a provider and the tools are imported at the first turn.
"""

import argparse
import asyncio
import fcntl
import hashlib
import os
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

from agent_runner import init
from agent_runner.log import log
from agent_runner.loop import Runner, Setup
from agent_runner.mailbox import Mailbox, NoMailbox, roll_back
from agent_runner.providers.registry import UnknownProvider, find_provider
from agent_runner.running import log_error
from mailboxes.clock import SystemClock
from mailboxes.layout import OUTBOUND_LOCK, SANDBOX, Workspace
from mailboxes.limits import EXIT_CONFIGURATION, EXIT_SECOND_RUNNER

if TYPE_CHECKING:
    from agent_runner.desk import Desk
    from agent_runner.tools.registry import Toolbox

EXIT_FAULT = 70
"""The exit code of a runner that met an error it has no name for (EX_SOFTWARE)."""


MODE, RECOVER = "RUNNER_MODE", "recover"
"""With this in its environment the runner only rolls a journal back that its predecessor left: then the host can read
the file and judge the claims in it before a runner starts that would drop them."""


def main(argv: list[str] | None = None) -> int:
    """Runs one runner; returns its exit code."""
    arguments = _parser().parse_args(argv)
    os.umask(0o077)
    workspace = Workspace(arguments.inbound, arguments.outbound, arguments.state, arguments.run, arguments.agent)
    try:
        setup = _setup(workspace, os.environ, tools=not arguments.no_tools)
        lock = _lock(workspace.outbound / OUTBOUND_LOCK)
        if os.environ.get(MODE) == RECOVER:
            roll_back(workspace)
            return 0
        mailbox = Mailbox(workspace)
    except (UnknownProvider, NoMailbox) as error:
        _say(str(error))
        return EXIT_CONFIGURATION
    except BlockingIOError:
        _say(f"A runner works in {workspace.outbound} already.")
        return EXIT_SECOND_RUNNER
    try:
        asyncio.run(_run(setup, mailbox))
    except Exception as error:  # noqa: BLE001  the outermost edge: the host reads the exit code and judges the claims
        log_error("runner_failed", error)
        return EXIT_FAULT
    finally:
        os.close(lock)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agent_runner", description="Runs the agent of one session.")
    for name in ("inbound", "outbound", "state", "run", "agent"):
        parser.add_argument(f"--{name}", type=Path, default=getattr(SANDBOX, name), metavar="DIR")
    parser.add_argument("--no-tools", action="store_true", help="give the agent no tools")
    return parser


def _setup(workspace: Workspace, environment: Mapping[str, str], *, tools: bool) -> Setup:
    """All that comes from the environment. Raises UnknownProvider."""
    name = environment.get("AGENT_PROVIDER", "claude")
    load_factory = find_provider(name)

    def load_toolbox(desk: "Desk") -> "Toolbox":
        from agent_runner.tools.registry import ToolContext, build_toolbox  # slow: at the first turn

        return build_toolbox(ToolContext(working_folder=workspace.home, workspace=workspace, enabled=tools, desk=desk))

    return Setup(
        workspace=workspace,
        model=environment.get("MODEL_ID", ""),
        assistant_name=environment.get("ASSISTANT_NAME", "the assistant"),
        zone=lambda: _zone(environment.get("TZ", "")),
        load_provider=lambda: load_factory()(workspace.run),
        load_toolbox=load_toolbox,
        run_scripts=tools,
        runner_hash=_runner_hash(name),
    )


def _zone(name: str) -> tzinfo:
    if not name:
        return UTC
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        log("unknown_zone", "warning", zone=name[:64])
        return UTC


def _lock(path: Path) -> int:
    """Takes the lock that a runner holds for life.

    Raises BlockingIOError when another runner has it, NoMailbox where there is no folder to hold it.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise NoMailbox(f"There is no mailbox: {path.parent} cannot be used ({error.strerror}).") from error
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def _runner_hash(provider: str) -> str:
    """A digest of this runner's own code and its provider's name."""
    digest = hashlib.sha256(provider.encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


async def _run(setup: Setup, mailbox: Mailbox) -> None:
    runner = Runner(setup, mailbox, SystemClock())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runner.stop)
    await runner.run()


if __name__ == "__main__":
    sys.exit(init.run(main) if os.getpid() == 1 else main())
