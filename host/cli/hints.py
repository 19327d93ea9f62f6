"""Hints that work in this shell: `host` may be another program there (Debian's DNS tool), or not be on the path at
all."""

import functools
import os
import re
import sys
from pathlib import Path

PROGRAM_VARIABLE = "INNKEEPER_PROGRAM"
"""Set by `./up`, which knows how a person next to it would call us."""

_COMMANDS = "setup|chat|up|down|restart|status|logs|agents|sessions|messages|tasks|config|build|version|help"
_HINT = re.compile(rf"(?<![\w/.-])host (?=(?:{_COMMANDS})\b|--help\b)")


@functools.cache
def program() -> str:
    """How to call this program from the shell that called it."""
    if given := os.environ.get(PROGRAM_VARIABLE):
        return given
    import shlex

    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m host"
    import shutil

    for name in ("host", "innkeeper"):
        found = shutil.which(name)
        if found is not None and os.path.realpath(found) == os.path.realpath(called.with_name(name)):
            return name
    return shlex.quote(str(called))


def with_home(home: str) -> None:
    """From here on hints say which home was chosen."""
    import shlex

    os.environ[PROGRAM_VARIABLE] = f"{program()} --home {shlex.quote(home)}"
    program.cache_clear()


def hint(text: str) -> str:
    """A sentence of ours with its `host ...` commands in the form that works here. Never for text from outside."""
    return _HINT.sub(lambda _match: f"{program()} ", text)
