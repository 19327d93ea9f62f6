"""Who gets this message? Pure decisions over an event and the routing snapshot; nothing here reads or writes.

The order: a resolver names the agent and the session (the wirings by priority, unless a plugin knows better), then the
unknown-sender policy, then the gate of the administrative commands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TypeAlias

import structlog

from host.channels.base import InboundEvent
from host.db.agent_groups import AgentGroup
from host.db.messaging_group_agents import ResponseScope, SessionMode
from host.db.messaging_groups import MessagingGroup, UnknownSenderPolicy
from host.db.sessions import SessionKey
from host.db.snapshot import CompiledWiring, RoutingSnapshot, TriggerRules
from mailboxes.commands import COMMANDS, command_of
from mailboxes.rows import Kind

ENTRY_POINTS = "innkeeper.routers"

_PATTERN_CHARACTERS = 8192
"""A trigger pattern sees this much of a text: it is the owner's, the text is anybody's, and some patterns are slow."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """What a resolver says: this agent, in the session of this thread (None = the chat's) and session key."""

    agent_group_id: str
    thread_id: str | None = None
    session_key: str = ""
    trigger: bool = True


@dataclass(frozen=True, slots=True)
class Deliver:
    """The message goes to this agent group, in the session of this key; `trigger` = it starts a turn."""

    agent_group: AgentGroup
    key: SessionKey
    principal: str
    trigger: bool = True


@dataclass(frozen=True, slots=True)
class Drop:
    """The message goes nowhere, and nobody is told but the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The message goes nowhere, and the sender is told `text`."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command that the host carries out itself (mailboxes.commands); `rest` is what stands behind its word. `key`
    finds the session that it is about, which need not be there."""

    word: str
    rest: str
    agent_group: AgentGroup
    key: SessionKey
    principal: str


Decision: TypeAlias = Deliver | Drop | Refuse | Command
Resolver: TypeAlias = Callable[[InboundEvent, MessagingGroup, RoutingSnapshot], Target | Drop | None]
"""Names the target of a message, drops it, or leaves it to the next resolver (None)."""

_registered: list[Resolver] = []


def resolver(function: Resolver) -> Resolver:
    """Registers a resolver; it is asked before the wirings, after those that were registered earlier."""
    _registered.append(function)
    return function


def load_resolvers() -> tuple[Resolver, ...]:
    """Imports the plugins of the entry-point group `innkeeper.routers`; all that is registered, the wirings last."""
    for entry_point in entry_points(group=ENTRY_POINTS):
        entry_point.load()
    return (*_registered, by_wiring)


def is_triggered(event: InboundEvent) -> bool:
    """Whether a message is meant for the agent: it mentions it, or nobody else is there to be meant."""
    return event.mentioned or not event.is_group


def _names(senders: frozenset[str], user_id: str) -> bool:
    return user_id in senders or user_id.partition(":")[2] in senders


def rules_accept(rules: TriggerRules, event: InboundEvent) -> bool:
    """Whether every rule that is there holds."""
    sender = event.sender.user_id(event.address.channel_type)
    return (
        not _names(rules.exclude_senders, sender)
        and (rules.include_senders is None or _names(rules.include_senders, sender))
        and (not rules.mention_only or is_triggered(event))
        and (rules.pattern is None or rules.pattern.search(event.text[:_PATTERN_CHARACTERS]) is not None)
    )


def scope_accepts(wiring: CompiledWiring, event: InboundEvent, snapshot: RoutingSnapshot) -> bool:
    """Whether the response scope lets the message in (the trigger rules are another matter)."""
    match wiring.scope:
        case ResponseScope.ALL:
            return True
        case ResponseScope.TRIGGERED:
            return is_triggered(event)
        case ResponseScope.ALLOWLISTED:
            sender = event.sender.user_id(event.address.channel_type)
            listed = wiring.rules.include_senders is not None and _names(wiring.rules.include_senders, sender)
            return listed or snapshot.is_member(sender, wiring.agent_group_id)


def thread_of(event: InboundEvent, mode: SessionMode) -> str | None:
    """The thread that parts sessions. An adapter whose top-level messages open threads (Slack) gives such a message
    its own id as thread, so that it and the answers to it share a session."""
    return event.address.thread_id if mode is SessionMode.PER_THREAD else None


def by_wiring(event: InboundEvent, chat: MessagingGroup, snapshot: RoutingSnapshot) -> Target | Drop | None:
    """The built-in resolver: the first wiring of the chat, by priority, whose rules and scope accept the message."""
    wirings = snapshot.wirings.get(chat.id, ())
    for wiring in wirings:
        if rules_accept(wiring.rules, event) and scope_accepts(wiring, event, snapshot):
            return Target(wiring.agent_group_id, thread_of(event, wiring.mode))
    return Drop("no agent of this chat answers such a message" if wirings else "no agent answers in this chat")


def decide(event: InboundEvent, snapshot: RoutingSnapshot, resolvers: Sequence[Resolver] = (by_wiring,)) -> Decision:
    """Where a message goes. Raises nothing: a resolver that fails is logged and passed over."""
    if event.sender.is_me:
        return Drop("the bot's own message")
    if not event.sender.handle:
        return Drop("it names no sender")
    address = event.address
    chat = snapshot.chats.get((address.channel_type, address.account_id, address.platform_id))
    if chat is None:
        return Drop("this chat is not known")
    if event.click is not None:
        return _of_click(event, chat, snapshot)
    target = _resolve(event, chat, snapshot, resolvers)
    if isinstance(target, Drop):
        return target
    agent = snapshot.agent_groups.get(target.agent_group_id)
    if agent is None:
        return Drop(f"there is no agent group {target.agent_group_id}")
    sender = event.sender.user_id(address.channel_type)
    if not snapshot.is_member(sender, agent.id) and chat.unknown_sender_policy != UnknownSenderPolicy.PUBLIC:
        waits = chat.unknown_sender_policy == UnknownSenderPolicy.REQUEST_APPROVAL
        return Drop("the sender is not known and needs an approval" if waits else "the sender is not known")
    word = command_of(event.text) if event.kind in {Kind.CHAT, Kind.CHAT_SDK} else None
    command = COMMANDS.get(word or "")
    if command is not None and command.admin and not snapshot.may_administer(sender, agent.id):
        return Refuse(f"{word} needs an owner or an admin of {agent.name}. Ask one of them.")
    key = SessionKey(agent.id, chat.id, target.thread_id, target.session_key)
    if word is not None and command is not None and command.by_host:
        return Command(word, event.text.partition(" ")[2].strip(), agent, key, sender)
    return Deliver(agent, key, sender, target.trigger)


STOP_BUTTON = "s:"
"""What the data of a Stop button begins with; the id of the session follows."""


def _of_click(event: InboundEvent, chat: MessagingGroup, snapshot: RoutingSnapshot) -> Decision:
    """A button that is no question's (host.questions): Stop."""
    session_id = (event.click or "").removeprefix(STOP_BUTTON)
    key = next((key for key, known in snapshot.session_ids.items() if known == session_id), None)
    agent = snapshot.agent_groups.get(key.agent_group_id) if key is not None else None
    if key is None or agent is None or key.messaging_group_id != chat.id:
        return Refuse("That button does nothing any more.")
    sender = event.sender.user_id(event.address.channel_type)
    if not snapshot.is_member(sender, agent.id) and chat.unknown_sender_policy != UnknownSenderPolicy.PUBLIC:
        return Refuse(f"You may not stop {agent.name} here.")
    return Command("/stop", "", agent, key, sender)


def _resolve(
    event: InboundEvent, chat: MessagingGroup, snapshot: RoutingSnapshot, resolvers: Sequence[Resolver]
) -> Target | Drop:
    for ask in resolvers:
        try:
            answer = ask(event, chat, snapshot)
        except Exception:
            log.exception("a resolver failed; the next one is asked", resolver=repr(ask))
            continue
        if answer is not None:
            return answer
    return Drop("nobody knows who answers in this chat")
