"""Files that a person sends from a terminal: by --file, or in the talk by `/file PATH words that go with it`."""

import io
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from host.failure import Code, Failure

WORD = "/file"


def absolute(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths as the host needs them; `~` is this person's home. Raises Failure where one is no file."""
    return tuple(_absolute(path) for path in paths)


def _absolute(path: str) -> str:
    whole = Path(os.path.abspath(Path(path).expanduser()))
    if not whole.is_file():
        raise Failure(Code.NOT_FOUND, f"There is no file {path}.", "Name it with its path.")
    return str(whole)


def split(line: str) -> tuple[str, tuple[str, ...]]:
    """A line's words and the file that it sends. A path with spaces stands in quotes. Raises Failure."""
    first, _, rest = line.strip().partition(" ")
    if first != WORD:
        return line, ()
    source = io.StringIO(rest)
    lexer = shlex.shlex(source, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        path = lexer.get_token()
    except ValueError:
        raise Failure(Code.USAGE, "A quotation mark is missing.", f"Write {WORD} 'a path' and what you want.") from None
    if not path:
        raise Failure(Code.USAGE, "There is no path.", f"Write {WORD} PATH and what you want.")
    return source.read().strip(), absolute([path])
