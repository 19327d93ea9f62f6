"""The hand that writes for scripted runners, as a process of its own: `python -m tests.fakes.runner_hand`.

A test's process plays the host, which may never open a live outbound.db. Requests and replies are lines of JSON; what
it does to a mailbox it does through the real runner's code.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from agent_runner.mailbox import Mailbox, Output, answer, roll_back
from host.runtime.base import SandboxSpec
from mailboxes import schema
from mailboxes.clock import from_text
from mailboxes.layout import INBOUND_DB, OUTBOUND_DB, Workspace
from mailboxes.rows import Address, MessageIn


class Hand:
    """The test's end of it. Each call blocks until it is done."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def do(self, what: str, spec: SandboxSpec, **arguments: object) -> Any:
        """Has it do something for the runner of a sandbox; its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        folders = {name: str(getattr(spec, name)) for name in ("inbound", "outbound", "state", "run", "agent")}
        self._process.stdin.write(json.dumps({"do": what, "folders": folders, **arguments}) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        if "error" in reply:
            raise AssertionError(reply["error"])
        return reply["answer"]


class _Runner:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.mailbox = Mailbox(workspace)
        self.rows: list[MessageIn] = []
        self.holding: sqlite3.Connection | None = None

    def recover(self) -> None:
        self.mailbox.recover("hash")

    def claim(self, turn: str, now: datetime) -> list[str]:
        batch = self.mailbox.next_batch(now)
        if batch is None or not self.mailbox.claim(batch.rows, turn):
            return []
        self.rows = list(batch.rows)
        return [row.id for row in self.rows]

    def say(self, text: str, turn: str, now: datetime) -> None:
        last = self.rows[-1]
        self.mailbox.send(self.mailbox.prepare([answer("chat", text, last.address, last.id)])[0], turn, now)

    def answer(self, text: str, turn: str, now: datetime) -> None:
        last = self.rows[-1]
        ready = self.mailbox.prepare([answer("chat", text, last.address, last.id)])
        self.mailbox.commit(ready, self.rows, turn, None, now)

    def commit(self, outputs: list[dict[str, Any]], turn: str, now: datetime) -> None:
        """Ends the open turn with these outputs (`kind`, `content`, `address`, `in_reply_to`); none is silence."""
        ready = self.mailbox.prepare([_output(**output) for output in outputs])
        self.mailbox.commit(ready, self.rows, turn, None, now)

    def send(self, output: dict[str, Any], turn: str, now: datetime, **columns: str) -> str:
        """A tool of the open turn sends a row, with further columns where it has some; its id."""
        (ready,) = self.mailbox.prepare([_output(**output)])
        with schema.transaction(self.mailbox._outbound) as db:
            self.mailbox._insert(db, [ready], turn, now)
            for name, value in columns.items():
                db.execute(f"UPDATE messages_out SET {name}=? WHERE id=?", (value, ready.id))
        return ready.id

    def drop(self) -> None:
        """Ends the open turn without a word, because the host has cancelled its messages."""
        self.mailbox.settle()

    def release(self, reason: str, retryable: bool) -> None:
        self.mailbox.release(reason, retryable=retryable)

    def write(self, sql: str) -> None:
        """Whatever else a runner may write."""
        with schema.transaction(self.mailbox._outbound) as db:
            db.execute(sql)

    def hold_inbound(self) -> None:
        """Takes the read lock by which a sandbox can keep the host from writing."""
        self.holding = schema.open_inbound_to_read(self.workspace.inbound / INBOUND_DB)
        self.holding.execute("BEGIN")
        self.holding.execute("SELECT count(*) FROM messages_in").fetchone()

    def die_in_a_commit(self) -> None:
        """Leaves the journal that a kill in the middle of a commit leaves."""
        if os.fork() == 0:
            db = schema.open_outbound(self.workspace.outbound / OUTBOUND_DB)
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE runner_state SET beat = beat + 1")
            os.kill(os.getpid(), signal.SIGKILL)
        os.wait()

    def close(self) -> None:
        self.mailbox.close()
        if self.holding is not None:
            self.holding.close()


def _output(kind: str, content: dict[str, object], address: list[str | None] | None, in_reply_to: str | None) -> Output:
    to = None if address is None else Address(*address)  # type: ignore[arg-type]  # as it came through JSON
    return Output(kind, content, to, in_reply_to, ("text",))


def main() -> None:
    runners: dict[str, _Runner] = {}
    for line in sys.stdin:
        request = json.loads(line)
        what, folders = request.pop("do"), request.pop("folders")
        workspace = Workspace(**{name: Path(path) for name, path in folders.items()})
        if "now" in request:
            request["now"] = from_text(request["now"])
        reply: dict[str, object] = {"answer": None}
        try:
            if what == "roll_back":
                roll_back(workspace)
            elif what == "close":
                if runner := runners.pop(folders["outbound"], None):
                    runner.close()
            else:
                if folders["outbound"] not in runners:
                    runners[folders["outbound"]] = _Runner(workspace)
                reply["answer"] = getattr(runners[folders["outbound"]], what)(**request)
        except Exception as error:  # noqa: BLE001  the test that asked for it hears of it
            reply = {"error": f"{what}: {type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
