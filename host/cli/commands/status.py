"""`host status`."""

import click

from host.cli.invocation import Invocation
from host.cli.status import status


@click.command("status")
@click.pass_obj
def command(invocation: Invocation) -> int:
    """What goes on: local facts, at once; what is wrong comes first. Exit code 1: something is wrong; 3: have a
    look."""
    return status(invocation)
