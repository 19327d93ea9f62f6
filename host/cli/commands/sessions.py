"""`host sessions`."""

import click

from host.cli.finding import find
from host.cli.invocation import Invocation
from host.cli.looking import ask, rows
from host.cli.output import Column, day_and_time

COLUMNS = (
    Column("id", "ID"),
    Column("agent", "AGENT"),
    Column("channel_type", "PLATFORM"),
    Column("platform_id", "CHAT"),
    Column("container_status", "SANDBOX"),
    Column("last_active", "LAST ACTIVE", day_and_time),
)
CARD = (
    *COLUMNS,
    Column("chat", "CHAT NAME"),
    Column("thread_id", "THREAD"),
    Column("provider", "PROVIDER", lambda value: str(value or "(default)")),
    Column("status", "STATE"),
    Column("created_at", "CREATED", day_and_time),
)


@click.group("sessions", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The sessions: one agent's work in one chat. Without a verb: list."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_sessions)


@command.command("list")
@click.option("--closed", is_flag=True, help="Those that are over as well.")
@click.pass_obj
def list_sessions(invocation: Invocation, *, closed: bool = False) -> None:
    """The sessions, the last active first."""
    found = rows(invocation, "sessions.list", closed=closed)
    invocation.output.table(COLUMNS, found, "There is no session yet. One begins with the first message: host chat")


@command.command("show")
@click.argument("session")
@click.pass_obj
def show(invocation: Invocation, session: str) -> None:
    """One session (its id or the beginning of it, or `last`)."""
    found = find(rows(invocation, "sessions.list", closed=True), session, "session")
    shown = ask(invocation, "sessions.show", id=found["id"])
    invocation.output.card(CARD, shown if isinstance(shown, dict) else found)
