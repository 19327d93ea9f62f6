"""`host logs`."""

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import click

from host.cli.invocation import Invocation

_LOOK_AGAIN_SECONDS = 0.2


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("-n", "--lines", default=50, show_default=True, help="How many lines to begin with.")
@click.pass_obj
def command(invocation: Invocation, *, follow: bool, lines: int) -> None:
    """What the host did, one event a line; with --json as it was written."""
    from host.log import for_people

    path = invocation.home.logs / "host.log"
    if not path.exists() and not follow:
        invocation.output.note(f"There is no {path} yet: no host has run on this home.")
        return
    for line in _lines(path, lines, follow=follow):
        if not invocation.output.as_json:
            invocation.output.line(for_people(line), newlines=True)
        elif _is_json(line):
            print(line, flush=True)


def _lines(path: Path, count: int, *, follow: bool) -> Iterator[str]:
    """The last lines, then what comes; the file is opened anew after it was rotated."""
    first = True
    while True:
        try:
            file = path.open(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            time.sleep(_LOOK_AGAIN_SECONDS)
            continue
        with file:
            yield from (line.rstrip("\n") for line in (deque(file, count) if first else file))
            first = False
            if not follow:
                return
            yield from _growing(file.fileno(), path)


def _growing(descriptor: int, path: Path) -> Iterator[str]:
    rest = b""
    while True:
        if chunk := os.read(descriptor, 65536):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
            continue
        try:
            if path.stat().st_ino != os.fstat(descriptor).st_ino:
                return
        except FileNotFoundError:
            return
        time.sleep(_LOOK_AGAIN_SECONDS)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
