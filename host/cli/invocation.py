"""What every command is given: the home, how to speak, how far it may go."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from host.cli.hints import with_home
from host.cli.output import Output
from host.control_client import ControlClient
from host.failure import Code, Failure
from host.home import Home, HomeRefused, find_home

DONE_BUT_LOOK = 3
"""The exit code of a command that is done and has something to show: warnings, or changes that --dry-run found."""


class Planned(Exception):
    """--dry-run: this is what would have been changed."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options that stand before a command."""

    home_option: str | None
    output: Output
    yes: bool
    dry_run: bool
    debug: bool
    environment: Mapping[str, str]

    @property
    def home(self) -> Home:
        """The home, checked. Raises Failure when it may not be trusted."""
        home = find_home(self.home_option, self.environment)
        try:
            home.check()
        except HomeRefused as refused:
            raise Failure(Code.REFUSED, str(refused)) from None
        return home

    def host(self, *, timeout: float = 10.0) -> ControlClient:
        """The running host. Raises HostAbsent."""
        return ControlClient(self.home.control_socket, timeout=timeout)

    def change(self, what: str) -> None:
        """Called before a decision is changed. Raises Planned under --dry-run, Failure without a terminal and without
        -y."""
        if self.dry_run:
            raise Planned(what)
        if not self.yes and not sys.stdin.isatty():
            raise Failure(Code.REFUSED, f"{what}: a change without a terminal needs -y.", "Add -y when you mean it.")


def from_options(home: str | None, options: frozenset[str]) -> Invocation:
    """From the options of `host` itself, by their long names. Built once, by the program's entry."""
    if home is not None:
        with_home(home)
    output = Output("--json" in options, "--quiet" in options)
    return Invocation(home, output, "--yes" in options, "--dry-run" in options, "--debug" in options, os.environ)
