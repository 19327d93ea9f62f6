"""`host restart`."""

import click

from host.cli.invocation import Invocation


@click.command("restart")
@click.option("--wait/--no-wait", default=True, help="Return when it is back (the default), or at once.")
@click.option("--timeout", default=120.0, show_default=True, help="How many seconds to wait.")
@click.pass_obj
def command(invocation: Invocation, *, wait: bool, timeout: float) -> None:
    """Stop the host and begin again with the code that is installed now; running turns finish first."""
    from host.cli.stopping import began, wait_until_back

    home = invocation.home
    with invocation.host() as client:
        before = began(client)
        client.call("stop", restart=True)
    if wait:
        with invocation.output.progress("Restarting the host"):
            wait_until_back(home.control_socket, before, timeout)
    if invocation.output.as_json:
        invocation.output.document({"restarted": wait})
    else:
        invocation.output.note("The host is back." if wait else "The host is restarting.")
