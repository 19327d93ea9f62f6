"""`host up`: the host in front, until Ctrl-C."""

import click

from host.cli.invocation import Invocation


@click.command("up")
@click.pass_obj
def command(invocation: Invocation) -> int:
    """Run the host here, until Ctrl-C or `host down`. Running turns finish first."""
    from host.cli.serving import serve

    home = invocation.home

    def ready() -> None:
        invocation.output.note(
            f"The host runs on {home.root}. Talk to it with `host chat` in another terminal; Ctrl-C stops it."
        )

    return serve(home, ready)
