"""Where questions are shown, answered and ended while the host runs.

The row of an open question is there from the moment at which the platform has taken its card, and goes in the
transaction that takes the answer in (host.intake), or after its end was written. The answer row has an id of its own
derived from the question, so that however an answer and the end of the time meet, the agent hears one thing once.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import structlog
from sqlalchemy import Connection

from host.channels.base import Channel, EditingChannel, InboundEvent, NotSent, Outgoing
from host.db import ingest_spool, pending_questions, sessions
from host.db.engine import CentralDatabase
from host.db.pending_questions import Pending
from host.db.snapshot import RoutingSnapshot
from host.items import Item, SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from host.operations import CannotShow, Step, sending
from host.presenting import split
from host.questions import (
    Answer,
    BadQuestion,
    Question,
    Reply,
    answer_id_of,
    answer_to,
    buttons_of,
    closing_text,
    question_id_of,
    text_without_buttons,
    token_of,
)
from mailboxes import clock as clocks
from mailboxes.crash import crash_at
from mailboxes.rows import Address, Kind, MessageIn

LOOK_SECONDS = 1.0
"""How late the end of a question may be."""

SHOWN_SECONDS = 10.0
"""How long a click waits for the record of the card that it came from."""

COURTESY_SECONDS = 10.0
"""What a platform gets to show how a question ended: the answer does not hang on that."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Write = Callable[[SessionRef, Sequence[MessageIn]], Awaitable[None]]
"""Puts rows into a session's mailbox, then rings or wakes it."""


class QuestionDesk:
    """See the module. `write` puts the row that ends a question."""

    def __init__(
        self,
        database: CentralDatabase,
        pool: MailboxPool,
        channels: Mapping[tuple[str, str], Channel],
        clock: clocks.Clock,
        write: Write,
    ) -> None:
        self._database = database
        self._pool = pool
        self._channels = channels
        self._clock = clock
        self._write = write
        self._open: dict[str, Pending] = {}
        self._chats: frozenset[Address] = frozenset()
        self._showing: dict[str, asyncio.Event] = {}
        self._courtesies: set[asyncio.Task[None]] = set()

    async def recover(self) -> None:
        """Takes up what was open when an earlier host stopped."""
        self._know(await self._database.run(pending_questions.every))

    async def close(self) -> None:
        """Leaves what is open open."""
        for task in self._courtesies:
            task.cancel()
        await asyncio.gather(*self._courtesies, return_exceptions=True)

    def _know(self, added: Sequence[Pending] = (), gone: Sequence[str] = ()) -> None:
        for pending in added:
            self._open[pending.question_id] = pending
        for question_id in gone:
            self._open.pop(question_id, None)
        self._chats = frozenset(pending.address for pending in self._open.values())

    # -- delivery asks

    async def present(self, channel: Channel, item: Item) -> list[Step]:
        """The steps that show an item's question; none where it was answered already (its card went out before a
        crash). Raises CannotShow."""
        if item.session is None:
            raise CannotShow("Only a session asks questions.")
        try:
            question = Question.parse(json.loads(item.content))
        except BadQuestion as error:
            raise CannotShow(str(error)) from None
        question_id = question_id_of(item.id)
        if item.unknown_count and await self._is_answered(item.session, question_id):
            return []
        token = token_of(question_id)
        if channel.capabilities.buttons:
            text, buttons = question.heading, buttons_of(question, token)
        else:
            text, buttons = text_without_buttons(question, token, *self._number(question_id, item.address)), ()
        pieces = await split(text, channel.capabilities)
        session = item.session.session_id
        chunks = [
            Outgoing(item.id, n, piece, last=False, session=session, in_reply_to=item.in_reply_to)
            for n, piece in enumerate(pieces)
        ]
        deadline = clocks.later(self._clock.now(), question.seconds)
        card = replace(chunks.pop(), last=True, buttons=buttons, asks=True)
        return [*(sending(channel, item.address, chunk) for chunk in chunks), self._card(channel, item, card, deadline)]

    def _card(self, channel: Channel, item: Item, card: Outgoing, deadline: str) -> Step:
        token = token_of(question_id_of(item.id))

        async def show() -> list[str]:
            if deadline <= clocks.to_text(self._clock.now()):
                raise NotSent("nobody was there to see the question before its time was over", permanent=True)
            shown = self._showing[token] = asyncio.Event()
            try:
                return await channel.deliver(item.address, card)
            except BaseException:
                self._showing.pop(token, None)
                shown.set()
                raise

        return Step(show, card, lambda platform_ids: self._shown(item, platform_ids))

    async def _shown(self, item: Item, platform_ids: Sequence[str]) -> None:
        """The platform has taken the card: from now on it can be answered."""
        assert item.session is not None
        key, question_id = item.session, question_id_of(item.id)
        token, question = token_of(question_id), Question.parse(json.loads(item.content))
        number, _ = self._number(question_id, item.address)
        now, to = self._clock.now(), item.address
        pending = Pending(
            question_id, key.session_id, item.id, to.platform_id, to.channel_type, to.account_id, to.thread_id,
            clocks.to_text(now), token, number, question.to_json(), clocks.later(now, question.seconds),
            platform_ids[-1] if platform_ids else None,
        )  # fmt: skip
        try:
            await self._database.run(lambda connection: pending_questions.add(connection, pending))
            crash_at("after_question")
            if item.unknown_count and await self._is_answered(key, question_id):
                await self._forget(question_id)
            else:
                self._know([pending])
        finally:
            if showing := self._showing.pop(token, None):
                showing.set()

    def _number(self, question_id: str, address: Address) -> tuple[int, list[int]]:
        """The number of a question in its chat, and those of the others that are open there."""
        others = {p.number for p in self._open.values() if p.address == address and p.question_id != question_id}
        known = self._open.get(question_id)
        number = known.number if known is not None else max(others, default=0) + 1
        return number, sorted(others)

    async def _is_answered(self, key: SessionRef, question_id: str) -> bool:
        """The spool first: an answer is in the mailbox before it leaves the spool."""
        answer_id = answer_id_of(question_id)
        if await self._database.run(lambda connection: ingest_spool.holds(connection, answer_id)):
            return True
        return await self._pool.call(key, lambda mailbox: mailbox.status_of(answer_id) is not None)

    async def _forget(self, question_id: str) -> None:
        await self._database.run(lambda connection: pending_questions.remove(connection, [question_id]))
        self._know(gone=[question_id])

    # -- intake asks

    async def until_shown(self, events: Sequence[InboundEvent]) -> None:
        """A person may click before we have written down that the card is there."""
        for event in events:
            showing = self._showing.get((event.click or "").split(":")[1]) if _is_answer(event) else None
            if showing is not None:
                sleeper = asyncio.ensure_future(self._clock.sleep(SHOWN_SECONDS))
                waiter = asyncio.ensure_future(showing.wait())
                await asyncio.wait((sleeper, waiter), return_when=asyncio.FIRST_COMPLETED)
                sleeper.cancel()
                waiter.cancel()

    def answer_to(
        self, connection: Connection, event: InboundEvent, snapshot: RoutingSnapshot, settled: Sequence[str]
    ) -> Answer | Reply | None:
        """What an event means for the open questions. In the database thread; most events cost a look at a set."""
        if _is_answer(event) or (event.click is None and event.address in self._chats):
            return answer_to(connection, event, snapshot, settled)
        return None

    def answered(self, answer: Answer) -> None:
        """An answer is committed: its card says so."""
        self._know(gone=[answer.pending.question_id])
        name = answer.event.sender.display_name
        by = f" ({name})" if name and answer.pending.channel_type != "terminal" else ""
        self._show_end(answer.pending, f"→ {answer.option.selected}{by}")

    def _show_end(self, pending: Pending, end: str) -> None:
        channel = self._channels.get((pending.channel_type, pending.account_id))
        if channel is None or not channel.capabilities.edit or pending.shown_as is None:
            return
        text = closing_text(Question.from_json(pending.question), end)
        edit = cast("EditingChannel", channel).edit(pending.address, pending.shown_as, text)
        task = asyncio.create_task(_courteously(edit))
        self._courtesies.add(task)
        task.add_done_callback(self._courtesies.discard)

    # -- the clock

    async def run(self) -> None:
        """Ends questions whose time is over, for ever."""
        while True:
            await self.tick()
            await self._clock.sleep(LOOK_SECONDS)

    async def tick(self) -> None:
        """Ends what is due now."""
        now = clocks.to_text(self._clock.now())
        for pending in [p for p in self._open.values() if p.expired or p.expires_at <= now]:
            try:
                await self._end(pending)
            except Exception:  # one question's damaged mailbox holds up no other; it is tried again
                log.exception("the end of a question could not be written", session=pending.session_id)

    async def _end(self, pending: Pending) -> None:
        found = await self._database.run(lambda connection: _expire(connection, pending.question_id))
        if found is None:  # answered at the last moment
            self._know(gone=[pending.question_id])
            return
        pending, key = found
        crash_at("after_expire")
        if key is not None:
            content = json.dumps({"questionId": pending.question_id, "error": "expired", **_said(pending)})
            cause = await self._pool.call(key, lambda mailbox: _principal(mailbox, pending.message_out_id))
            row = MessageIn(
                answer_id_of(pending.question_id), Kind.SYSTEM, clocks.to_text(self._clock.now()), content,
                pending.address, principal=cause,
            )  # fmt: skip
            await self._write(key, [row])
        await self._forget(pending.question_id)
        self._show_end(pending, "Nobody answered in time.")

    def open(self) -> list[Pending]:
        """What is open, newest first."""
        return sorted(self._open.values(), key=lambda pending: pending.created_at, reverse=True)


def _is_answer(event: InboundEvent) -> bool:
    return event.click is not None and event.click.startswith("q:")


def _said(pending: Pending) -> dict[str, str]:
    question = Question.from_json(pending.question)
    return {"title": question.title, "question": question.question}


def _expire(connection: Connection, question_id: str) -> tuple[Pending, SessionRef | None] | None:
    pending = pending_questions.expire(connection, question_id)
    if pending is None:
        return None
    session = sessions.get(connection, pending.session_id)
    live = session is not None and session.status == "active"
    return pending, SessionRef(session.agent_group_id, session.id) if session is not None and live else None


def _principal(mailbox: Mailbox, delivery_id: str) -> str | None:
    """Who caused the row that asked."""
    row = mailbox.db.execute(
        "SELECT principal FROM messages_in WHERE id = (SELECT in_reply_to FROM deliveries WHERE id = ?)",
        (delivery_id,),
    ).fetchone()
    return None if row is None else row["principal"]


async def _courteously(edit: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(COURTESY_SECONDS):
            await edit
    except Exception as error:  # noqa: BLE001  a courtesy: the answer counts whatever the platform says to this
        log.info("the end of a question could not be shown", reason=f"{type(error).__name__}: {error}")
