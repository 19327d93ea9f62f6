"""`host`, also called `innkeeper`: finds the command, runs it, and turns its end into an exit code."""

import importlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click

from host.cli.hints import hint, with_home
from host.cli.invocation import DONE_BUT_LOOK, Planned, from_options
from host.cli.output import paint
from host.failure import EXIT_CODES, Code, Failure
from host.text import printable


class Entry(NamedTuple):
    """A command of the help, known without importing it."""

    section: str
    summary: str


COMMANDS = {
    "setup": Entry("START", "asks what is missing (key, sandbox, time zone), proves each; can be run again"),
    "chat": Entry("START", "talk here; attaches to the running host, or runs one for as long as you talk"),
    "up": Entry("START", "run the host in front"),
    "down": Entry("START", "stop it; running turns finish first"),
    "restart": Entry("START", "stop it and begin again; running turns finish first"),
    "status": Entry("LOOK", "what goes on, and what is wrong"),
    "logs": Entry("LOOK", "what the host did (-f follows)"),
    "agents": Entry("THINGS", "list show add"),
    "sessions": Entry("THINGS", "list show"),
    "messages": Entry("THINGS", "list show retry (list --undelivered)"),
    "config": Entry("KEEP", "list get set unset: each value with where it comes from"),
    "build": Entry("KEEP", "build the sandbox image"),
    "version": Entry("KEEP", "which version this is"),
    "help": Entry("KEEP", "this page; --json prints the whole tree"),
}

_GLOBAL_FLAGS = frozenset({"--json", "-q", "--quiet", "-y", "--yes", "--dry-run", "--debug"})


class Commands(click.Group):
    """Loads host/cli/commands/<name>.py when the command is called, and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's shape
        """In the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's shape
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"host.cli.commands.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's shape
        """The commands by section, from the table above."""
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl([(name, e.summary) for name, e in COMMANDS.items() if e.section == section])


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--home", metavar="DIR", help="The home folder (else INNKEEPER_HOME, else ~/.innkeeper).")
@click.option("--json", "as_json", is_flag=True, help="One document of JSON on standard output.")
@click.option("-q", "--quiet", is_flag=True, help="Results and errors only.")
@click.option("-y", "--yes", is_flag=True, help="Yes to every question; a change without a terminal needs it.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(
    ctx: click.Context,
    *,
    home: str | None,
    as_json: bool,
    quiet: bool,
    yes: bool,
    dry_run: bool,
    debug: bool,
) -> None:
    """A fleet of chat agents, each session in a sandbox of its own.

    The options below may also stand behind the command. Without a command: the state, and in a new home on a terminal
    the setup.
    """
    if home is not None:
        with_home(home)
    ctx.obj = from_options(home=home, as_json=as_json, quiet=quiet, yes=yes, dry_run=dry_run, debug=debug)
    if ctx.invoked_subcommand is None:
        new = not ctx.obj.home.database.exists()
        name = "setup" if new and not as_json and sys.stdin.isatty() else "status"
        command = cli.get_command(ctx, name)
        assert command is not None
        ctx.exit(ctx.invoke(command) or 0)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Never returns."""
    words = _globals_first(list(sys.argv[1:] if arguments is None else arguments))
    as_json, debug = "--json" in words, "--debug" in words
    try:
        code = cli.main(words, prog_name="host", standalone_mode=False)
        sys.stdout.flush()
    except Planned as planned:
        _say_planned(str(planned), as_json=as_json)
        code = DONE_BUT_LOOK
    except Failure as failure:
        code = _say(failure, as_json=as_json)
    except click.UsageError as error:
        hint = f"{error.ctx.command_path} --help" if error.ctx else "host --help"
        code = _say(Failure(Code.USAGE, error.format_message(), f"See `{hint}`."), as_json=as_json)
    except click.ClickException as error:
        code = _say(Failure(Code.FAILED, error.format_message()), as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        code = (
            _say(Failure(Code.INTERRUPTED, "Interrupted."), as_json=as_json)
            if as_json
            else EXIT_CODES[Code.INTERRUPTED]
        )
    except BrokenPipeError:
        # Whoever read us has seen enough (`host logs | head`); the interpreter must not flush into the closed pipe at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception as error:  # the outermost edge: no traceback reaches a terminal without --debug
        if debug:
            raise
        sentence = f"This went wrong inside the command: {type(error).__name__}: {error}"
        code = _say(Failure(Code.FAILED, sentence, "Run it again with --debug for the details."), as_json=as_json)
    sys.exit(code if isinstance(code, int) else 0)


def _globals_first(words: list[str]) -> list[str]:
    """Moves the options of `host` itself to the front, so that `host status --json` works as well; "--" ends the
    search."""
    front: list[str] = []
    rest: list[str] = []
    queue = iter(words)
    for word in queue:
        if word == "--":
            rest += [word, *queue]
        elif word in _GLOBAL_FLAGS or word.startswith("--home="):
            front.append(word)
        elif word == "--home":
            front += [word, *(value for value in (next(queue, None),) if value is not None)]
        else:
            rest.append(word)
    return front + rest


def _say(failure: Failure, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": failure.to_json()}), file=sys.stderr)
    else:
        text = printable(hint(f"{failure.message} {failure.next}".rstrip()), newlines=True)
        print(paint(text, "\033[31m", sys.stderr), file=sys.stderr)
    return EXIT_CODES[failure.code]


def _say_planned(what: str, *, as_json: bool) -> None:
    print(json.dumps({"planned": [what]}) if as_json else printable(f"Would do: {what}."))


if __name__ == "__main__":
    main()
