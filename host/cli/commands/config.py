"""`host config`."""

import click

from host.cli.finding import Row, find
from host.cli.invocation import Invocation
from host.cli.looking import rows
from host.cli.output import Column

COLUMNS = (
    Column("name", "NAME"),
    Column("value", "VALUE", lambda value: str(value) or '""'),
    Column("source", "FROM"),
)


@click.group("config", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The settings, each with where its value comes from: variable > database > default. Without a verb: list."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_settings)


@command.command("list")
@click.pass_obj
def list_settings(invocation: Invocation) -> None:
    """Every setting."""
    invocation.output.table(COLUMNS, rows(invocation, "settings.list"), "There is no setting.")


@command.command("get")
@click.argument("name")
@click.pass_obj
def get(invocation: Invocation, name: str) -> None:
    """One setting's value."""
    row = _find(invocation, name)
    if invocation.output.as_json:
        invocation.output.document(row)
    else:
        invocation.output.line(str(row["value"]))


@command.command("set")
@click.argument("name")
@click.argument("value")
@click.pass_obj
def set_value(invocation: Invocation, name: str, value: str) -> None:
    """Store a value; it holds at once for what starts from now on."""
    _store(invocation, name, value, f"Set {name} to {value}")


@command.command("unset")
@click.argument("name")
@click.pass_obj
def unset(invocation: Invocation, name: str) -> None:
    """Go back to the default."""
    _store(invocation, name, None, f"Take {name} back to its default")


def _find(invocation: Invocation, name: str) -> Row:
    return find(rows(invocation, "settings.list"), name, "setting")


def _store(invocation: Invocation, name: str, value: str | None, what: str) -> None:
    _find(invocation, name)
    invocation.change(what)
    with invocation.host() as client:
        client.call("settings.set", name=name, value=value)
    row = _find(invocation, name)
    if invocation.output.as_json:
        invocation.output.document(row)
    else:
        invocation.output.line(f"{name} is {row['value'] or 'empty'} (from {row['source']}).")
