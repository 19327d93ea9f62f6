"""The workspace tools: a shell, files, the time (ledger R202). Their docstrings are what the model reads."""

import asyncio
import contextlib
import os
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from agent_runner.tools import files, paths, shell
from agent_runner.tools.registry import ToolContext, ToolError, tool

DEFAULT_TIMEOUT = 30
MAX_TIMEOUT = 300


@tool()
async def bash(
    context: ToolContext,
    command: Annotated[str, "The command line."],
    timeout: Annotated[int, "Seconds after which it is stopped, at most 300."] = DEFAULT_TIMEOUT,
) -> str:
    """Runs a shell command in the working folder. Nothing can be typed into it, and whatever it leaves running in the
    background is stopped when it ends."""
    if not 1 <= timeout <= MAX_TIMEOUT:
        raise ToolError(f"timeout must be between 1 and {MAX_TIMEOUT} seconds")
    if part := shell.refused(command):
        raise ToolError(f"commands with '{part}' are refused")
    if "\0" in command:
        raise ToolError("a command holds no NUL character")
    outcome = await shell.run(command, context.working_folder, timeout)
    return outcome.text(timeout)


@tool()
async def read_file(
    context: ToolContext,
    path: Annotated[str, "The file, absolute or relative to the working folder."],
    offset: Annotated[int, "The first line to read; 1 is the file's first."] = 1,
    limit: Annotated[int, "How many lines to read; 0 reads to the end."] = 0,
) -> str:
    """Reads a text file, or some lines of it."""
    return await asyncio.to_thread(lambda: files.read_lines(paths.to_read(context, path), offset, limit))


@tool()
async def write_file(
    context: ToolContext,
    path: Annotated[str, "The file, absolute or relative to the working folder."],
    content: Annotated[str, "The whole new content."],
) -> str:
    """Writes a file, replacing what it held; folders on the way are made."""
    await asyncio.to_thread(lambda: files.store(paths.to_write(context, path), content))
    return f"Wrote {len(content)} characters to {path}."


@tool()
async def edit_file(
    context: ToolContext,
    path: Annotated[str, "The file, absolute or relative to the working folder."],
    old_string: Annotated[str, "The text to replace; it must occur exactly once."],
    new_string: Annotated[str, "The text that takes its place."],
) -> str:
    """Replaces one piece of text in a file."""
    await asyncio.to_thread(lambda: files.replace_once(paths.to_write(context, path), old_string, new_string))
    return f"Edited {path}."


@tool()
async def list_directory(
    context: ToolContext,
    path: Annotated[str, "The folder, absolute or relative to the working folder."] = ".",
) -> str:
    """Lists a folder."""
    return await asyncio.to_thread(lambda: files.entries(paths.to_read(context, path)))


@tool()
async def get_current_time(_context: ToolContext) -> str:
    """Tells the time in UTC and in the time zone of the people here."""
    now = datetime.now(UTC)
    lines = [f"{now:%Y-%m-%dT%H:%M:%SZ} (UTC)"]
    name = os.environ.get("TZ", "")
    if name and name != "UTC":
        # A TZ that is no IANA name says nothing that UTC does not.
        with contextlib.suppress(ZoneInfoNotFoundError, ValueError):
            lines.append(f"{now.astimezone(ZoneInfo(name)):%Y-%m-%dT%H:%M:%S%z, %A} ({name})")
    return "\n".join(lines)
