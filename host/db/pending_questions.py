"""Questions that were shown in a chat and wait for an answer (ledger R014): one row from the delivery of its card to
its answer, or its end.

A click finds its question by `token`, a typed answer by the chat; neither opens a mailbox. The question itself stays
here for as long as it is open, since its words are needed to tell which answer was meant.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, ForeignKey, Index, Integer, Table, Text, delete, select, update

from host.db.engine import upsert
from host.db.metadata import metadata
from mailboxes.rows import Address

pending_questions = Table(
    "pending_questions",
    metadata,
    Column("question_id", Text, primary_key=True),
    Column("session_id", Text, ForeignKey("sessions.id"), nullable=False),
    Column("message_out_id", Text, nullable=False),
    Column("platform_id", Text),
    Column("channel_type", Text),
    Column("account_id", Text),
    Column("thread_id", Text),
    Column("created_at", Text, nullable=False),
    Column("token", Text, nullable=False, unique=True),
    Column("number", Integer, nullable=False),
    Column("question", Text, nullable=False),
    Column("expires_at", Text, nullable=False),
    Column("shown_as", Text),
    Column("expired", Integer, nullable=False, server_default="0"),
)
Index("pending_questions_chat", pending_questions.c.channel_type, pending_questions.c.platform_id)


@dataclass(frozen=True, slots=True)
class Pending:
    """One open question. `question` is its JSON text, `number` what it is called in its chat while others are open
    there, `shown_as` the platform's id of its card; `expired`: its end is being written."""

    question_id: str
    session_id: str
    message_out_id: str
    platform_id: str
    channel_type: str
    account_id: str
    thread_id: str | None
    created_at: str
    token: str
    number: int
    question: str
    expires_at: str
    shown_as: str | None = None
    expired: int = 0

    @property
    def address(self) -> Address:
        """Where its card is."""
        return Address(self.channel_type, self.account_id, self.platform_id, self.thread_id)


_columns = pending_questions.c
_ORDER = (_columns.created_at.desc(), _columns.number.desc())


def add(connection: Connection, pending: Pending) -> None:
    """Records an open question; one that is known stays as it is. Raises IntegrityError for an unknown session."""
    upsert(connection, pending_questions, [{name: getattr(pending, name) for name in Pending.__slots__}])


def by_token(connection: Connection, token: str) -> Pending | None:
    """The question of a button."""
    return _one(connection.execute(select(pending_questions).where(_columns.token == token)).mappings().one_or_none())


def at(connection: Connection, address: Address) -> list[Pending]:
    """The open questions of a chat or thread, newest first."""
    rows = connection.execute(
        select(pending_questions)
        .where(
            _columns.channel_type == address.channel_type,
            _columns.account_id == address.account_id,
            _columns.platform_id == address.platform_id,
            _columns.thread_id.is_not_distinct_from(address.thread_id),
        )
        .order_by(*_ORDER)
    )
    return [Pending(**row) for row in rows.mappings()]


def every(connection: Connection) -> list[Pending]:
    """All of them, newest first."""
    return [Pending(**row) for row in connection.execute(select(pending_questions).order_by(*_ORDER)).mappings()]


def remove(connection: Connection, question_ids: Sequence[str]) -> None:
    """They are answered, or have ended."""
    if question_ids:
        connection.execute(delete(pending_questions).where(_columns.question_id.in_(question_ids)))


def expire(connection: Connection, question_id: str) -> Pending | None:
    """Closes a question to answers before its end is written; None where it was answered before."""
    row = connection.execute(select(pending_questions).where(_columns.question_id == question_id)).mappings()
    found = _one(row.one_or_none())
    if found is not None:
        connection.execute(update(pending_questions).where(_columns.question_id == question_id).values(expired=1))
    return found


def _one(row: object) -> Pending | None:
    return Pending(**row) if row else None  # type: ignore[arg-type]  # a mapping of its columns
