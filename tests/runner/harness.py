"""The host's side of one mailbox, as small as a test needs it, and real runner processes over its real files.

outbound.db is never opened through SQLite here: its bytes are read and looked at in memory, as the host does.
"""

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mailboxes import bell
from mailboxes.clock import SystemClock, to_text
from mailboxes.layout import INBOUND_DB, OUTBOUND_DB, Workspace
from mailboxes.rows import Address, Kind, MessageOut
from mailboxes.schema import create_inbound, open_inbound, outbound_template, transaction

ROOT = Path(__file__).parents[2]
HOME_CHAT = Address("telegram", "bot-1", "chat-4711", None)
DEADLINE = 20.0

_IN = [
    "id", "kind", "timestamp", "status", "process_after", "tries", "platform_id", "channel_type", "account_id",
    "thread_id", "content", "seq", "series_id", "trigger", "on_wake", "source_session", "principal",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Snapshot:
    """outbound.db at one moment."""

    messages: list[MessageOut]
    claims: list[dict[str, Any]]
    state: dict[str, Any] | None

    def texts(self) -> list[str]:
        """The text of every chat row, in order of seq."""
        return [json.loads(row.content).get("text", "") for row in self.messages]

    def claim(self, message_id: str, attempt: int = 0) -> dict[str, Any] | None:
        """The claim on one attempt, if there is one."""
        found = (c for c in self.claims if (c["message_id"], c["attempt"]) == (message_id, attempt))
        return next(found, None)


class HostSide:
    """Writes inbound.db, reads outbound.db's bytes, holds the bell."""

    def __init__(self, root: Path) -> None:
        self.workspace = Workspace.below(root)
        for folder in (self.workspace.inbound, self.workspace.outbound, self.workspace.state, self.workspace.run):
            folder.mkdir(parents=True, exist_ok=True)
        self.workspace.home.mkdir(parents=True, exist_ok=True)
        create_inbound(self.workspace.inbound / INBOUND_DB)
        self.fresh_outbound()
        self._seq = 0

    def fresh_outbound(self) -> None:
        """An empty outbound.db from the template."""
        (self.workspace.outbound / OUTBOUND_DB).write_bytes(outbound_template())

    def put(self, content: Mapping[str, Any] | str, **columns: Any) -> str:
        """Writes one row of messages_in and returns its id. `address` may be given as an Address."""
        self._seq += 2
        address = columns.pop("address", HOME_CHAT)
        row: dict[str, Any] = {
            "id": f"m-{self._seq}",
            "kind": Kind.CHAT,
            "timestamp": to_text(SystemClock().now()),
            "status": "pending",
            "process_after": None,
            "tries": 0,
            "seq": self._seq,
            "series_id": None,
            "trigger": 1,
            "on_wake": 0,
            "source_session": None,
            "principal": None,
            "platform_id": address and address.platform_id,
            "channel_type": address and address.channel_type,
            "account_id": address and address.account_id,
            "thread_id": address and address.thread_id,
            "content": content if isinstance(content, str) else json.dumps(content),
        }
        row |= columns
        marks = ",".join("?" * len(_IN))
        self.execute(f"INSERT INTO messages_in ({','.join(_IN)}) VALUES ({marks})", [row[name] for name in _IN])
        return str(row["id"])

    def chat(self, text: str, sender: str = "Ann", **columns: Any) -> str:
        """One chat message."""
        return self.put({"sender": sender, "senderId": "telegram:99", "text": text, "attachments": []}, **columns)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> None:
        """One write to inbound.db."""
        with closing(open_inbound(self.workspace.inbound / INBOUND_DB)) as connection, transaction(connection):
            connection.execute(sql, parameters)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """One read of inbound.db."""
        with closing(open_inbound(self.workspace.inbound / INBOUND_DB)) as connection:
            return connection.execute(sql, parameters).fetchall()

    def take_over(self, state: str = "sent") -> list[MessageOut]:
        """What the host does with a snapshot: rows into deliveries, claims into the status. Returns the new rows."""
        snapshot = self.snapshot()
        known = {row["id"] for row in self.query("SELECT id FROM deliveries")}
        new = [row for row in snapshot.messages if row.id not in known]
        with closing(open_inbound(self.workspace.inbound / INBOUND_DB)) as db, transaction(db):
            for row in new:
                db.execute(
                    "INSERT INTO deliveries (id, seq, turn_id, in_reply_to, kind, timestamp, content, state)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (row.id, row.seq, row.turn_id, row.in_reply_to, row.kind, row.timestamp, row.content, state),
                )
            for claim in snapshot.claims:
                if claim["state"] in ("processing", "completed"):
                    db.execute(
                        "UPDATE messages_in SET status = ? WHERE id = ? AND tries = ?",
                        (claim["state"], claim["message_id"], claim["attempt"]),
                    )
        return new

    def retry(self, message_id: str) -> None:
        """A reset by the host: tries + 1, pending again, due at once."""
        self.execute("UPDATE messages_in SET status = 'pending', tries = tries + 1 WHERE id = ?", (message_id,))

    def snapshot(self) -> Snapshot:
        """outbound.db as it is now; tries until no commit is under way."""
        path = self.workspace.outbound / OUTBOUND_DB
        while True:
            before = path.read_bytes()
            if not _journal_active(path) and path.read_bytes() == before and not _journal_active(path):
                return _look(before)


def _journal_active(path: Path) -> bool:
    try:
        data = path.with_name(f"{path.name}-journal").read_bytes()
    except FileNotFoundError:
        return False
    return data[:1] not in (b"", b"\0")


def _look(image: bytes) -> Snapshot:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(image)
        connection.row_factory = sqlite3.Row
        messages = [_message_out(row) for row in connection.execute("SELECT * FROM messages_out ORDER BY seq")]
        claims = [dict(row) for row in connection.execute("SELECT * FROM claims ORDER BY message_id, attempt")]
        state = connection.execute("SELECT * FROM runner_state").fetchone()
        return Snapshot(messages, claims, dict(state) if state else None)


def _message_out(row: sqlite3.Row) -> MessageOut:
    address = None
    if row["channel_type"] is not None:
        address = Address(row["channel_type"], row["account_id"], row["platform_id"], row["thread_id"])
    return MessageOut(
        row["id"],
        row["seq"],
        row["turn_id"],
        row["in_reply_to"],
        row["timestamp"],
        row["kind"],
        row["content"],
        address,
    )


class RunnerProcess:
    """A real runner over a HostSide's files."""

    def __init__(self, host: HostSide, process: asyncio.subprocess.Process) -> None:
        self.host = host
        self.process = process

    @classmethod
    async def start(cls, host: HostSide, *arguments: str, preload: str = "sys", **environment: str) -> "RunnerProcess":
        """Starts one the way a sandbox does, but for the import path. `preload`: a module with providers for tests."""
        w = host.workspace
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {preload};"
            " from agent_runner.__main__ import main; sys.exit(main())"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-c",
            code,
            "--inbound",
            w.inbound,
            "--outbound",
            w.outbound,
            "--state",
            w.state,
            "--run",
            w.run,
            "--agent",
            w.agent,
            *arguments,
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "AGENT_PROVIDER": "rehearsal", **environment},
        )
        return cls(host, process)

    async def until(self, wanted: Callable[[Snapshot], bool]) -> Snapshot:
        """The first snapshot that is as wanted; fails loudly when the runner ends before, or at the deadline."""
        async with asyncio.timeout(DEADLINE):
            while True:
                snapshot = self.host.snapshot()
                if wanted(snapshot):
                    return snapshot
                if self.process.returncode is not None:
                    raise AssertionError(f"the runner ended with {self.process.returncode}: {await self.errors()}")
                await asyncio.sleep(0.01)

    async def answered(self, *message_ids: str) -> Snapshot:
        """Until the claim on each is completed."""
        return await self.until(
            lambda s: all(
                any(c["message_id"] == m and c["state"] == "completed" for c in s.claims) for m in message_ids
            )
        )

    async def errors(self) -> str:
        """What it wrote to standard error, to its end."""
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def logged(self, event: str) -> None:
        """Until it logs the event; what it logged before is used up."""
        assert self.process.stderr is not None
        async with asyncio.timeout(DEADLINE):
            while line := await self.process.stderr.readline():
                if json.loads(line)["event"] == event:
                    return
        raise AssertionError(f"the runner ended without logging {event}")

    async def ended(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(DEADLINE):
            return await self.process.wait()

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and waits for the end."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.ended()


class Bell:
    """The host's end of the bell."""

    def __init__(self, host: HostSide) -> None:
        self._listener = bell.bind(host.workspace.run / "bell.sock", 0o600)
        self.line: bell.Line | None = None
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def accept(self) -> bell.Line:
        """Takes the runner's connection and listens to it from then on."""
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        self.line = bell.Line(connection)
        self._task = asyncio.create_task(self.line.listen(self.heard.put_nowait))
        return self.line

    async def hear(self, what: bytes) -> None:
        """Until such a packet comes."""
        async with asyncio.timeout(DEADLINE):
            while await self.heard.get() != what:
                pass

    def close(self) -> None:
        """Hangs up and listens no more."""
        if self.line is not None:
            self._task.cancel()
            self.line.close()
        self._listener.close()
