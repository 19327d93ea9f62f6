"""Where the file tools may read and write, decided on resolved paths.

This is a seat belt for a model that errs, not the boundary: `bash` can do what the sandbox lets it do, and the sandbox
is what holds (fault 128).
"""

import os
from pathlib import Path

from agent_runner.tools.registry import ToolContext, ToolError
from mailboxes.layout import FILES


def readable_roots(context: ToolContext) -> tuple[Path, ...]:
    """The working folder, the agent's own folder and the files that people sent."""
    return (context.working_folder, context.workspace.agent, context.workspace.inbound / FILES)


def to_read(context: ToolContext, path: str) -> Path:
    """The real path behind `path` (relative to the working folder). Raises ToolError outside of the readable roots."""
    return _within(context, path, readable_roots(context), "read")


def to_write(context: ToolContext, path: str) -> Path:
    """The real path behind `path`. Raises ToolError outside of the working folder."""
    return _within(context, path, (context.working_folder,), "write")


def _within(context: ToolContext, path: str, roots: tuple[Path, ...], verb: str) -> Path:
    if "\0" in path:
        raise ToolError("a path holds no NUL character")
    # realpath, not a comparison of text: /ws-evil is no child of /ws, and a link is where it points to (ledger R203).
    real = Path(os.path.realpath(context.working_folder / path))
    if not any(real.is_relative_to(os.path.realpath(root)) for root in roots):
        allowed = ", ".join(str(root) for root in roots)
        raise ToolError(f"{path} lies outside of what these tools may {verb}: {allowed}")
    return real
