"""`host chats`."""

import click

from host.cli.finding import find
from host.cli.invocation import Invocation
from host.cli.looking import rows
from host.cli.output import Column, day_and_time


def _names(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else ""


COLUMNS = (
    Column("id", "ID"),
    Column("name", "NAME"),
    Column("channel_type", "PLATFORM"),
    Column("platform_id", "CHAT"),
    Column("agents", "ANSWERED BY", _names),
    Column("busy", "WHILE BUSY"),
)
CARD = (*COLUMNS, Column("account_id", "CHANNEL"), Column("created_at", "CREATED", day_and_time))


@click.group("chats", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The chats and who answers there. Without a verb: list."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_chats)


@command.command("list")
@click.pass_obj
def list_chats(invocation: Invocation) -> None:
    """The chats, the newest first."""
    invocation.output.table(COLUMNS, rows(invocation, "chats.list"), "There is no chat yet.")


@command.command("show")
@click.argument("chat")
@click.pass_obj
def show(invocation: Invocation, chat: str) -> None:
    """One chat (its name, its id or the beginning of it, or `last`)."""
    invocation.output.card(CARD, find(rows(invocation, "chats.list"), chat, "chat"))


@command.command("set")
@click.argument("chat")
@click.option(
    "--busy",
    type=click.Choice(["steer", "queue"]),
    required=True,
    help="A message that comes while the agent works: steer = into the running turn, queue = a turn of its own.",
)
@click.pass_obj
def set_chat(invocation: Invocation, chat: str, busy: str) -> None:
    """Decide what a message does that comes while the agent works."""
    one = find(rows(invocation, "chats.list"), chat, "chat")
    invocation.change(f"Set busy to {busy} in {one['name'] or one['platform_id']}")
    with invocation.host() as client:
        made = client.call("chats.set", id=one["id"], busy=busy)
    if invocation.output.as_json:
        invocation.output.document(made)
        return
    what = "goes into the running turn" if busy == "steer" else "waits for a turn of its own"
    invocation.output.line(f"A message that comes there while the agent works {what}.")
