"""`host prune`."""

from typing import Any

import click

from host.cli.invocation import DONE_BUT_LOOK, Invocation

_LONGEST_SECONDS = 600.0


@click.command("prune")
@click.pass_obj
def command(invocation: Invocation) -> int:
    """Remove files that came or went with messages over 30 days ago; the messages themselves stay.

    The host does it by itself every day. Files of a message that still waits, or whose answer is not delivered, stay.
    """
    if not invocation.dry_run:
        invocation.change("Remove the files of messages that are over 30 days old")
    with invocation.host(timeout=_LONGEST_SECONDS) as client:
        found: Any = client.call("prune", dry_run=invocation.dry_run)
    files, done = int(found["files"]), "would be" if invocation.dry_run else "are"
    if invocation.output.as_json:
        invocation.output.document(found)
    elif files:
        megabytes = int(found["bytes"]) / 1_000_000
        invocation.output.line(
            f"{files} old files ({megabytes:.1f} MB) of {len(found['sessions'])} sessions {done} removed."
        )
    else:
        invocation.output.line(f"No file is over {found['kept_days']} days old and no longer needed.")
    return DONE_BUT_LOOK if invocation.dry_run and files else 0
