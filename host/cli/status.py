"""`host status`, which imports no more than it needs: it has to answer at once."""

from host.cli.hints import hint
from host.cli.invocation import DONE_BUT_LOOK, Invocation
from host.cli.output import day_and_time
from host.control_client import HostAbsent

Row = dict[str, object]


def status(invocation: Invocation) -> int:
    """Shows the state; the exit code is 1 where something is wrong, 3 where it asks for a look."""
    try:
        with invocation.host() as client:
            answer = client.call("status")
            found: Row = answer if isinstance(answer, dict) else {}
    except HostAbsent:
        from host.looking import stopped_status

        found = stopped_status(invocation.home)
    if invocation.output.as_json:
        invocation.output.document(found)
    else:
        _show(invocation, found)
    if found.get("problems"):
        return 1
    return DONE_BUT_LOOK if found.get("warnings") or _part(found, "host").get("state") != "running" else 0


def _show(invocation: Invocation, status: Row) -> None:
    output = invocation.output
    for said in _many(status, "problems"):
        output.red(f"{said.get('what')} {said.get('next') or ''}".rstrip())
    for said in _many(status, "warnings"):
        output.yellow(f"{said.get('what')} {said.get('next') or ''}".rstrip())
    for heading, text in _lines(status):
        output.line(f"{heading:<11}{hint(text)}")


def _lines(status: Row) -> list[tuple[str, str]]:
    host, model, sandbox = _part(status, "host"), _part(status, "model"), _part(status, "sandbox")
    sessions, messages = _part(status, "sessions"), _part(status, "messages")
    if host.get("state") == "running":
        running = f"running since {day_and_time(host.get('since'))} (process {host.get('pid')}) on {host.get('home')}"
    else:
        running = f"{host.get('state')} on {host.get('home')}. Start it: host up, or talk: host chat"
    lines = [("host", running)]
    if model:
        lines.append(("model", _model(model)))
    if sandbox:
        live = f"{sandbox.get('live')} live, {sandbox.get('busy')} at work, {sandbox.get('waiting')} waiting"
        lines.append(("sandboxes", f"{sandbox.get('kind')}: {live}. {sandbox.get('detail') or ''}".rstrip()))
    count = ", ".join(f"{number} {state}" for state, number in sessions.items()) or "none yet"
    lines.append(("sessions", f"{count}; agents: {status.get('agents')}"))
    lines.append(("messages", f"{messages.get('arriving')} arriving, {messages.get('undelivered')} undelivered"))
    if channels := _many(status, "channels"):
        lines.append(
            (
                "channels",
                ", ".join(f"{c.get('name')} {'ok' if c.get('healthy') else c.get('detail')}" for c in channels),
            )
        )
    return lines


def _model(model: Row) -> str:
    if model.get("provider") == "rehearsal":
        return "none: a rehearsal answers. For a key: host setup"
    return f"{model.get('provider')}, {model.get('model') or 'its default model'}"


def _part(status: Row, name: str) -> Row:
    part = status.get(name)
    return part if isinstance(part, dict) else {}


def _many(status: Row, name: str) -> list[Row]:
    part = status.get(name)
    return [row for row in part if isinstance(row, dict)] if isinstance(part, list) else []
