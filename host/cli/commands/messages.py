"""`host messages`."""

import click

from host.cli.finding import Row, find
from host.cli.hints import hint
from host.cli.invocation import Invocation
from host.cli.looking import rows
from host.cli.output import Column, day_and_time

COLUMNS = (
    Column("id", "ID"),
    Column("at", "AT", day_and_time),
    Column("direction", "WAY"),
    Column("agent", "AGENT", lambda value: str(value or "host")),
    Column("state", "STATE"),
    Column("text", "TEXT"),
)
CARD = (
    *COLUMNS[:-1],
    Column("session", "SESSION"),
    Column("chat", "CHAT"),
    Column("kind", "KIND"),
    Column("attempts", "ATTEMPTS"),
    Column("next_attempt_at", "NEXT ATTEMPT", lambda value: day_and_time(value) if value else ""),
    Column("last_error", "LAST ERROR"),
    Column("in_reply_to", "IN REPLY TO"),
    Column("text", "TEXT"),
)


@click.group("messages", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The messages, in and out. Without a verb: list."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_messages)


@command.command("list")
@click.option("--undelivered", is_flag=True, help="What an agent or the host said and nobody has got yet.")
@click.option("--session", metavar="SESSION", help="One session's.")
@click.option("--limit", default=50, show_default=True, help="How many, the newest first.")
@click.pass_obj
def list_messages(
    invocation: Invocation, *, undelivered: bool = False, session: str | None = None, limit: int = 50
) -> None:
    """The newest messages, or all that are undelivered."""
    chosen = find(rows(invocation, "sessions.list", closed=True), session, "session")["id"] if session else None
    found = rows(invocation, "messages.list", undelivered=undelivered, session=chosen, limit=limit)
    invocation.output.table(
        COLUMNS, found, "Every message is delivered." if undelivered else "There is no message yet."
    )


@command.command("show")
@click.argument("message")
@click.pass_obj
def show(invocation: Invocation, message: str) -> None:
    """One message (its id or the beginning of it, or `last`)."""
    invocation.output.card(CARD, _find(invocation, message))


@command.command("retry")
@click.argument("message")
@click.pass_obj
def retry(invocation: Invocation, message: str) -> None:
    """Try a failed or undelivered message again, as if for the first time."""
    found = _find(invocation, message)
    invocation.change(f"Try the message {found['id']} again")
    with invocation.host() as client:
        row = client.call("messages.retry", id=found["id"])
    if invocation.output.as_json:
        invocation.output.document(row)
    else:
        invocation.output.line(hint(f"{found['id']} is tried again. See: host messages show {found['id']}"))


def _find(invocation: Invocation, message: str) -> Row:
    beginning = "" if message == "last" else message
    return find(rows(invocation, "messages.list", id=beginning), message, "message")
