"""The tree of commands that have arguments of their own, and how one of them is run."""

import importlib
import json
from collections.abc import Sequence

import click

from host.cli import main
from host.cli.invocation import DONE_BUT_LOOK, Invocation, Planned
from host.failure import Code, Failure
from host.text import printable


class Commands(click.Group):
    """Loads host/cli/commands/<name>.py when the command is called, and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's shape
        """In the order of the help."""
        return list(main.COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's shape
        """The command, imported now."""
        if cmd_name not in main.COMMANDS:
            return None
        command = importlib.import_module(f"host.cli.commands.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002  click's shape
        """The page that `host --help` shows."""
        return main.page()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """A fleet of chat agents, each session in a sandbox of its own."""


def run(words: Sequence[str], invocation: Invocation) -> int:
    """Runs a command; its exit code. Raises Failure, KeyboardInterrupt."""
    as_json = invocation.output.as_json
    try:
        code = cli.main(list(words), prog_name="host", standalone_mode=False, obj=invocation)
    except Planned as planned:
        print(json.dumps({"planned": [str(planned)]}) if as_json else printable(f"Would do: {planned}."))
        return DONE_BUT_LOOK
    except click.UsageError as error:
        page = f"{error.ctx.command_path} --help" if error.ctx else "host --help"
        raise Failure(Code.USAGE, error.format_message(), f"See `{page}`.") from None
    except click.ClickException as error:
        raise Failure(Code.FAILED, error.format_message()) from None
    except click.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0
