"""`host chat`."""

import sys

import click

from host.cli.invocation import Invocation


@click.command("chat")
@click.argument("text", required=False)
@click.option("--agent", metavar="AGENT", help="Who to talk to (else the first agent).")
@click.option("--file", "files", multiple=True, metavar="PATH", help="Send a file along (may be given again).")
@click.option("--once", is_flag=True, help="Send TEXT (or all of standard input), print what comes, end.")
@click.option(
    "--timeout", default=120.0, show_default=True, help="How many seconds one message may take with --once or a pipe."
)
@click.pass_obj
def command(
    invocation: Invocation, text: str | None, agent: str | None, files: tuple[str, ...], *, once: bool, timeout: float
) -> int:
    """Talk to an agent here.

    Attaches to the running host, or runs one for as long as you talk. With a pipe on standard input: sends a line,
    waits for the end of its turn, prints what came, then the next line. At the prompt, /file PATH sends a file; /quit
    or Ctrl-D ends.
    """
    from host.cli import attaching
    from host.cli.talking import Talk, talk

    on_terminal = sys.stdin.isatty() and not once and not invocation.output.as_json
    once = once or ((text is not None or bool(files)) and not on_terminal)
    return talk(invocation, Talk(text, agent, once, timeout, attaching.absolute(files)))
