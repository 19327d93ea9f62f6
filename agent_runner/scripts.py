"""A task's own script, run before its turn: it says whether the agent has to wake, and may hand it data.

The last line that it prints (blank ones aside) is JSON `{"wakeAgent": true or false, "data": anything}`. A script that
fails to say so wakes the agent all the same, which is told what went wrong: a task is never skipped in silence.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_runner.log import log
from mailboxes.rows import Kind, MessageIn

TIMEOUT_SECONDS = 30
"""How long a script may take (ledger R106)."""

_SHOWN_LINES = 20
_SHOWN_CHARACTERS = 4000
"""What the agent is shown of the output of a script that failed."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a script said. `data` is JSON text, None where it gave none."""

    wake: bool
    data: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a script said nothing, in a sentence, and the end of what it printed."""

    reason: str
    output: str = ""


Verdict = Said | Failed


def script_of(row: MessageIn) -> str | None:
    """The script of a task; None where it has none."""
    if row.kind != Kind.TASK:
        return None
    try:
        content = json.loads(row.content)
    except (ValueError, RecursionError):
        return None
    script = content.get("script") if isinstance(content, dict) else None
    return script if isinstance(script, str) and script.strip() else None


async def run_all(rows: Sequence[MessageIn], folder: Path, *, allowed: bool) -> dict[str, Verdict]:
    """What the script of each row says, by row id. They run in `folder`, one after another; where scripts are not
    allowed none runs. Cancelled, it leaves nothing running."""
    verdicts: dict[str, Verdict] = {}
    for row in rows:
        script = script_of(row)
        if script is None:
            continue
        verdict = await _run(script, folder) if allowed else Failed("It was not run: this agent may run no commands.")
        verdicts[row.id] = verdict
        if isinstance(verdict, Failed):
            log("script_failed", "warning", message_id=row.id, reason=verdict.reason)
        else:
            log("script", message_id=row.id, wake=verdict.wake)
    return verdicts


async def _run(script: str, folder: Path) -> Verdict:
    from agent_runner.tools import shell  # slow: with the first script
    from agent_runner.tools.registry import ToolError

    if part := shell.refused(script):
        return Failed(f"It was not run: commands with '{part}' are refused.")
    try:
        outcome = await shell.run(script, folder, TIMEOUT_SECONDS)
    except (OSError, ValueError, ToolError) as fault:
        # A script that is too long, holds a NUL or cannot be written as UTF-8; no shell; no folder.
        return Failed(f"It could not be started: {getattr(fault, 'strerror', None) or fault}.")
    shown = _last_lines(f"{outcome.out_end}\n{outcome.err_end}")
    if outcome.code is None:
        return Failed(f"It took longer than {TIMEOUT_SECONDS} s and was stopped.", shown)
    if outcome.code:
        return Failed(f"It ended with exit code {outcome.code}.", shown)
    return _said(outcome.out_end) or Failed(
        'The last line that it printed is not JSON of the form {"wakeAgent": true or false, "data": ...}.', shown
    )


def _said(out: str) -> Said | None:
    lines = [line for line in out.split("\n") if line.strip()]
    try:
        last = json.loads(lines[-1]) if lines else None
        if not isinstance(last, Mapping) or not isinstance(wake := last.get("wakeAgent"), bool):
            return None
        data = last.get("data")
        return Said(wake, None if data is None else json.dumps(data, indent=1))
    except (ValueError, RecursionError):
        return None


def _last_lines(text: str) -> str:
    lines = [line for line in text.split("\n") if line.strip()]
    return "\n".join(lines[-_SHOWN_LINES:])[-_SHOWN_CHARACTERS:]
