"""The way between agents: a channel like any other, whose chats are sessions of this host.

So delivery's record, order and back-off serve it, and a row goes on exactly once: the row that the other agent gets has
an id that follows from the delivery's. Who may write to whom is decided here, at the moment of writing: a grant of the
owner (agent_destinations), or an answer to a session that wrote first. Sender and principal are the host's word.
"""

import asyncio
import json
import os
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from host import event_text
from host import sessions as session_folders
from host.channels.base import Accept, Capabilities, Health, NotSent, Outgoing, SentFile
from host.db import agent_destinations, agent_groups, sessions
from host.db.agent_groups import AgentGroup
from host.db.engine import CentralDatabase
from host.db.sessions import Session, SessionKey
from host.file_names import safe_name
from host.home import Home
from host.items import InboundHeld, Item, SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from mailboxes.clock import Clock, later, to_text
from mailboxes.ids import derived_id
from mailboxes.layout import FILES
from mailboxes.limits import MAX_CONTENT_BYTES
from mailboxes.rows import AGENT, Address, Kind, MessageIn
from mailboxes.schema import IN_COLUMNS, message_in_of

MAX_HOPS = 20
"""How often agents may answer each other without a person in between."""

WINDOW_SECONDS = 600.0
MAX_BETWEEN_SESSIONS = 60
MAX_BETWEEN_AGENTS = 600
"""Messages that go to and fro between two sessions, and between two agents, within WINDOW_SECONDS: a bound that holds
whatever a sandbox says about what it answers."""

ANSWER_SECONDS = 7 * 24 * 3600.0
"""For so long after a session's last message the agent that got it may write to it without a grant."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Post(Protocol):
    """What is asked of host.postmaster.Postmaster."""

    async def put(self, key: SessionRef, rows: Sequence[MessageIn], provision: Callable[[], None]) -> None:
        """Writes rows into a session's mailbox, then rings or wakes it."""
        ...


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why a session writes. `hops`: how many messages of agents led here; `answers`: the session that it writes to
    wrote to it before; `request`: the delivery that it answers now, where that session made it."""

    principal: str | None
    hops: int
    answers: bool
    request: str | None


@dataclass(frozen=True, slots=True)
class _Target:
    group: AgentGroup
    session: Session

    @property
    def key(self) -> SessionRef:
        return SessionRef(self.session.agent_group_id, self.session.id)


class AgentMail:
    """Implements host.channels.base.Channel. `say` queues what the host itself has to say."""

    channel_type = AGENT
    account_id = ""
    capabilities = Capabilities(max_text=MAX_CONTENT_BYTES, files=True, attaches=True)

    def __init__(
        self,
        home: Home,
        database: CentralDatabase,
        pool: MailboxPool,
        post: Post,
        clock: Clock,
        say: Callable[[Iterable[Item]], None],
    ) -> None:
        self._home = home
        self._database = database
        self._pool = pool
        self._post = post
        self._clock = clock
        self._say = say
        self._limit = _Limit(clock)

    async def setup(self, accept: Accept, attached: Callable[[Address], None]) -> None:
        """Nothing comes in from outside."""

    async def teardown(self) -> None:
        """Nothing of it runs by itself."""

    def health(self) -> Health:
        """It stands and falls with the host."""
        return Health(healthy=True)

    async def typing(self, address: Address, active: bool) -> None:
        """Agents see no signs."""

    async def was_sent(self, address: Address, outgoing: Outgoing) -> bool | None:
        """Whether the other session has it."""
        sender = await self._sender(outgoing)
        if sender is None:
            return None
        target = await self._database.run(lambda c: _find(c, sender, address, create_at=None))
        if isinstance(target, str):
            return False
        row_id = _row_id(outgoing)
        return await self._pool.call(target.key, lambda box: box.exists() and box.status_of(row_id) is not None)

    async def deliver(self, address: Address, outgoing: Outgoing) -> list[str]:
        """Writes it into the other session's mailbox; the id of the row there. Raises NotSent."""
        sender = await self._sender(outgoing)
        if sender is None:
            raise NotSent("its session is not here any more", permanent=True)
        try:
            return [await self._pass_on(sender, address, outgoing)]
        except InboundHeld:
            raise NotSent("the other agent's mailbox could not be written") from None
        except (OSError, sqlite3.Error, SQLAlchemyError) as error:
            # Doing it twice is doing it once, so whatever broke on the way is not sent.
            raise NotSent(f"the other agent's mailbox could not be written ({error})") from error

    async def _pass_on(self, sender: Session, address: Address, outgoing: Outgoing) -> str:
        own = SessionRef(sender.agent_group_id, sender.id)
        cause = await self._pool.call(own, lambda box: _cause_of(box, outgoing.in_reply_to, address))
        now = to_text(self._clock.now())

        def decide(connection: Connection) -> tuple[AgentGroup | None, _Target | str]:
            """In one transaction: who may, and where to."""
            group = agent_groups.get(connection, sender.agent_group_id)
            granted = agent_destinations.is_granted(connection, sender.agent_group_id, address.platform_id)
            if not (granted or cause.answers or outgoing.notice):
                return group, "this agent may not write to that agent; its owner can allow it"
            target = _find(connection, sender, address, create_at=now)
            if isinstance(target, _Target):
                sessions.touch(connection, [target.session.id], now)
            return group, target

        group, target = await self._database.run(decide)
        if isinstance(target, str) or group is None:
            raise NotSent(target if isinstance(target, str) else "its agent is not here any more", permanent=True)
        if not outgoing.notice:
            await self._refuse_ping_pong(own, target, cause)
        back = await self._pool.call(target.key, lambda box: _asked_from(box, cause.request))
        row = await self._row(group, sender, target, outgoing, cause, back or Address(AGENT, "", group.id, sender.id))
        await self._post.put(target.key, [row], self._provisioner(target))
        return row.id

    async def _row(
        self, group: AgentGroup, sender: Session, target: _Target, outgoing: Outgoing, cause: _Cause, back: Address
    ) -> MessageIn:
        """What the other session gets, `back` being where its answer goes."""
        row_id, hops = _row_id(outgoing), cause.hops + 1
        if outgoing.notice:
            told = {"agent": group.name, "agent_group_id": group.id, "text": outgoing.text}
            values = {"action": "message_from_agent", "status": "error", "result": told, "hops": hops}
            kind, content = Kind.SYSTEM, event_text.dump(values)
        else:
            files = await asyncio.to_thread(self._hand_over, target, row_id, outgoing.files) if outgoing.files else []
            kind = Kind.CHAT
            content = event_text.dump(
                {
                    "sender": group.name,
                    "senderId": f"{AGENT}:{group.id}",
                    "text": outgoing.text,
                    "attachments": files,
                    "isFromMe": False,
                    "hops": hops,
                    "request": outgoing.delivery_id,
                }
            )
        return MessageIn(
            row_id,
            kind,
            to_text(self._clock.now()),
            content,
            back,
            source_session=sender.id,
            principal=cause.principal,
        )

    def _provisioner(self, target: _Target) -> Callable[[], None]:
        def provision() -> None:
            session_folders.provision(self._home, target.session, target.group)

        return provision

    async def _sender(self, outgoing: Outgoing) -> Session | None:
        session_id = outgoing.session
        return None if session_id is None else await self._database.run(lambda c: sessions.get(c, session_id))

    def _hand_over(self, target: _Target, row_id: str, files: Sequence[SentFile]) -> list[dict[str, object]]:
        """Copies files into the other session's inbound/files/<row id>/, whole or not at all; their entries in the
        message. Blocks."""
        names = [f"{number}-{safe_name(file.name, file.type)}" for number, file in enumerate(files, 1)]
        key = target.key
        inbound = session_folders.session_folder(self._home, key.agent_group_id, key.session_id) / "inbound" / FILES
        if not inbound.exists():
            self._provisioner(target)()
        if not (inbound / row_id).exists():
            building = inbound / f".{row_id}.new"
            shutil.rmtree(building, ignore_errors=True)  # of a host that died here
            building.mkdir(mode=0o700)
            gid = session_folders.owner_of(target.group).gid
            for file, name in zip(files, names, strict=True):
                shutil.copyfile(file.path, building / name)
                _share_to_read(building / name, gid, 0o640)
            _share_to_read(building, gid, 0o750)
            building.rename(inbound / row_id)
            _sync(inbound)
        return [
            {"name": file.name, "type": file.type, "size": file.size, "file": name}
            for file, name in zip(files, names, strict=True)
        ]

    # -- when they do not come to an end

    async def _refuse_ping_pong(self, own: SessionRef, target: _Target, cause: _Cause) -> None:
        reason: str | None
        if cause.hops >= MAX_HOPS:
            reason = f"agents have answered each other {MAX_HOPS} times without a person in between"
        elif (reason := self._limit.over(own, target.key)) is None:
            return
        log.warning("agents that write to each other were stopped", session=own.session_id, reason=reason)
        text = f"I stopped agents that write to each other: {reason}. Write to me if they are to go on."
        for key in (own, target.key):  # the first of the two that talks with a person
            told, item = await self._pool.call(key, lambda box: _notice(box, target.key.agent_group_id, text))
            self._say([item] if item else [])
            if told:
                break
        raise NotSent(reason, permanent=True)


class _Limit:
    """How much goes between two sessions and between two agents, in memory."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent: dict[frozenset[SessionRef] | frozenset[str], deque[float]] = {}

    def over(self, one: SessionRef, other: SessionRef) -> str | None:
        """Counts one more message, or says why it is one too many."""
        now = self._clock.monotonic()
        pairs = (
            (frozenset((one, other)), MAX_BETWEEN_SESSIONS, "two sessions of agents"),
            (frozenset((one.agent_group_id, other.agent_group_id)), MAX_BETWEEN_AGENTS, "two agents"),
        )
        for pair in [pair for pair, times in self._sent.items() if times[-1] <= now - WINDOW_SECONDS]:
            del self._sent[pair]
        for pair, most, who in pairs:
            times = self._sent.get(pair, deque())
            while times and times[0] <= now - WINDOW_SECONDS:
                times.popleft()
            if len(times) >= most:
                return f"{who} have sent each other {most} messages within {WINDOW_SECONDS / 60:g} minutes"
        for pair, _, _ in pairs:
            self._sent.setdefault(pair, deque()).append(now)
        return None


def _row_id(outgoing: Outgoing) -> str:
    """Of the session, too: ids of deliveries are chosen by sandboxes, and another may choose the same."""
    return derived_id(f"{outgoing.session}\0{outgoing.delivery_id}\0{outgoing.chunk}", "agent message")


def _find(connection: Connection, sender: Session, address: Address, create_at: str | None) -> _Target | str:
    """The session that an address means, or why there is none, as the end of a sentence. Without a thread it is the one
    that the sender's agent has there; `create_at`: it is made then, where there is none."""
    group = agent_groups.get(connection, address.platform_id)
    if group is None:
        return f"there is no agent {address.platform_id!r}"
    if address.thread_id is None:
        key = SessionKey(group.id, session_key=f"{AGENT}:{sender.agent_group_id}")
        found = sessions.find(connection, key)
        if found is None and create_at is not None:
            found = sessions.find_or_create(connection, key, create_at)
    else:
        found = sessions.get(connection, address.thread_id)
        if found is not None and (found.agent_group_id != group.id or found.status != "active"):
            found = None
    if found is None:
        return f"the agent {group.name} has no open session {address.thread_id or ''}".rstrip()
    if found.id == sender.id:
        return "a session cannot write to itself"
    return _Target(group, found)


def _cause_of(mailbox: Mailbox, in_reply_to: str | None, address: Address) -> _Cause:
    """What the sender's mailbox tells about a message that it sends: its word on what it answers counts only as far as
    there is such a message."""
    answered = mailbox.rows("id = ?", [in_reply_to]) if in_reply_to is not None else []
    open_rows = [] if answered else mailbox.rows("status = 'processing'")
    row = next(iter(reversed(answered or open_rows)), None) or _newest(mailbox, "1")
    other, since = address.thread_id, later(mailbox.now(), -ANSWER_SECONDS)
    asked = other is not None and _newest(mailbox, "source_session = ? AND timestamp > ?", other, since)
    answers = bool(asked) and other != mailbox.key.session_id
    if row is None:
        return _Cause(None, 0, answers, None)
    request = _stamps(row).get("request") if answers and row.source_session == other else None
    return _Cause(row.principal, _hops_of(mailbox, row), answers, request if isinstance(request, str) else None)


def _asked_from(mailbox: Mailbox, request: str | None) -> Address | None:
    """Where an agent was asked to ask: the chat of the message that led to its request. The answer belongs there and
    not to whoever gave it, or two agents would thank each other for ever."""
    if request is None or not mailbox.exists():
        return None
    found = mailbox.db.execute(
        "SELECT m.id FROM deliveries d JOIN messages_in m ON m.id = d.in_reply_to WHERE d.id = ?", (request,)
    ).fetchone()
    return mailbox.rows("id = ?", [found["id"]])[0].address if found else None


def _newest(mailbox: Mailbox, condition: str, *values: object) -> MessageIn | None:
    row = mailbox.db.execute(
        f"SELECT {IN_COLUMNS} FROM messages_in WHERE {condition} ORDER BY seq DESC LIMIT 1",  # noqa: S608  our own words
        values,
    ).fetchone()
    return None if row is None else message_in_of(row)


def _stamps(row: MessageIn) -> dict[str, object]:
    """What this module has put into a row's content. A person's chat row cannot have it: its keys are the host's."""
    values = json.loads(row.content) if row.kind in (Kind.CHAT, Kind.SYSTEM) else {}
    return values if isinstance(values, dict) else {}


def _hops_of(mailbox: Mailbox, row: MessageIn) -> int:
    """0 for what a person or a task caused. Another word of the host's (the result of an action) counts as what came
    before it from the same place."""
    if row.kind == Kind.SYSTEM and "hops" not in _stamps(row) and row.address is not None:
        a = row.address
        where = "channel_type = ? AND account_id = ? AND platform_id = ? AND thread_id IS ? AND seq < ? AND kind <> ?"
        values = (a.channel_type, a.account_id, a.platform_id, a.thread_id, row.seq, Kind.SYSTEM)
        row = _newest(mailbox, where, *values) or row
    hops = _stamps(row).get("hops", 0)
    return hops if isinstance(hops, int) else 0


def _notice(mailbox: Mailbox, about: str, text: str) -> tuple[bool, Item | None]:
    """Whether a person talks with a session, and what they are told: once, until they write again."""
    row = _newest(mailbox, "platform_id IS NOT NULL AND source_session IS NULL") if mailbox.exists() else None
    if row is None or row.address is None:
        return False, None
    address, said = row.address, list[Item | None]()
    mailbox.write(lambda db: said.append(mailbox.put_notice(db, address, row.id, f"ping-pong {about}", text)))
    return True, said[0]


def _share_to_read(path: Path, gid: int | None, mode: int) -> None:
    """For a path that no sandbox has seen yet: the group of the agent's sandboxes may read it, nobody else."""
    if gid is not None:
        os.chown(path, -1, gid, follow_symlinks=False)
    path.chmod(mode if gid is not None else mode & 0o700)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
