"""The file tools' work on the disk: plain blocking functions, run in a thread by `workspace`."""

import os
import stat
from pathlib import Path

from agent_runner.tools.registry import MAX_OUTPUT, ToolError, clip

MAX_FILE_BYTES = 10 * 1024 * 1024
"""The file tools take no more of a file into memory; `bash` can look at larger ones."""

MAX_ENTRIES = 1000


def load(path: Path) -> str:
    """A regular file's text. Raises ToolError for anything else, and for one that is too large."""
    with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ToolError(f"{path} has more than {MAX_FILE_BYTES} bytes; look at a part of it with bash (head, sed)")
    return data.decode("utf-8", errors="replace")


def store(path: Path, text: str) -> None:
    """Writes a regular file, making its folders. Raises ToolError where something else stands in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW), "wb") as file:
        file.truncate()
        file.write(text.encode("utf-8", errors="surrogatepass"))


def _open(path: Path, flags: int) -> int:
    """A descriptor of a regular file. Raises ToolError where something else, or nothing, is there."""
    try:
        # O_NONBLOCK: opening a FIFO would wait for the other end, which never comes.
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        raise ToolError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise ToolError(f"{path} is a folder") from None
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    raise ToolError(f"{path} is a folder; use list_directory" if stat.S_ISDIR(mode) else f"{path} is no regular file")


def read_lines(path: Path, offset: int, limit: int) -> str:
    """`limit` lines from line `offset` (the first is 1), or all of them when limit is 0."""
    if offset < 1 or limit < 0:
        raise ToolError("offset starts at 1 and limit is not negative")
    lines = load(path).splitlines(keepends=True)
    if offset > max(len(lines), 1):
        raise ToolError(f"{path} has {len(lines)} lines; offset {offset} lies behind its end")
    end = offset - 1 + limit if limit else len(lines)
    return clip("".join(lines[offset - 1 : end])) or "[empty file]"


def replace_once(path: Path, old: str, new: str) -> None:
    """Replaces the only occurrence of `old`. Raises ToolError when there is none or more than one."""
    if not old:
        raise ToolError("old_string is empty; use write_file to make a file")
    text = load(path)
    count = text.count(old)
    if count != 1:
        hint = "give more of the text around it" if count else "read the file and copy the text exactly"
        raise ToolError(f"old_string occurs {count} times in {path}, not exactly once; {hint}")
    store(path, text.replace(old, new))


def entries(path: Path) -> str:
    """A folder's entries, one a line: folders with a slash, files with their size, links with their target."""
    try:
        found = sorted(os.scandir(path), key=lambda entry: entry.name)
    except FileNotFoundError:
        raise ToolError(f"{path} does not exist") from None
    except NotADirectoryError:
        raise ToolError(f"{path} is no folder; use read_file") from None
    lines = [_line(entry) for entry in found[:MAX_ENTRIES]]
    if len(found) > MAX_ENTRIES:
        lines.append(f"... [{len(found)} entries in total]")
    return clip("\n".join(lines), MAX_OUTPUT) or "[empty folder]"


def _line(entry: "os.DirEntry[str]") -> str:
    if entry.is_symlink():
        return f"{entry.name} -> {os.readlink(entry.path)}"
    if entry.is_dir(follow_symlinks=False):
        return f"{entry.name}/"
    return f"{entry.name}  {entry.stat(follow_symlinks=False).st_size} bytes"
