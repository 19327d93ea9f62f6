"""`host setup`."""

import sys

import click

from host.cli.invocation import Invocation


@click.command("setup")
@click.pass_obj
def command(invocation: Invocation) -> int:
    """Ask what is missing (model key, time zone), prove it, and look at what this machine can do. Can be run again.

    Without a terminal it changes nothing and says what is missing.
    """
    from host.cli.setting_up import set_up

    return set_up(invocation, ask=sys.stdin.isatty() and not invocation.dry_run and not invocation.output.as_json)
