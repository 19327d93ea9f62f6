"""The runner's side of the mailbox: inbound.db is read, outbound.db is written, each by this process alone.

Every public method that writes is one immediate transaction. The runner says what it claims, completes and releases; it
never fails a row and computes no back-off (that is the host's). It changes no schema.
"""

import json
import shutil
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime

from agent_runner.batching import Batch, Waiting, candidates, cut_batch, starts_turn
from mailboxes.clock import to_text
from mailboxes.ids import new_id
from mailboxes.layout import FILES, INBOUND_DB, OUTBOUND_DB, Workspace
from mailboxes.limits import BATCH_ROWS, MAX_CONTENT_BYTES, MAX_OUTBOUND_BYTES, MAX_ROWS_PER_READ
from mailboxes.rows import Activity, Address, ClaimState, InStatus, Kind, MessageIn
from mailboxes.schema import (
    IN_COLUMNS,
    PAGE_SIZE,
    HostAway,
    message_in_of,
    open_inbound_to_read,
    open_outbound,
    reading,
    transaction,
)

ANSWER_FILE = "answer.md"

_SEND_BYTES_OF_A_TURN = MAX_OUTBOUND_BYTES // 2
_SEND_ROWS_OF_A_TURN = MAX_ROWS_PER_READ // 2
"""Rows of the open turn stay until it is over, so what tools send may fill half of the file and the answer finds
room."""

_COMMIT_BYTES = MAX_OUTBOUND_BYTES // 4
_SPILL_BYTES = 4096
"""Where the outputs of one commit are more than _COMMIT_BYTES together, each longer than _SPILL_BYTES goes as a
file."""

_ROW_OVERHEAD = 1024
_COMMIT_OVERHEAD = 4 * PAGE_SIZE
_BYTES_A_CHARACTER = 4
_FEW_ROWS = 16


class TurnFull(Exception):
    """This turn has sent as much as the mailbox holds; the text says so to the agent."""


class NoMailbox(Exception):
    """There is no mailbox where the runner was told to look; the text names the file."""


@dataclass(frozen=True, slots=True)
class Output:
    """A row of messages_out before it has an id and a number. `text_key` is the path to the text inside `content`:
    there a longer text is replaced by a line that names its file."""

    kind: str
    content: dict[str, object]
    address: Address | None
    in_reply_to: str | None
    text_key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An output that is ready to be inserted: its content is within the limits and its file, if any, is written."""

    id: str
    output: Output
    content: str


def _dumps(content: dict[str, object]) -> str:
    # A lone surrogate cannot be stored as UTF-8, and the host would set the row aside.
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "replace").decode()


def _with_file(output: Output, text: str) -> dict[str, object]:
    """The content with `text` in the place of the long one, and the file named."""
    content: dict[str, object] = json.loads(json.dumps(output.content))
    inner = content
    for key in output.text_key[:-1]:
        child = inner[key]
        assert isinstance(child, dict)
        inner = child
    inner[output.text_key[-1]] = text
    content["files"] = [ANSWER_FILE]
    return content


def _text_of(output: Output) -> str:
    value: object = output.content
    for key in output.text_key:
        value = value[key] if isinstance(value, dict) else ""
    return str(value)


_WITHOUT_CONTENT = IN_COLUMNS.replace(" content,", " '' AS content,")
_DUE = "FROM messages_in WHERE status = 'pending' AND (process_after IS NULL OR process_after <= ?) ORDER BY seq"
_PENDING = f"SELECT {IN_COLUMNS} {_DUE}"
_PENDING_BRIEFLY = f"SELECT {_WITHOUT_CONTENT} {_DUE}"
"""The same without the contents: of a long backlog only those of the next batch are read."""


def _waiting(row: MessageIn) -> Waiting:
    return Waiting(row.id, row.seq, row.origin, row.address is not None, starts_turn(row), row.is_heartbeat)


def roll_back(workspace: Workspace) -> None:
    """Makes outbound.db whole after a runner that died in a commit: the first read does it. Raises NoMailbox."""
    try:
        connection = open_outbound(workspace.outbound / OUTBOUND_DB)
    except HostAway as error:
        raise NoMailbox(f"There is no mailbox in {workspace.outbound} ({error}).") from error
    with closing(connection):
        connection.execute("SELECT count(*) FROM runner_state")


_USED = (
    "SELECT (SELECT count(*) FROM messages_out), page_count, freelist_count FROM pragma_page_count,"
    " pragma_freelist_count"
)


class Mailbox:
    """Both files of one session, as the runner may use them."""

    def __init__(self, workspace: Workspace) -> None:
        """Opens them. Raises NoMailbox where one is missing: the host makes both, the runner neither."""
        for path in (workspace.inbound / INBOUND_DB, workspace.outbound / OUTBOUND_DB):
            if not path.is_file():
                raise NoMailbox(f"There is no mailbox: {path} is missing. The host makes it before it starts a runner.")
        self._workspace = workspace
        self._inbound_connection: sqlite3.Connection | None = None
        self._file = workspace.outbound / OUTBOUND_DB
        try:
            self._outbound = open_outbound(self._file)
        except HostAway as error:
            raise NoMailbox(f"{self._file} cannot be opened: {error}") from error
        self.turn_id: str | None = None
        self.awaited: Collection[str] = ()
        """Ids of rows that a running tool waits for: they are in no batch."""

    def close(self) -> None:
        """Closes both files."""
        self._outbound.close()
        if self._inbound_connection is not None:
            self._inbound_connection.close()

    # Reading the inbox. Each of these raises HostAway while inbound.db cannot be read.

    def _read(self, sql: str, parameters: Sequence[object] = ()) -> list[sqlite3.Row]:
        if self._inbound_connection is None:
            self._inbound_connection = open_inbound_to_read(self._workspace.inbound / INBOUND_DB)
        with reading():
            return self._inbound_connection.execute(sql, parameters).fetchall()

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """What is read inside is from one commit of the host."""
        self._read("BEGIN")
        try:
            yield
        finally:
            if self._inbound_connection is not None and self._inbound_connection.in_transaction:
                self._read("ROLLBACK")

    def _unclaimed(self, rows: Iterable[sqlite3.Row]) -> list[MessageIn]:
        claimed = {(row[0], row[1]) for row in self._outbound.execute("SELECT message_id, attempt FROM claims")}
        return [
            row for row in map(message_in_of, rows) if (row.id, row.tries) not in claimed and row.id not in self.awaited
        ]

    def next_batch(self, now: datetime, origin: tuple[str, ...] | None = None) -> Batch | None:
        """What to work on next, or of this origin; None when nothing is due that starts a turn."""
        few = self._read(f"{_PENDING} LIMIT {BATCH_ROWS + 1}", (to_text(now),))
        if len(few) <= BATCH_ROWS:
            rows = self._unclaimed(few)
            chosen = candidates([_waiting(row) for row in rows], origin)
        else:
            with self._one_moment():
                waiting = self._unclaimed(self._read(_PENDING_BRIEFLY, (to_text(now),)))
                chosen = candidates([_waiting(row) for row in waiting], origin)
                rows = self.messages((*chosen.omitted, *chosen.ids)) if chosen is not None else []
        if chosen is None:
            return None
        omitted, ids = set(chosen.omitted), set(chosen.ids)
        return cut_batch([row for row in rows if row.id in ids], [row for row in rows if row.id in omitted])

    def heard(self) -> int:
        """How far people have written: the highest seq of what came in from outside."""
        kinds = "'chat', 'chat-sdk', 'webhook'"
        return int(self._read(f"SELECT max(seq) FROM messages_in WHERE kind IN ({kinds})")[0][0] or 0)  # noqa: S608  our words

    def messages(self, ids: Iterable[str]) -> list[MessageIn]:
        """The rows with these ids that exist, in order of seq."""
        found: list[MessageIn] = []
        wanted = list(ids)
        for start in range(0, len(wanted), 500):
            part = wanted[start : start + 500]
            marks = ",".join("?" * len(part))
            found += map(message_in_of, self._read(f"SELECT * FROM messages_in WHERE id IN ({marks})", part))  # noqa: S608
        return sorted(found, key=lambda row: row.seq)

    def any_cancelled(self, ids: Sequence[str]) -> bool:
        """Whether the host has closed one of these messages."""
        return any(row.status == InStatus.CANCELLED for row in self.messages(ids))

    # Writing the outbox.

    def completed_turns(self) -> frozenset[str]:
        """The turns that a completed claim vouches for."""
        rows = self._outbound.execute("SELECT DISTINCT turn_id FROM claims WHERE state = 'completed'")
        return frozenset(row[0] for row in rows)

    def recover(self, runner_hash: str) -> None:
        """What a fresh runner does first: the host has judged every earlier claim, so those that are not completed go;
        numbers go on above all that the session ever said. Raises HostAway."""
        floor = self._read("SELECT max(seq) FROM deliveries")[0][0] or 0
        with transaction(self._outbound) as db:
            own = db.execute("SELECT max(seq) FROM messages_out").fetchone()[0] or 0
            db.execute("DELETE FROM claims WHERE state != 'completed'")
            self._prune(db)
            db.execute(
                "INSERT INTO runner_state (id, state, next_seq, beat, runner_hash) VALUES (1, 'idle', ?, 0, ?)"
                " ON CONFLICT (id) DO UPDATE SET state = 'idle', turn_id = NULL, open_questions = 0, active_tools = 0,"
                " next_seq = max(next_seq, excluded.next_seq), runner_hash = excluded.runner_hash",
                ((max(floor, own) + 1) | 1, runner_hash),
            )

    def claim(self, rows: Iterable[MessageIn], turn_id: str) -> bool:
        """Claims this attempt at every row for the turn; all or none. False when another poller has one of them."""
        try:
            with transaction(self._outbound) as db:
                self._insert_claims(db, rows, turn_id, ClaimState.PROCESSING)
                self._prune(db, turn_id)
                self._set_state(db, Activity.BUSY, turn_id)
        except sqlite3.IntegrityError:
            return False
        self.turn_id = turn_id
        return True

    def complete_unseen(self, rows: Iterable[MessageIn], turn_id: str) -> None:
        """Completes rows that need neither a turn nor an answer."""
        with transaction(self._outbound) as db:
            self._insert_claims(db, rows, turn_id, ClaimState.COMPLETED)
            self._prune(db, self.turn_id)

    def set_aside(self, row: MessageIn, reason: str, turn_id: str) -> None:
        """Releases a row for good that cannot be worked on."""
        with transaction(self._outbound) as db:
            db.execute(
                "INSERT INTO claims (message_id, attempt, turn_id, state, reason, retryable)"
                " VALUES (?, ?, ?, 'released', ?, 0)",
                (row.id, row.tries, turn_id, reason),
            )

    def release(self, reason: str, *, retryable: bool) -> None:
        """Gives the claims of the open turn back to the host."""
        with transaction(self._outbound) as db:
            db.execute(
                "UPDATE claims SET state = 'released', reason = ?, retryable = ?"
                " WHERE turn_id = ? AND state = 'processing'",
                (reason, int(retryable), self.turn_id),
            )
            self._set_state(db, Activity.IDLE, None)
        self.turn_id = None

    def settle(self) -> None:
        """Nothing is open any more."""
        with transaction(self._outbound) as db:
            self._prune(db)
            self._set_state(db, Activity.IDLE, None)
        self.turn_id = None

    def prepare(self, outputs: Sequence[Output]) -> list[Outgoing]:
        """Gives each output its id and brings it within the limits: a longer text is written as a file."""
        texts = [_dumps(output.content) for output in outputs]
        sizes = [len(text.encode()) for text in texts]
        limit = MAX_CONTENT_BYTES if sum(sizes) <= _COMMIT_BYTES else _SPILL_BYTES
        ready = []
        for output, text, size in zip(outputs, texts, sizes, strict=True):
            row_id = new_id("o")
            content = text if size <= limit else self._spill(row_id, output)
            ready.append(Outgoing(row_id, output, content))
        return ready

    def _spill(self, row_id: str, output: Output) -> str:
        text = _text_of(output)
        folder = self._workspace.outbound / FILES / row_id
        folder.mkdir(parents=True)
        (folder / ANSWER_FILE).write_text(text, encoding="utf-8", errors="replace")
        return _dumps(_with_file(output, f"The answer has {len(text):,} characters; it is in the file {ANSWER_FILE}."))

    def has_room(self, rows: Sequence[Outgoing]) -> bool:
        """Whether the file stays below MAX_OUTBOUND_BYTES, and the host can read all of its rows at once, with these
        rows in it; what can go has gone by then."""
        if self._surely_fits(rows) or self._fits(rows):
            return True
        with transaction(self._outbound) as db:
            self._prune(db, self.turn_id)
        return self._fits(rows)

    def _surely_fits(self, rows: Sequence[Outgoing]) -> bool:
        """The cheap half of `_fits`: by the size of the file, free pages and all."""
        (count,) = self._outbound.execute("SELECT count(*) FROM messages_out").fetchone()
        size = self._file.stat().st_size + sum(len(row.content) for row in rows) * _BYTES_A_CHARACTER
        return bool(count + len(rows) <= _FEW_ROWS and size <= MAX_OUTBOUND_BYTES // 2)

    def _fits(self, rows: Sequence[Outgoing]) -> bool:
        count, pages, free = self._outbound.execute(_USED).fetchone()
        need = sum(len(row.content.encode()) + _ROW_OVERHEAD for row in rows) + _COMMIT_OVERHEAD
        if count and count + len(rows) > MAX_ROWS_PER_READ:
            return False
        return bool((pages - free) * PAGE_SIZE + need <= MAX_OUTBOUND_BYTES)

    def send(self, row: Outgoing, turn_id: str, now: datetime) -> int:
        """Inserts one row of the open turn while it runs. Returns its number. Raises TurnFull."""
        with transaction(self._outbound) as db:
            mine = "SELECT count(*), total(length(content)) FROM messages_out WHERE turn_id = ?"
            count, size = db.execute(mine, (turn_id,)).fetchone()
            if count >= _SEND_ROWS_OF_A_TURN or size + len(row.content.encode()) > _SEND_BYTES_OF_A_TURN:
                raise TurnFull("this turn has sent as much as a mailbox holds; put the rest into the final answer")
            self._prune(db, turn_id)
            self._set_state(db, Activity.BUSY, turn_id)
            seq = self._insert(db, [row], turn_id, now)
        self.turn_id = turn_id
        return seq

    def commit(
        self, rows: Sequence[Outgoing], done: Iterable[MessageIn], turn_id: str, rest: str | None, now: datetime
    ) -> None:
        """Outputs and the completed claims of what they answer, at once or not at all. The claims of the open turn that
        remain are those of the turn `rest` from here on; None where nothing is open any more."""
        with transaction(self._outbound) as db:
            db.executemany(
                "INSERT INTO claims (message_id, attempt, turn_id, state) VALUES (?, ?, ?, 'completed')"
                " ON CONFLICT (message_id, attempt) DO UPDATE SET state = 'completed'",
                [(row.id, row.tries, turn_id) for row in done],
            )
            if rest is not None:
                db.execute("UPDATE claims SET turn_id = ? WHERE turn_id = ? AND state = 'processing'", (rest, turn_id))
            self._set_state(db, Activity.IDLE if rest is None else Activity.BUSY, rest)
            self._insert(db, rows, turn_id, now)
        self.turn_id = rest

    def beat(self) -> None:
        """The sign of life of a runner without a bell."""
        with transaction(self._outbound) as db:
            db.execute("UPDATE runner_state SET beat = beat + 1")

    @staticmethod
    def _set_state(db: sqlite3.Connection, state: Activity, turn_id: str | None) -> None:
        db.execute("UPDATE runner_state SET state = ?, turn_id = ?", (state, turn_id))

    @staticmethod
    def _insert_claims(db: sqlite3.Connection, rows: Iterable[MessageIn], turn_id: str, state: ClaimState) -> None:
        db.executemany(
            "INSERT INTO claims (message_id, attempt, turn_id, state) VALUES (?, ?, ?, ?)",
            [(row.id, row.tries, turn_id, state) for row in rows],
        )

    @staticmethod
    def _insert(db: sqlite3.Connection, rows: Sequence[Outgoing], turn_id: str, now: datetime) -> int:
        """Inserts in order, numbers them, keeps next_seq. Returns the last number given (or next_seq without rows)."""
        seq: int = db.execute("SELECT next_seq FROM runner_state").fetchone()[0]
        for position, row in enumerate(rows):
            to = row.output.address
            db.execute(
                "INSERT INTO messages_out (id, seq, turn_id, in_reply_to, timestamp, kind, channel_type, account_id,"
                " platform_id, thread_id, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.id,
                    seq + 2 * position,
                    turn_id,
                    row.output.in_reply_to,
                    to_text(now),
                    row.output.kind,
                    to and to.channel_type,
                    to and to.account_id,
                    to and to.platform_id,
                    to and to.thread_id,
                    row.content,
                ),
            )
        db.execute("UPDATE runner_state SET next_seq = ?", (seq + 2 * len(rows),))
        return seq + 2 * max(0, len(rows) - 1)

    def _prune(self, db: sqlite3.Connection, open_turn: str | None = None) -> None:
        """Drops what the host shows as taken over and judged, with its files, never a row or claim of the open turn."""
        outs = db.execute("SELECT id FROM messages_out WHERE turn_id IS NOT ?", (open_turn,)).fetchall()
        claims = db.execute("SELECT message_id, attempt FROM claims WHERE turn_id IS NOT ?", (open_turn,)).fetchall()
        try:
            taken = [(row[0],) for row in outs if self._read("SELECT 1 FROM deliveries WHERE id = ?", (row[0],))]
            judged = [(row[0], row[1]) for row in claims if self._is_judged(row[0], row[1])]
        except HostAway:
            return
        for (row_id,) in taken:
            files = self._workspace.outbound / FILES / row_id
            if files.is_dir():
                shutil.rmtree(files, ignore_errors=True)  # the host has its own copy, or has refused them
        db.executemany("DELETE FROM messages_out WHERE id = ?", taken)
        db.executemany("DELETE FROM claims WHERE message_id = ? AND attempt = ?", judged)

    def _is_judged(self, message_id: str, attempt: int) -> bool:
        rows = self._read("SELECT status, tries FROM messages_in WHERE id = ?", (message_id,))
        return not rows or rows[0]["status"] in ("completed", "failed", "cancelled") or rows[0]["tries"] > attempt


def answer(kind: str, text: str, address: Address | None, in_reply_to: str | None) -> Output:
    """The row that carries `text` as an answer to a row of `kind` (the shapes of messages_out)."""
    if kind == Kind.CHAT_SDK:
        return Output(Kind.CHAT_SDK, {"markdown": text}, address, in_reply_to, ("markdown",))
    if kind == Kind.TASK and address is None:
        return Output(Kind.TASK, {"result": text, "status": "completed"}, address, in_reply_to, ("result",))
    if kind == Kind.WEBHOOK:
        response: dict[str, object] = {"response": {"status": 200, "body": text}}
        return Output(Kind.WEBHOOK, response, address, in_reply_to, ("response", "body"))
    # A system row answered in kind would be executed by the host as a request for an action.
    return Output(Kind.CHAT, {"text": text}, address, in_reply_to, ("text",))
