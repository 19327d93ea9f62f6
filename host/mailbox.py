"""The host's side of one session's mailbox: the only writer of its inbound.db.

Every call blocks and runs in a worker thread, one at a time per mailbox (`host.mailboxes` sees to that). Each does its
work in one transaction, so that a kill between two statements never shows.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from host import outbound_series, series
from host.inbound_file import InboundFile
from host.items import (
    Action,
    Change,
    Item,
    Refusal,
    SessionRef,
    TakeOver,
    action_of,
    item_of,
    system_content,
    text_of,
)
from host.judging import REPEATED, Interrupted, Spoken, Verdict, judge
from host.reader import BadRow, Snapshot
from mailboxes.crash import crash_at
from mailboxes.ids import derived_id
from mailboxes.layout import INBOUND_DB
from mailboxes.rows import AGENT, Address, Claim, ClaimState, DeliveryState, InStatus, Kind, MessageIn, MessageOut
from mailboxes.schema import IN_COLUMNS, message_in_of

_OPEN_ROWS = "status IN ('pending', 'processing')"
"""As the index of open rows says it: SQLite uses that index only where it reads these very words."""
_PROCESSING = "status='processing'"
_WANTS_A_TURN = f"{_OPEN_ROWS} AND trigger=1"
_IDS_AT_ONCE = 500


class Mailbox(InboundFile):
    """One session's mailbox as the host writes it."""

    def __init__(
        self, key: SessionRef, folder: Path, now: Callable[[], datetime], zone: Callable[[], str] = lambda: "UTC"
    ) -> None:
        """`zone`: what a time without one means, an IANA name."""
        super().__init__(folder / "inbound" / INBOUND_DB, now)
        self.key = key
        self.zone = zone

    # -- what comes in

    def put(self, rows: Sequence[MessageIn]) -> int:
        """Writes rows in order and gives each the next even seq; a row whose id is known is left as it is. Returns how
        many were new."""
        added = 0

        def work(db: sqlite3.Connection) -> None:
            nonlocal added
            added = self.insert(db, rows)

        self.write(work)
        return added

    def insert(self, db: sqlite3.Connection, rows: Iterable[MessageIn]) -> int:
        """`put` inside a transaction of `write`."""
        added = 0
        seq = db.execute("SELECT max(seq) FROM messages_in").fetchone()[0] or 0
        for row in rows:
            address = row.address
            values = (
                row.id, row.kind, row.timestamp, row.status, row.status_changed or self.stamp(), row.process_after,
                row.recurrence, row.tries,
                address and address.platform_id, address and address.channel_type, address and address.account_id,
                address and address.thread_id,
                row.content, seq + 2, row.series_id, row.slot, int(row.trigger), int(row.on_wake), row.source_session,
                row.principal,
            )  # fmt: skip
            marks = ",".join("?" * len(values))
            cursor = db.execute(f"INSERT OR IGNORE INTO messages_in ({IN_COLUMNS}) VALUES ({marks})", values)
            if cursor.rowcount:
                seq += 2
                added += 1
        return added

    def retry_message(self, message_id: str) -> bool:
        """Gives a failed message one more attempt. False where it is not a failed one."""
        changed = 0

        def work(db: sqlite3.Connection) -> None:
            nonlocal changed
            changed = db.execute(
                "UPDATE messages_in SET status='pending', status_changed=?, process_after=NULL "
                "WHERE id=? AND status='failed'",
                (self.stamp(), message_id),
            ).rowcount

        self.write(work)
        return changed > 0

    # -- what goes out

    def take_over(
        self,
        snapshot: Snapshot,
        *,
        refusal: Refusal,
        reserve: Callable[[Address], bool],
        counted: bool,
        ended: str | None = None,
    ) -> TakeOver:
        """Makes the rows of a snapshot the host's, follows the claims, and judges what was released.

        `counted` False: the host is stopping the runner, so nothing is a try. `ended`: the runner is gone, with this
        reason, so claims in processing are judged too. Everything commits at once or not at all.
        """
        taken = TakeOver(state=snapshot.state, bad_rows=snapshot.bad_rows, more=snapshot.more)
        rows = self._new_rows(snapshot.rows, taken)
        # A turn is judged by all that it said, so claims wait for the last of its rows; the caller reads on.
        claims = [] if snapshot.more else self._open_claims(snapshot.claims, ended=ended is not None)
        seen = max(self.floor, snapshot.highest_seq or 0)
        if not rows and not claims:
            self._floor = seen
            return taken

        def work(db: sqlite3.Connection) -> None:
            for row in rows:
                self._take_row(db, row, refusal, reserve, taken)
            self._follow(db, claims, counted=counted, ended=ended, taken=taken)

        crash_at("before_take_over")
        self.write(work)
        self._floor = seen
        crash_at("after_take_over")
        return taken

    def _new_rows(self, rows: Sequence[MessageOut], taken: TakeOver) -> list[MessageOut]:
        new = []
        for row in rows:
            known = self.db.execute("SELECT id FROM deliveries WHERE id=? OR seq=?", (row.id, row.seq)).fetchone()
            if known is None:
                new.append(row)
            elif known["id"] != row.id:
                taken.bad_rows += (
                    BadRow("messages_out", row.id, row.seq, f"its seq was used before, by {known['id']}"),
                )
        return new

    def _take_row(
        self,
        db: sqlite3.Connection,
        row: MessageOut,
        refusal: Refusal,
        reserve: Callable[[Address], bool],
        taken: TakeOver,
    ) -> None:
        state, error, begun = DeliveryState.QUEUED, refusal(row) if row.kind != Kind.SYSTEM else None, None
        if row.recurrence is not None and row.kind != Kind.SYSTEM and error is None:
            row, begun, error = outbound_series.begin(self, db, row)
        if row.kind == Kind.SYSTEM:
            taken.actions.append(action_of(row.id, row.in_reply_to, row.content))
        elif error is not None:
            state = DeliveryState.FAILED
            self._tell_agent(db, row, error, taken)
        elif row.address is None:
            state = DeliveryState.SENT  # of a quiet task: kept, and read with `messages show`
        elif (row.deliver_after is None or row.deliver_after <= self.stamp()) and reserve(row.address):
            state = DeliveryState.SENDING
            taken.reserved.append(row.address)
        self.insert_delivery(db, row, state, error, series_id=begun, slot=row.deliver_after if begun else None)
        if row.kind != Kind.SYSTEM and row.address and state in (DeliveryState.QUEUED, DeliveryState.SENDING):
            taken.items.append(
                Item(
                    row.id, row.address, row.kind, row.content, self.key, state, due=row.deliver_after,
                    in_reply_to=row.in_reply_to, reserved=state == DeliveryState.SENDING,
                )
            )  # fmt: skip

    def insert_delivery(
        self, db: sqlite3.Connection, row: MessageOut, state: DeliveryState, error: str | None, *,
        series_id: str | None = None, slot: str | None = None,
    ) -> None:  # fmt: skip
        """Puts a row on record, inside a transaction of `write`."""
        address = row.address
        db.execute(
            "INSERT INTO deliveries (id, seq, turn_id, in_reply_to, kind, timestamp, channel_type, account_id, "
            "platform_id, thread_id, content, deliver_after, recurrence, state, state_changed, last_error, series_id, "
            "slot) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                row.id, row.seq or None, row.turn_id, row.in_reply_to, row.kind, row.timestamp,
                address and address.channel_type, address and address.account_id, address and address.platform_id,
                address and address.thread_id, row.content, row.deliver_after, row.recurrence, state, self.stamp(),
                error, series_id, slot ) )  # fmt: skip

    def _tell_agent(self, db: sqlite3.Connection, row: MessageOut, error: str, taken: TakeOver) -> None:
        """The agent hears in its next turn that a row was not delivered: a row that wakes nobody."""
        result = {"delivery_id": row.id, "turn_id": row.turn_id, "in_reply_to": row.in_reply_to, "error": error}
        heard = self.host_row(db, row.id, "delivery-failed", row.in_reply_to, trigger=False)
        content = system_content("delivery_failed", "error", result)
        taken.written_in = self.insert(db, [replace(heard, content=content)]) > 0 or taken.written_in

    def host_row(
        self, db: sqlite3.Connection, cause: str, purpose: str, in_reply_to: str | None, *, trigger: bool
    ) -> MessageIn:
        """A system row of the host's own. Its address is that of a message which really came in (the one replied to,
        else the last): an address that only the container names must never become an origin."""
        found = db.execute(
            f"SELECT {IN_COLUMNS} FROM messages_in WHERE platform_id IS NOT NULL ORDER BY id=? DESC, seq DESC LIMIT 1",
            (in_reply_to,),
        ).fetchone()
        address = message_in_of(found).address if found else None
        return MessageIn(
            derived_id(cause, purpose), Kind.SYSTEM, self.stamp(), "{}", address, trigger=trigger,
            source_session=self.key.session_id, principal=found["principal"] if found else None,
        )  # fmt: skip

    def open_actions(self) -> list[Action]:
        """The actions that have no answer yet, in order."""
        rows = self.db.execute(
            "SELECT id, in_reply_to, content FROM deliveries WHERE kind='system' AND state='queued' ORDER BY rowid"
        )
        return [action_of(row["id"], row["in_reply_to"], row["content"]) for row in rows]

    def answer_action(self, action: Action, status: str, result: object) -> None:
        """Closes an action and writes its answer for the agent, in one commit: an action is answered once."""

        def work(db: sqlite3.Connection) -> None:
            row = self.host_row(db, action.id, "result", action.in_reply_to, trigger=True)
            self.insert(db, [replace(row, content=system_content(action.name, status, result))])
            db.execute("UPDATE deliveries SET state='sent', state_changed=? WHERE id=?", (self.stamp(), action.id))

        self.write(work)

    # -- claims

    def _open_claims(self, claims: Sequence[Claim], *, ended: bool) -> list[tuple[MessageIn, Claim]]:
        """The claims that say something new about a row that is open, with the row."""
        rows = self._open_rows_of([claim.message_id for claim in claims])
        news = []
        for claim in claims:
            row = rows.get(claim.message_id)
            if row is None or claim.attempt != row.tries:
                continue
            if claim.state == ClaimState.PROCESSING and row.status == InStatus.PROCESSING and not ended:
                continue
            news.append((row, claim))
        if ended:
            claimed = {row.id for row, _ in news}
            lost = [row for row in self.rows(f"{_PROCESSING} AND {_OPEN_ROWS}") if row.id not in claimed]
            if lost:
                turn_id = self._turn_that_answered(lost) or f"lost {lost[0].id} {lost[0].tries}"
                news += [(row, Claim(row.id, row.tries, turn_id, ClaimState.PROCESSING)) for row in lost]
        return news

    def _turn_that_answered(self, rows: Sequence[MessageIn]) -> str | None:
        """The turn of rows whose claims are lost, as far as what it said tells: a runner has one open turn at a
        time."""
        marks = ",".join("?" * len(rows))
        found = self.db.execute(
            f"SELECT turn_id FROM deliveries WHERE turn_id IS NOT NULL AND in_reply_to IN ({marks}) "
            "ORDER BY rowid DESC",
            [row.id for row in rows],
        ).fetchone()
        return None if found is None else str(found["turn_id"])

    def open_rows(self) -> dict[str, MessageIn]:
        """Every row that is pending or processing, by id, in order of seq."""
        return {row.id: row for row in self.rows(_OPEN_ROWS)}

    def _open_rows_of(self, message_ids: Sequence[str]) -> dict[str, MessageIn]:
        """Those of some messages that are open, by id: what a runner claims costs no look at all that waits."""
        found: dict[str, MessageIn] = {}
        for start in range(0, len(message_ids), _IDS_AT_ONCE):
            ids = message_ids[start : start + _IDS_AT_ONCE]
            marks = ",".join("?" * len(ids))
            rows = self.rows(f"id IN ({marks}) AND {_OPEN_ROWS}", ids)
            found.update({row.id: row for row in rows})
        return found

    def rows(self, condition: str, values: Sequence[str] = ()) -> list[MessageIn]:
        """The messages for which an SQL condition (with ? for each of `values`) holds, in order of seq."""
        rows = self.db.execute(f"SELECT {IN_COLUMNS} FROM messages_in WHERE {condition} ORDER BY +seq", values)
        return [message_in_of(row) for row in rows]

    def _follow(
        self,
        db: sqlite3.Connection,
        news: Sequence[tuple[MessageIn, Claim]],
        *,
        counted: bool,
        ended: str | None,
        taken: TakeOver,
    ) -> None:
        interrupted: dict[str, list[tuple[MessageIn, Claim]]] = {}
        for row, claim in news:
            if claim.state == ClaimState.COMPLETED:
                self._set(db, row.id, InStatus.COMPLETED, row.tries, row.process_after)
                taken.finished.append((row.id, True))
                series.finished(self, db, row, InStatus.COMPLETED, "", taken)
            elif claim.state == ClaimState.PROCESSING and ended is None:
                self._set(db, row.id, InStatus.PROCESSING, row.tries, row.process_after)
            else:
                interrupted.setdefault(claim.turn_id, []).append((row, claim))
        for turn_id, pairs in interrupted.items():
            released = next((claim for _, claim in pairs if claim.state == ClaimState.RELEASED), None)
            turn = Interrupted(
                turn_id,
                tuple(row for row, _ in pairs),
                (released.reason if released else ended) or "the turn ended without an answer.",
                self._spoken(db, turn_id),
                counted=counted,
                retryable=released is None or released.retryable,
                theirs=released is not None and bool(released.reason),
            )
            self._carry_out(db, turn, judge(turn, self._now()), taken)

    def _spoken(self, db: sqlite3.Connection, turn_id: str) -> tuple[Spoken, ...]:
        last = db.execute(
            "SELECT seq, kind, content FROM deliveries WHERE turn_id=? ORDER BY seq DESC LIMIT ?", (turn_id, REPEATED)
        ).fetchall()
        return tuple(Spoken(row["seq"], text_of(row["kind"], row["content"])) for row in reversed(last))

    def _carry_out(self, db: sqlite3.Connection, turn: Interrupted, verdict: Verdict, taken: TakeOver) -> None:
        for update in verdict.updates:
            self._set(db, update.message_id, update.status, update.tries, update.process_after)
            if update.status == InStatus.FAILED:
                taken.finished.append((update.message_id, False))
        if verdict.continuation is not None:
            taken.written_in = self.insert(db, [verdict.continuation]) > 0 or taken.written_in
            taken.carried_on += [(update.message_id, verdict.continuation.id) for update in verdict.updates]
        failed = {update.message_id for update in verdict.updates if update.status == InStatus.FAILED}
        series.judged(self, db, turn, verdict, taken)
        # Of a task that fails its series tells, and not every time.
        chats = [row for row in turn.rows if row.id in failed and not (row.series_id and row.kind == Kind.TASK)]
        addressed = [(row.address, row.id) for row in chats if row.address is not None]
        if verdict.notice is not None and addressed:
            item = self.put_notice(db, *addressed[-1], turn.turn_id, verdict.notice)
            if item is not None:
                taken.items.append(item)

    def put_notice(
        self, db: sqlite3.Connection, address: Address, in_reply_to: str | None, cause: str, text: str
    ) -> Item | None:
        """A host's own word to a chat, once per cause and message. None when it was said before."""
        notice_id = derived_id(f"{cause} {in_reply_to}", "notice")
        if db.execute("SELECT 1 FROM deliveries WHERE id=?", (notice_id,)).fetchone():
            return None
        content = json.dumps({"text": text, "notice": True}, ensure_ascii=False)
        out = MessageOut(notice_id, 0, None, in_reply_to, self.stamp(), Kind.CHAT, content, address)
        self.insert_delivery(db, out, DeliveryState.QUEUED, None)
        return Item(notice_id, address, Kind.CHAT, content, self.key, in_reply_to=in_reply_to, by_host=True)

    def _set(self, db: sqlite3.Connection, message_id: str, status: InStatus, tries: int, after: str | None) -> None:
        db.execute(
            "UPDATE messages_in SET status=?, status_changed=?, tries=?, process_after=? WHERE id=?",
            (status, self.stamp(), tries, after, message_id),
        )

    # -- when a runner never claimed anything

    def fail_start(self, reason: str, *, retryable: bool = True) -> TakeOver:
        """A sandbox ended by itself before it claimed a message: the due rows count a try, so that a runner which
        cannot work does not start for ever. Each chat whose messages fail by it hears so once."""
        due: dict[tuple[str, ...], list[MessageIn]] = {}
        for row in self.open_rows().values():
            if row.trigger and self._is_due(row):
                due.setdefault(row.origin, []).append(row)
        taken = TakeOver()

        def work(db: sqlite3.Connection) -> None:
            for rows in due.values():
                turn = Interrupted(f"start {rows[-1].tries}", tuple(rows), reason, retryable=retryable)
                self._carry_out(db, turn, judge(turn, self._now()), taken)

        if due:
            self.write(work)
        return taken

    def notice(self, cause: str, text: str) -> Item | None:
        """Tells the chat of the oldest open row something, once per cause."""
        open_with_chat = f"{_OPEN_ROWS} AND platform_id IS NOT NULL"
        row = next(iter(self.rows(f"seq = (SELECT min(seq) FROM messages_in WHERE {open_with_chat})")), None)
        if row is None or row.address is None:
            return None
        address = row.address
        item: Item | None = None

        def work(db: sqlite3.Connection) -> None:
            nonlocal item
            item = self.put_notice(db, address, row.id, cause, text)

        self.write(work)
        return item

    # -- delivery's record

    def open_items(self) -> list[Item]:
        """What is not delivered yet, in order; what was being sent when the host died is of unknown outcome now."""

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE deliveries SET state='unknown', unknown_count=unknown_count+1, state_changed=? "
                "WHERE state='sending'",
                (self.stamp(),),
            )

        if self.db.execute("SELECT 1 FROM deliveries WHERE state='sending'").fetchone():
            self.write(work)
        rows = self.db.execute(
            "SELECT * FROM deliveries WHERE state IN ('queued', 'unknown') AND kind <> 'system' "
            "AND platform_id IS NOT NULL ORDER BY rowid"
        ).fetchall()
        return [item_of(row, self.key) for row in rows]

    def record(self, item_id: str, change: Change) -> list[Item]:
        """Records how far an item has come. Returns what follows it: the next occurrence of words that recur."""
        taken = TakeOver()

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE deliveries SET state=?, state_changed=?, attempts=?, chunks_done=?, platform_ids=?, "
                "unknown_count=?, next_attempt_at=?, last_error=coalesce(?, last_error) WHERE id=?",
                (
                    change.state, self.stamp(), change.attempts, change.chunks_done,
                    json.dumps(change.platform_ids), change.unknown_count, change.next_attempt_at,
                    change.last_error, item_id ) )  # fmt: skip
            if change.state in (DeliveryState.SENT, DeliveryState.FAILED):
                series.delivered(self, db, item_id, change.state, taken)

        self.write(work, durable=change.durable)
        return taken.items

    def tell_of_failure(self, item: Item, error: str) -> Item | None:
        """The agent hears in its next turn that something it said was never delivered (fault 2), the chat by a notice:
        an item to deliver. The host's own words that fail are told to nobody."""
        found = self.db.execute("SELECT * FROM deliveries WHERE id=?", (item.id,)).fetchone()
        if found is None or item.by_host:
            return None
        row = MessageOut(item.id, 0, found["turn_id"], item.in_reply_to, found["timestamp"], item.kind, item.content)
        notice: Item | None = None

        def work(db: sqlite3.Connection) -> None:
            nonlocal notice
            self._tell_agent(db, row, error, TakeOver())
            if "operation" in json.loads(item.content) or item.address.channel_type == AGENT or found["series_id"]:
                return  # a chat misses nothing by an edit or a reaction; an agent is no chat; a task tells itself
            text = f"A message to you could not be delivered: {error.rstrip('.')}."
            notice = self.put_notice(db, item.address, item.in_reply_to, f"undelivered {item.id}", text)

        self.write(work)
        return notice

    def retry_delivery(self, delivery_id: str) -> Item | None:
        """Queues a dead letter again with a fresh count. None where it is none; what was refused was never attempted
        and stays refused."""
        found: Item | None = None

        def work(db: sqlite3.Connection) -> None:
            nonlocal found
            row = db.execute(
                "SELECT * FROM deliveries WHERE id=? AND state='failed' AND attempts + unknown_count > 0",
                (delivery_id,),
            ).fetchone()
            if row is None or row["platform_id"] is None:
                return
            db.execute(
                "UPDATE deliveries SET state='queued', attempts=0, unknown_count=0, next_attempt_at=NULL, "
                "state_changed=? WHERE id=?",
                (self.stamp(), delivery_id),
            )
            found = replace(item_of(row, self.key), state=DeliveryState.QUEUED, attempts=0, unknown_count=0, due=None)

        self.write(work)
        return found

    # -- facts

    def _is_due(self, row: MessageIn) -> bool:
        return row.process_after is None or row.process_after <= self.stamp()

    def next_due(self) -> str | None:
        """When the earliest open row wants a turn: canonical text, "" for at once, None for never."""
        if self.db.execute(f"SELECT 1 FROM messages_in WHERE {_WANTS_A_TURN} AND process_after IS NULL").fetchone():
            return ""
        row = self.db.execute(f"SELECT min(process_after) FROM messages_in WHERE {_WANTS_A_TURN}").fetchone()
        return None if row is None else row[0]

    def has_open_rows(self) -> bool:
        """Whether a message waits or is being worked on now. Asked every second: a chat may have 100,000 of them."""
        found = self.db.execute(
            f"SELECT 1 FROM messages_in WHERE {_WANTS_A_TURN} AND (process_after IS NULL OR process_after <= ?)",
            (self.stamp(),),
        ).fetchone()
        return found is not None
