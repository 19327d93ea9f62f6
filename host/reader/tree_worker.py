"""Measures or removes a tree that a sandbox wrote; run as ``python -I tree_worker.py TASK PATH SECONDS``.

The tree may be as deep and as wide as a hostile process could make it: nothing here recurses, no link is followed, and
the number of open handles is bounded. Standard library only.
"""

import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 100
"""Measuring holds one handle for each level."""


class DeadlinePassed(Exception):
    """The time is up; what was done stays done."""


class Tree:
    """One task on one tree: `parent` is the handle of the folder that holds it, `name` what it is called there."""

    def __init__(self, parent: int, name: str, seconds: float) -> None:
        self._parent = parent
        self._name = name
        self._ends = time.monotonic() + seconds

    def _in_time(self) -> bool:
        return time.monotonic() < self._ends

    def measure(self) -> dict[str, object]:
        """Bytes on the disk and the number of entries."""
        try:
            status = os.lstat(self._name, dir_fd=self._parent)
        except FileNotFoundError:
            return {"bytes": 0, "entries": 0, "complete": True}
        size, entries, complete = status.st_blocks * 512, 1, True
        levels = [self._open(self._parent, self._name)] if stat.S_ISDIR(status.st_mode) else []
        while levels:
            handle, listing = levels[-1]
            entry = next(listing, None) if self._in_time() else None
            if entry is None:
                complete = complete and self._in_time()
                os.close(handle)
                levels.pop()
                continue
            entries += 1
            try:
                status = os.lstat(entry.name, dir_fd=handle)
                size += status.st_blocks * 512
                if stat.S_ISDIR(status.st_mode):
                    if len(levels) < _MAX_DEPTH:
                        levels.append(self._open(handle, entry.name))
                    else:
                        complete = False
            except (FileNotFoundError, NotADirectoryError, PermissionError):  # removed, swapped or locked by its owner
                complete = False
        return {"bytes": size, "entries": entries, "complete": complete}

    def _open(self, parent: int, name: str) -> tuple[int, Iterator[os.DirEntry[str]]]:
        handle = os.open(name, _FOLDER, dir_fd=parent)
        return handle, iter(os.scandir(handle))

    def remove(self) -> None:
        """Removes everything, at any depth: a folder in a child of the root moves up to the root and waits there."""
        try:
            if not stat.S_ISDIR(os.lstat(self._name, dir_fd=self._parent).st_mode):
                os.unlink(self._name, dir_fd=self._parent)
                return
        except FileNotFoundError:
            return
        root = self._open_to_empty(self._parent, self._name)
        moved = 0
        while folders := self._unlink_files(root):
            for name in folders:
                child = self._open_to_empty(root, name)
                while inner := self._unlink_files(child):
                    for inner_name in inner:
                        os.close(self._open_to_empty(child, inner_name))
                        moved = self._move_up(child, inner_name, root, moved)
                os.close(child)
                os.rmdir(name, dir_fd=root)
        os.close(root)
        os.rmdir(self._name, dir_fd=self._parent)

    def _open_to_empty(self, parent: int, name: str) -> int:
        """A handle of a folder, after giving ourselves the rights that its maker may have taken away."""
        path_only = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{path_only}", 0o700)
        finally:
            os.close(path_only)
        return os.open(name, _FOLDER, dir_fd=parent)

    def _unlink_files(self, folder: int) -> list[str]:
        """Unlinks all that is no folder; returns the names of (at most 1,000) folders."""
        folders: list[str] = []
        with os.scandir(folder) as listing:
            for entry in listing:
                if not self._in_time():
                    raise DeadlinePassed
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                elif len(folders) < 1000:  # a bound on memory, no more
                    folders.append(entry.name)
        return folders

    def _move_up(self, child: int, name: str, root: int, moved: int) -> int:
        """Moves a folder into the root under a name that is free there. The counter goes on, so this stays linear."""
        while True:
            moved += 1
            try:
                os.rename(name, f"moved-{moved}", src_dir_fd=child, dst_dir_fd=root)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            else:
                return moved


def main(task: str, path: str, seconds: str) -> int:
    """The exit code: 0 done, 1 not (the reason is on stderr)."""
    folder, name = os.path.split(os.path.abspath(path))  # resolving would follow the very link at the end
    parent = os.open(folder, _FOLDER)
    tree = Tree(parent, name, float(seconds))
    try:
        if task == "measure":
            sys.stdout.write(json.dumps(tree.measure()))
        else:
            tree.remove()
    except DeadlinePassed:
        sys.stderr.write(f"not done in {seconds} s")
        return 1
    except OSError as error:
        sys.stderr.write(f"{error.strerror}: {error.filename!r}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
