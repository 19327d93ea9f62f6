"""`host down`."""

import click

from host.cli.invocation import Invocation


@click.command("down")
@click.option("--wait/--no-wait", default=True, help="Return when it has stopped (the default), or at once.")
@click.option("--timeout", default=120.0, show_default=True, help="How many seconds to wait.")
@click.pass_obj
def command(invocation: Invocation, *, wait: bool, timeout: float) -> None:
    """Stop the host; running turns finish first, what is waiting stays for the next start."""
    from host.cli.stopping import wait_until_gone

    home = invocation.home
    with invocation.host() as client:
        client.call("stop", restart=False)
    if wait:
        with invocation.output.progress("Stopping the host"):
            wait_until_gone(home, timeout)
    if invocation.output.as_json:
        invocation.output.document({"stopped": wait})
    else:
        invocation.output.note("The host has stopped." if wait else "The host is stopping.")
