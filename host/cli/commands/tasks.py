"""`host tasks`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from host.cli.finding import Row, find, rows_of
from host.cli.hints import hint
from host.cli.invocation import DONE_BUT_LOOK, Invocation
from host.cli.looking import rows
from host.cli.output import Column, day_and_time, plain
from host.failure import Code, Failure


def _time(value: object) -> str:
    return day_and_time(value) if value else ""


def _yes(value: object) -> str:
    return "yes" if value else "no"


COLUMNS = (
    Column("id", "ID"),
    Column("name", "NAME", plain, 28),
    Column("agent", "AGENT", plain, 16),
    Column("next_local", "NEXT"),
    Column("recurrence", "REPEATS", lambda value: str(value or "once")),
    Column("state", "STATE"),
    Column("failures", "FAILED"),
)
CARD = (
    *COLUMNS[:3],
    Column("session", "SESSION"),
    Column("chat", "CHAT"),
    *COLUMNS[3:],
    Column("zone", "ZONE"),
    Column("hours", "HOURS"),
    Column("per_day", "AT MOST A DAY"),
    Column("missed", "WHEN MISSED"),
    Column("missed_from", "MISSED FROM", _time),
    Column("missed_until", "MISSED UNTIL", _time),
    Column("quiet", "QUIET", _yes),
    Column("last_run", "LAST RUN", day_and_time),
    Column("last_status", "LAST RESULT"),
    Column("last_error", "LAST ERROR"),
    Column("created", "CREATED", day_and_time),
    Column("script", "SCRIPT"),
    Column("text", "TEXT"),
)
TAKEN = (
    Column("job", "JOB"),
    Column("outcome", "OUTCOME"),
    Column("next", "NEXT"),
    Column("reason", "REASON", lambda value: str(value or ""), 80),
)


@click.group("tasks", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """The tasks: what an agent does at a time. Without a verb: list."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_tasks)


@command.command("list")
@click.option("--session", metavar="SESSION", help="One session's.")
@click.option("--ended", is_flag=True, help="Those that are done or removed as well.")
@click.pass_obj
def list_tasks(invocation: Invocation, *, session: str | None = None, ended: bool = False) -> None:
    """The tasks, the next one first."""
    chosen = find(rows(invocation, "sessions.list", closed=True), session, "session")["id"] if session else None
    found = rows(invocation, "tasks.list", session=chosen, ended=ended)
    invocation.output.table(COLUMNS, found, "There is no task. Add one: host tasks add TEXT --every 1d")


@command.command("show")
@click.argument("task")
@click.pass_obj
def show(invocation: Invocation, task: str) -> None:
    """One task (its name, its id or the beginning of it)."""
    invocation.output.card(CARD, _find(invocation, task, ended=True))


_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_OPTIONS: tuple[_Decorator, ...] = (
    click.option("--at", "process_after", metavar="TIME", help="When (first): 2026-01-31T09:00, in --zone."),
    click.option("--every", metavar="30m", help="Again and again: 90s, 30m, 2h, 1d."),
    click.option("--cron", metavar="FIELDS", help="Again and again: '0 9 * * 1-5' (minute hour day month weekday)."),
    click.option("--zone", metavar="ZONE", help="What its times mean: Europe/Berlin (else the installation's)."),
    click.option("--hours", metavar="9-22", help="Only within these hours of the day; '' for all of it."),
    click.option("--name", metavar="NAME", help="What it is called (else the beginning of its text)."),
    click.option("--missed", type=click.Choice(["once", "skip", "all"]), help="When its time passed unseen."),
    click.option("--per-day", type=click.IntRange(1), help="At most so often a day."),
    click.option("--script", type=click.Path(path_type=Path), help="A script that says whether the agent has to wake."),
    click.option("--quiet-result/--tell", "quiet", default=None, help="Keep its results, and send them nowhere."),
)


def _task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@command.command("add")
@click.argument("text", required=False)
@click.option("--agent", metavar="AGENT", help="Whose (else the only one's, or main's).")
@click.option("--session", metavar="SESSION", help="In which of its sessions (else the one that was active last).")
@click.option("--say", is_flag=True, help="TEXT goes out as it is; the agent is not woken.")
@click.option("--heartbeat", is_flag=True, help="Look after what its HEARTBEAT.md names (every 30m, 9-22).")
@click.option("--from", "file", type=click.Path(path_type=Path), help="Take the jobs of a CRON.json in.")
@_task_options
@click.pass_obj
def add(
    invocation: Invocation, /, *, text: str | None, agent: str | None, session: str | None, say: bool, heartbeat: bool,
    file: Path | None, **options: object,
) -> int:  # fmt: skip
    """A new task: the agent is woken with TEXT at that time, and its answer goes to the session's chat."""
    if (text is not None) + (file is not None) + heartbeat != 1:
        what = "A task needs a text, or --from with a file, or --heartbeat."
        raise Failure(Code.USAGE, what, "See `host tasks add --help`.")
    where = _where(invocation, agent, session)
    if file is not None:
        return _import(invocation, file, where)
    said = _said(options) if heartbeat else {**_said(options), "message" if say else "prompt": text}
    invocation.change(f"Add the task {text or 'heartbeat'!r}")
    with invocation.host() as client:
        made = client.call("tasks.add", **where, task=said, heartbeat=heartbeat)
    _show(invocation, made, "is there")
    return 0


def _import(invocation: Invocation, file: Path, where: Mapping[str, object]) -> int:
    text = _read(file)
    invocation.change(f"Take the jobs of {file} in as tasks")
    with invocation.host() as client:
        found = rows_of(client.call("tasks.import", **where, text=text))
    if invocation.output.as_json:
        invocation.output.document(found)
    else:
        shown = [{**row, "next": _next(row.get("task"))} for row in found]
        invocation.output.table(TAKEN, shown, f"There is no job in {file}.")
    return DONE_BUT_LOOK if any(row["outcome"] == "skipped" for row in found) else 0


def _next(task: object) -> object:
    return task.get("next_local") if isinstance(task, dict) else None


@command.command("set")
@click.argument("task")
@click.option("--text", metavar="TEXT", help="What the agent is woken with, or what goes out.")
@click.option("--once", is_flag=True, help="No more than once, at --at.")
@_task_options
@click.pass_obj
def set_task(invocation: Invocation, /, task: str, *, text: str | None, once: bool, **options: object) -> None:
    """Change a task; what is not named stays. A new time counts at once."""
    found = _find(invocation, task)
    said = _said(options)
    if text is not None:
        said[str(found["kind"])] = text
    if once:
        said["recurrence"] = ""
    if not said:
        raise Failure(Code.USAGE, "Nothing was named that should change.", "See `host tasks set --help`.")
    invocation.change(f"Change the task {found['name']}")
    with invocation.host() as client:
        made = client.call("tasks.set", **_key(found), task=said)
    _show(invocation, made, "is changed")


def _verb(name: str, what: str, done: str, summary: str) -> None:
    @command.command(name, help=summary)
    @click.argument("task")
    @click.pass_obj
    def run(invocation: Invocation, task: str) -> None:
        found = _find(invocation, task)
        invocation.change(f"{what} the task {found['name']}")
        with invocation.host() as client:
            made = client.call(f"tasks.{name}", **_key(found))
        _show(invocation, made, done)


_verb("remove", "Remove", "is removed", "Remove a task; a run that goes on ends by itself.")
_verb("pause", "Pause", "is paused", "Hold a task until `host tasks resume`.")
_verb("resume", "Resume", "goes on", "Let a paused task go on at its next time.")


@command.command("run")
@click.argument("task")
@click.pass_obj
def run_now(invocation: Invocation, task: str) -> None:
    """Run a task once more, now; its next time stays."""
    found = _find(invocation, task)
    invocation.change(f"Run the task {found['name']} now")
    with invocation.host() as client:
        answer = client.call("tasks.run", **_key(found))
    if invocation.output.as_json:
        invocation.output.document(answer)
    elif isinstance(answer, dict):
        invocation.output.line(hint(f"It runs. See: host messages show {answer['message']}"))


def _find(invocation: Invocation, task: str, *, ended: bool = False) -> Row:
    return find(rows(invocation, "tasks.list", ended=ended), task, "task")


def _key(task: Row) -> dict[str, object]:
    return {name: task[name] for name in ("id", "session", "agent_group_id")}


def _where(invocation: Invocation, agent: str | None, session: str | None) -> dict[str, object]:
    if session is not None:
        return {"session": find(rows(invocation, "sessions.list"), session, "session")["id"]}
    agents = rows(invocation, "agents.list")
    if agent is None and len(agents) == 1:
        return {"agent": agents[0]["id"]}
    return {"agent": find(agents, agent or "main", "agent")["id"]}


def _said(options: Mapping[str, object]) -> dict[str, object]:
    """What the options say of a task."""
    said = {name: value for name, value in options.items() if value is not None}
    every, cron, script = said.pop("every", None), said.pop("cron", None), said.pop("script", None)
    if every is not None and cron is not None:
        raise Failure(Code.USAGE, "A task has either --every or --cron.", "Leave one of them out.")
    if every is not None or cron is not None:
        said["recurrence"] = cron if every is None else f"every {every}"
    if isinstance(script, Path):
        said["script"] = _read(script)
    return said


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise Failure(Code.NOT_FOUND, f"{file} cannot be read: {reason}.") from None


def _show(invocation: Invocation, made: object, done: str) -> None:
    row = made if isinstance(made, dict) else {}
    if invocation.output.as_json:
        invocation.output.document(row)
        return
    when = f" Next: {row['next_local']}." if row.get("next_local") and done != "is removed" else ""
    invocation.output.line(hint(f"{row.get('name')} {done}.{when} See: host tasks show {row.get('id')}"))
