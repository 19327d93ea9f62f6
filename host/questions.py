"""Questions of agents: what a row may ask, how it looks in a chat with buttons and in one without, and which answer a
click or a typed text means. Values and decisions only; host.question_desk carries them out.

A question's id and the token of its buttons are derived from the row that asks, so a card that is sent once more after
a crash is the same card. A typed number answers questions, never an approval: that takes its button or its code.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from host.channels.base import Button, InboundEvent
from host.db import agent_groups, pending_questions, sessions
from host.db.agent_groups import AgentGroup
from host.db.messaging_groups import UnknownSenderPolicy
from host.db.pending_questions import Pending
from host.db.sessions import Session
from host.db.snapshot import RoutingSnapshot
from mailboxes.ids import derived_id
from mailboxes.rows import Kind

OPERATION = "ask_question"

MAX_OPTIONS = 20
MAX_LABEL = 200
"""Characters; platforms cut longer ones."""

DEFAULT_SECONDS = 300
MIN_SECONDS, MAX_SECONDS = 10, 24 * 3600
"""How long a question may stay open (ledger R119; host.life holds no sandbox longer for it)."""

_CLICK = re.compile(r"q:([0-9a-f]{16}):(\d{1,2})", re.ASCII)
_CODE = re.compile(r"(approve|reject)\s+([0-9a-f]{6,16})", re.ASCII | re.IGNORECASE)
_NUMBERED = re.compile(r"(?:(\d{1,3})\.)?(\d{1,2})\.?", re.ASCII)
_MENTION = re.compile(r"@\S+\s+")
_CODE_LENGTH = 6


class BadQuestion(ValueError):
    """A row asks nothing that can be shown; the text is a sentence for the agent."""


@dataclass(frozen=True, slots=True)
class Option:
    """One possible answer: `value` is for the agent, `selected` what its card says once it was chosen."""

    label: str
    value: str
    selected: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `seconds`: how long it stays open."""

    title: str
    question: str
    options: tuple[Option, ...]
    seconds: int = DEFAULT_SECONDS
    approval: bool = False

    @classmethod
    def parse(cls, content: Mapping[str, object]) -> "Question":
        """From the content of an ask_question row. Raises BadQuestion."""
        title, question = content.get("title"), content.get("question")
        if not isinstance(title, str) or not isinstance(question, str) or not (title.strip() or question.strip()):
            raise BadQuestion("A question needs a title or a text.")
        options = content.get("options")
        if not isinstance(options, list) or not 1 <= len(options) <= MAX_OPTIONS:
            raise BadQuestion(f"A question needs 1 to {MAX_OPTIONS} options.")
        if content.get("approval") is True and len(options) != len(("approve", "reject")):
            raise BadQuestion("An approval needs two options: to approve, and to reject.")
        seconds = content.get("timeout")
        if not isinstance(seconds, int | float) or isinstance(seconds, bool):
            seconds = DEFAULT_SECONDS
        return cls(
            title.strip(),
            question.strip(),
            tuple(_option(option) for option in options),
            int(min(max(seconds, MIN_SECONDS), MAX_SECONDS)),
            content.get("approval") is True,
        )

    @classmethod
    def from_json(cls, text: str) -> "Question":
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "options": tuple(Option(**option) for option in values["options"])})

    def to_json(self) -> str:
        """For the table of open questions."""
        options = [{"label": o.label, "value": o.value, "selected": o.selected} for o in self.options]
        values = {"title": self.title, "question": self.question, "options": options, "seconds": self.seconds}
        return json.dumps({**values, "approval": self.approval}, ensure_ascii=False)

    @property
    def heading(self) -> str:
        """Title and text as a card has them."""
        parts = [f"**{self.title}**" if self.title else "", self.question if self.question != self.title else ""]
        return "\n\n".join(part for part in parts if part)


def _option(given: object) -> Option:
    values = given if isinstance(given, dict) else {"label": given}
    label = values.get("label")
    if not isinstance(label, str) or not label.strip():
        raise BadQuestion("Each option of a question needs a label.")
    label = label.strip()[:MAX_LABEL]
    value, selected = values.get("value", label), values.get("selectedLabel", label)
    return Option(label, str(value), str(selected)[:MAX_LABEL])


def question_id_of(row_id: str) -> str:
    """The id of the question that a row asks. What the row itself says of it is not believed."""
    return derived_id(row_id, "question")


def answer_id_of(question_id: str) -> str:
    """The id of the row that holds the answer, or says that there will be none."""
    return derived_id(question_id, "answer")


def token_of(question_id: str) -> str:
    """What its buttons carry: short enough for every platform, and looked up in the table."""
    return derived_id(question_id, "button").replace("-", "")[:16]


def buttons_of(question: Question, token: str) -> tuple[Button, ...]:
    """One button for each option."""
    return tuple(Button(option.label, f"q:{token}:{n}") for n, option in enumerate(question.options))


def text_without_buttons(question: Question, token: str, number: int, open_numbers: Collection[int]) -> str:
    """The whole card as text. `number`: the question's own; `open_numbers`: those of the others in its chat."""
    if question.approval:
        code = token[:_CODE_LENGTH]
        return f"{question.heading}\n\nWrite `approve {code}` or `reject {code}`."
    lines = [f"{n}. {option.label}" for n, option in enumerate(question.options, start=1)]
    how = "Write the number of your answer."
    if open_numbers:
        older = " and ".join(f"{n}.1, {n}.2 ... question {n}" for n in sorted(open_numbers))
        how = f"This is question {number}: a number alone answers it. Other questions are open: {older}."
    return "\n".join([question.heading, "", *lines, "", how])


def closing_text(question: Question, end: str) -> str:
    """What a card says when it is over; `end` is the choice, or why there is none."""
    return f"{question.heading}\n\n{end}"


# -- which answer is meant


@dataclass(frozen=True, slots=True)
class Answer:
    """A question's answer, to be written once. `event` is what becomes of the row: a system row of its session."""

    pending: Pending
    question: Question
    option: Option
    session: Session
    agent_group: AgentGroup
    event: InboundEvent
    message_id: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The click changes nothing, and whoever clicked hears why: once for each `once`."""

    text: str
    once: str


def answer_to(
    connection: Connection, event: InboundEvent, snapshot: RoutingSnapshot, settled: Collection[str]
) -> Answer | Reply | None:
    """What an event means for the open questions; None for what is no answer. `settled`: the ids of those that the same
    transaction has answered already."""
    if event.sender.is_me or not event.sender.handle:
        return None
    if event.click is not None:
        return _of_click(connection, event, snapshot, settled)
    found = _of_text(connection, event, settled)
    if found is None:
        return None
    answer = _answer(connection, event, *found)
    if answer is None or not _may_answer(answer, event, snapshot):
        return None
    return answer


def _of_click(
    connection: Connection, event: InboundEvent, snapshot: RoutingSnapshot, settled: Collection[str]
) -> Answer | Reply:
    click = _CLICK.fullmatch(event.click or "")
    once = f"{(event.click or '').rpartition(':')[0]} {event.sender.user_id(event.address.channel_type)}"
    pending = pending_questions.by_token(connection, click[1]) if click else None
    if click is None or pending is None or pending.expired or pending.question_id in settled:
        return Reply("That question is closed already: it was answered, or its time is over.", f"closed {once}")
    here, there = event.address, pending.address
    if (here.channel_type, here.account_id, here.platform_id) != (
        there.channel_type,
        there.account_id,
        there.platform_id,
    ):
        return Reply("That question was asked in another chat. It can be answered only there.", f"foreign {once}")
    question = Question.from_json(pending.question)
    number = int(click[2])
    if number >= len(question.options):
        return Reply("That button is not one of the question's.", f"foreign {once}")
    answer = _answer(connection, event, pending, question, question.options[number])
    if answer is None:
        return Reply("That question is closed already: its conversation has ended.", f"closed {once}")
    if not _may_answer(answer, event, snapshot):
        return Reply("You may not answer that question. Ask the owner of this host.", f"foreign {once}")
    return answer


def _of_text(
    connection: Connection, event: InboundEvent, settled: Collection[str]
) -> tuple[Pending, Question, Option] | None:
    text = _MENTION.sub("", event.text.strip(), count=1).strip()
    if not text or len(text) > MAX_LABEL or event.kind not in {Kind.CHAT, Kind.CHAT_SDK}:
        return None
    code = _CODE.fullmatch(text)
    here = pending_questions.at(connection, event.address)
    still = [(p, Question.from_json(p.question)) for p in here if not p.expired and p.question_id not in settled]
    for pending, question in still:
        if question.approval:
            option = _of_code(code, pending, question)
        else:
            option = _chosen(text, pending, question, newest=pending is _newest(still))
        if option is not None:
            return pending, question, option
    return None


def _newest(still: Sequence[tuple[Pending, Question]]) -> Pending | None:
    """The one that a number alone answers."""
    return next((pending for pending, question in still if not question.approval), None)


def _chosen(text: str, pending: Pending, question: Question, *, newest: bool) -> Option | None:
    wanted = text.casefold()
    for option in question.options:
        if wanted in {option.label.casefold(), option.value.casefold()}:
            return option
    numbers = _NUMBERED.fullmatch(text)
    if numbers is None or not (newest if numbers[1] is None else int(numbers[1]) == pending.number):
        return None
    position = int(numbers[2])
    return question.options[position - 1] if 1 <= position <= len(question.options) else None


def _of_code(code: re.Match[str] | None, pending: Pending, question: Question) -> Option | None:
    if code is None or not pending.token.startswith(code[2].lower()):
        return None
    return question.options[0 if code[1].lower() == "approve" else 1]


def _answer(
    connection: Connection, event: InboundEvent, pending: Pending, question: Question, option: Option
) -> Answer | None:
    """None where the session is over: nobody would hear the answer."""
    session = sessions.get(connection, pending.session_id)
    group = agent_groups.get(connection, session.agent_group_id) if session is not None else None
    if session is None or group is None or session.status != "active":
        return None
    content: dict[str, object] = {
        "questionId": pending.question_id,
        "selectedOption": option.value,
        "label": option.label,
        "title": question.title,
        "question": question.question,
    }
    row = InboundEvent(event.event_key, pending.address, event.sender, kind=Kind.SYSTEM, content=content)
    return Answer(pending, question, option, session, group, row, answer_id_of(pending.question_id))


def _may_answer(answer: Answer, event: InboundEvent, snapshot: RoutingSnapshot) -> bool:
    """Whoever may talk to the agent there; for an approval, whoever may administer it."""
    sender, agent = event.sender.user_id(event.address.channel_type), answer.agent_group.id
    if answer.question.approval:
        return snapshot.may_administer(sender, agent)
    address = event.address
    chat = snapshot.chats.get((address.channel_type, address.account_id, address.platform_id))
    public = chat is not None and chat.unknown_sender_policy == UnknownSenderPolicy.PUBLIC
    return public or snapshot.is_member(sender, agent)
