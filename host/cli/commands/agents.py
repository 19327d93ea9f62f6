"""`host agents`."""

import re

import click

from host.cli.finding import Row, find
from host.cli.hints import hint
from host.cli.invocation import Invocation
from host.cli.looking import ask, rows
from host.cli.output import Column, day_and_time
from host.failure import Code, Failure

COLUMNS = (
    Column("name", "NAME"),
    Column("folder", "FOLDER"),
    Column("provider", "PROVIDER", lambda value: str(value or "(default)")),
    Column("model", "MODEL", lambda value: str(value or "(default)")),
    Column("chats", "CHATS"),
    Column("sessions", "SESSIONS"),
    Column("last_active", "LAST ACTIVE", day_and_time),
)


def _chats(value: object) -> str:
    chats = value if isinstance(value, list) else []
    return ", ".join(f"{chat['channel_type']}:{chat['platform_id']}" for chat in chats) or "nowhere"


def _names(value: object) -> str:
    others = value if isinstance(value, list) else []
    return ", ".join(str(other["agent"]) for other in others) or "no other agent"


CARD = (
    Column("id", "ID"),
    *COLUMNS,
    Column("created_at", "CREATED", day_and_time),
    Column("answers_in", "ANSWERS IN", _chats),
    Column("writes_to", "WRITES TO", _names),
)


@click.group("agents", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The agents: who they are, where they answer. Without a verb: list."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_agents)


@command.command("list")
@click.pass_obj
def list_agents(invocation: Invocation) -> None:
    """All agents."""
    invocation.output.table(
        COLUMNS, rows(invocation, "agents.list"), "There is no agent. Add one: host agents add NAME"
    )


@command.command("show")
@click.argument("agent")
@click.pass_obj
def show(invocation: Invocation, agent: str) -> None:
    """One agent, and the chats where it answers."""
    newest_first = sorted(rows(invocation, "agents.list"), key=lambda row: str(row["created_at"]), reverse=True)
    found = find(newest_first, agent, "agent")
    shown = ask(invocation, "agents.show", id=found["id"])
    invocation.output.card(CARD, shown if isinstance(shown, dict) else found)


@command.command("add")
@click.argument("name")
@click.option("--folder", metavar="NAME", help="Its folder below groups/ (else made from the name).")
@click.pass_obj
def add(invocation: Invocation, name: str, folder: str | None) -> None:
    """A new agent, with its folder groups/<folder>/ from the template. Talk to it with `host chat --agent NAME`."""
    chosen = folder or folder_of(name)
    invocation.change(f"Add the agent {name} with the folder groups/{chosen}/")
    with invocation.host() as client:
        made = client.call("agents.add", name=name, folder=chosen)
    row: Row = made if isinstance(made, dict) else {"name": name, "folder": chosen}
    if invocation.output.as_json:
        invocation.output.document(row)
    else:
        talk = hint(f"Talk to it: host chat --agent {chosen}")
        invocation.output.line(f"{name} is there. Its words: groups/{chosen}/. {talk}")


@command.command("connect")
@click.argument("agent")
@click.argument("other")
@click.option("--name", metavar="NAME", help="What AGENT calls it (else the folder of OTHER).")
@click.pass_obj
def connect(invocation: Invocation, agent: str, other: str, name: str | None) -> None:
    """Let AGENT write to OTHER, which may answer. Without it no agent reaches another."""
    one, two = _two(invocation, agent, other)
    invocation.change(f"Let {one['name']} write to {two['name']}")
    with invocation.host() as client:
        made = client.call("agents.connect", agent=one["id"], other=two["id"], name=name or "")
    _say(invocation, made, f"{one['name']} may write to {two['name']}, which may answer.")


@command.command("disconnect")
@click.argument("agent")
@click.argument("other")
@click.pass_obj
def disconnect(invocation: Invocation, agent: str, other: str) -> None:
    """Let AGENT write to OTHER no more; it may still answer what OTHER wrote to it."""
    one, two = _two(invocation, agent, other)
    invocation.change(f"Let {one['name']} write to {two['name']} no more")
    with invocation.host() as client:
        gone = client.call("agents.disconnect", agent=one["id"], other=two["id"])
    _say(invocation, gone, f"{one['name']} may not write to {two['name']} any more.")


def _two(invocation: Invocation, agent: str, other: str) -> tuple[Row, Row]:
    newest_first = sorted(rows(invocation, "agents.list"), key=lambda row: str(row["created_at"]), reverse=True)
    return find(newest_first, agent, "agent"), find(newest_first, other, "agent")


def _say(invocation: Invocation, answer: object, sentence: str) -> None:
    if invocation.output.as_json:
        invocation.output.document(answer)
    else:
        invocation.output.line(sentence)


def folder_of(name: str) -> str:
    """A folder's name made from an agent's: small letters, digits, - and _. Raises Failure where nothing is left."""
    folder = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-_")[:64]
    if not folder:
        raise Failure(Code.USAGE, f"No folder name can be made from {name!r}.", "Name one with --folder.")
    return folder
