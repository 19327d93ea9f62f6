"""`host build`."""

import click

from host.cli.invocation import Invocation

_LONGEST_STEP = 1800.0
"""Seconds without a word from the engine: pulling a base image over a slow line."""


@click.command("build")
@click.pass_obj
def command(invocation: Invocation) -> None:
    """Build the image of today's code in the running host; sessions move over when they are next idle."""
    invocation.home.check()
    with invocation.host(timeout=_LONGEST_STEP) as client:
        steps = client.stream("build")
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                result = end.value
                break
            invocation.output.note(str(step))
    if invocation.output.as_json:
        invocation.output.document(result)
    elif isinstance(result, dict):
        done = "is built" if result.get("built") else "was there already"
        invocation.output.line(f"The image {result.get('tag')} {done}.")
