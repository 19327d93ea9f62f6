"""`host setup`."""

import sys

import click

from host.cli.invocation import Invocation


@click.command("setup")
@click.option("--chat-follows", is_flag=True, hidden=True, help="./up goes on with the chat: name no next step.")
@click.pass_obj
def command(invocation: Invocation, *, chat_follows: bool = False) -> int:
    """Ask what is missing (model key, time zone), prove it, and look at what this machine can do. Can be run again.

    Without a terminal it changes nothing and says what is missing.
    """
    from host.cli.setting_up import set_up

    ask = sys.stdin.isatty() and not invocation.dry_run and not invocation.output.as_json
    return set_up(invocation, ask=ask, chat_follows=chat_follows)
