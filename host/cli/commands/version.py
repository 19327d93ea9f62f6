"""`host version`."""

import platform

import click

from host import __version__
from host.cli.invocation import Invocation


@click.command("version")
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Which version this is, and which one runs."""
    from host.control_client import ControlClient
    from host.failure import Failure

    running = None
    try:
        with ControlClient(invocation.home.control_socket, timeout=2.0) as client:
            status = client.call("status")
            running = status.get("host", {}).get("version") if isinstance(status, dict) else None
    except Failure:
        pass  # no host, or none that answers: this program's version is still known
    facts = {"version": __version__, "running": running, "python": platform.python_version()}
    if invocation.output.as_json:
        invocation.output.document(facts)
        return
    invocation.output.line(f"Innkeeper {facts['version']} (Python {facts['python']})")
    if running not in {None, facts["version"]}:
        invocation.output.yellow(f"The running host is {running}. Run `host restart` to run this version.")
