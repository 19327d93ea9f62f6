"""The picture that routing decides by: everything it needs to know, in memory, so that no message asks the database.

Whoever changes chats, wirings, agents, roles or members calls `Routing.refresh()` afterwards.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

import structlog
from sqlalchemy import Connection

from host.db import (
    agent_group_members,
    agent_groups,
    messaging_group_agents,
    messaging_groups,
    sessions,
    user_roles,
    users,
)
from host.db.agent_groups import AgentGroup, AgentGroupRefused
from host.db.messaging_group_agents import BusyMode, ResponseScope, SessionMode, Wiring
from host.db.messaging_groups import MessagingGroup
from host.db.sessions import SessionKey
from host.db.user_roles import Role
from mailboxes.rows import Address

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TriggerRules:
    """The compiled trigger_rules of a wiring; None = no such rule. Senders are user ids, with or without platform."""

    pattern: re.Pattern[str] | None = None
    mention_only: bool = False
    exclude_senders: frozenset[str] = frozenset()
    include_senders: frozenset[str] | None = None

    @classmethod
    def parse(cls, text: str | None) -> "TriggerRules":
        """From the JSON text `{pattern, mentionOnly, excludeSenders, includeSenders}`.

        Raises ValueError with the reason. A key that is not one of these is refused too: a misspelt excludeSenders must
        not let everybody in.
        """
        rules = {} if text is None else json.loads(text)
        if not isinstance(rules, dict):
            raise ValueError("the trigger rules are no JSON object")  # noqa: TRY004  a value from outside
        if unknown := rules.keys() - {"pattern", "mentionOnly", "excludeSenders", "includeSenders"}:
            raise ValueError(f"there is no trigger rule {min(unknown)!r}")
        pattern, mention_only = rules.get("pattern"), rules.get("mentionOnly", False)
        if pattern is not None and not isinstance(pattern, str):
            raise ValueError("pattern is no text")
        if not isinstance(mention_only, bool):
            raise ValueError("mentionOnly is neither true nor false")  # noqa: TRY004  a value from outside
        try:
            compiled = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern is no regular expression: {error}") from None
        include = _senders(rules, "includeSenders") if "includeSenders" in rules else None
        return cls(compiled, mention_only, _senders(rules, "excludeSenders"), include)


def _senders(rules: Mapping[str, object], key: str) -> frozenset[str]:
    value = rules.get(key, [])
    if not isinstance(value, list) or not all(isinstance(sender, str) for sender in value):
        raise ValueError(f"{key} is no list of texts")
    return frozenset(value)


@dataclass(frozen=True, slots=True)
class CompiledWiring:
    """A wiring as routing uses it."""

    agent_group_id: str
    rules: TriggerRules
    scope: ResponseScope
    mode: SessionMode
    busy: BusyMode = BusyMode.STEER


@dataclass(frozen=True, slots=True)
class RoutingSnapshot:
    """What was true when it was loaded.

    chats by (channel_type, account_id, platform_id); wirings by chat id, in the order in which they are tried; roles as
    (user, agent or None = everywhere); members as (user, agent). `session_ids` and `display_names` are hints that the
    intake adds to and checks: they save a query and decide nothing.
    """

    agent_groups: Mapping[str, AgentGroup] = field(default_factory=dict)
    chats: Mapping[tuple[str, str, str], MessagingGroup] = field(default_factory=dict)
    wirings: Mapping[str, tuple[CompiledWiring, ...]] = field(default_factory=dict)
    owners: frozenset[str] = frozenset()
    admins: frozenset[tuple[str, str | None]] = frozenset()
    members: frozenset[tuple[str, str]] = frozenset()
    session_ids: dict[SessionKey, str] = field(default_factory=dict)
    display_names: dict[str, str | None] = field(default_factory=dict)

    def may_administer(self, user_id: str, agent_group_id: str) -> bool:
        """Owner, global admin, or admin of this agent."""
        return user_id in self.owners or (user_id, None) in self.admins or (user_id, agent_group_id) in self.admins

    def is_member(self, user_id: str, agent_group_id: str) -> bool:
        """Who may talk to this agent; the same as `agent_group_members.is_member`."""
        return self.may_administer(user_id, agent_group_id) or (user_id, agent_group_id) in self.members

    def busy_mode(self, agent_group_id: str, address: Address) -> BusyMode:
        """What a message from there does that comes while this agent works on others of its chat."""
        chat = self.chats.get((address.channel_type, address.account_id, address.platform_id))
        wirings = self.wirings.get(chat.id, ()) if chat is not None else ()
        found = (wiring.busy for wiring in wirings if wiring.agent_group_id == agent_group_id)
        return next(found, BusyMode.STEER)


def load(connection: Connection) -> RoutingSnapshot:
    """The snapshot of now. A wiring or agent with a broken configuration is logged and takes nothing else with it."""
    groups = {group.id: group for group in agent_groups.every(connection)}
    for group in groups.values():
        try:
            agent_groups.container_config(group)
        except AgentGroupRefused as error:
            log.error("an agent's configuration is broken", agent_group=group.id, reason=str(error))  # noqa: TRY400  the sentence says it all
    wirings: dict[str, tuple[CompiledWiring, ...]] = {}
    for wiring in messaging_group_agents.every(connection):
        compiled = _compile(wiring)
        if compiled is not None:
            wirings[wiring.messaging_group_id] = (*wirings.get(wiring.messaging_group_id, ()), compiled)
    roles = user_roles.every(connection)
    return RoutingSnapshot(
        agent_groups=MappingProxyType(groups),
        chats=MappingProxyType(
            {
                (chat.channel_type, chat.account_id, chat.platform_id): chat
                for chat in messaging_groups.every(connection)
            }
        ),
        wirings=MappingProxyType(wirings),
        owners=frozenset(role.user_id for role in roles if role.role == Role.OWNER),
        admins=frozenset((role.user_id, role.agent_group_id) for role in roles if role.role == Role.ADMIN),
        members=frozenset((member.user_id, member.agent_group_id) for member in agent_group_members.every(connection)),
        session_ids={session.key: session.id for session in sessions.active(connection)},
        display_names={user.id: user.display_name for user in users.every(connection)},
    )


def _compile(wiring: Wiring) -> CompiledWiring | None:
    try:
        return CompiledWiring(
            wiring.agent_group_id,
            TriggerRules.parse(wiring.trigger_rules),
            ResponseScope(wiring.response_scope),
            SessionMode(wiring.session_mode),
            BusyMode(wiring.busy),
        )
    except ValueError as error:
        log.error("a broken wiring is off", wiring=wiring.id, agent_group=wiring.agent_group_id, reason=str(error))  # noqa: TRY400  the sentence says it all
        return None


class _Database(Protocol):
    async def run(self, function: Callable[[Connection], T]) -> T: ...


class Routing:
    """Holds the snapshot that is in force."""

    def __init__(self, database: _Database) -> None:
        self._database = database
        self.snapshot = RoutingSnapshot()

    async def refresh(self) -> None:
        """Takes up what changed in the database; the very next decision knows it."""
        await self._database.run(self.refresh_in)

    def refresh_in(self, connection: Connection) -> None:
        """`refresh` for code that is in the database thread already."""
        self.snapshot = load(connection)

    def is_wired(self, agent_group_id: str, address: Address) -> bool:
        """Whether an agent answers in the chat of an address."""
        chat = self.snapshot.chats.get((address.channel_type, address.account_id, address.platform_id))
        wirings = self.snapshot.wirings.get(chat.id, ()) if chat is not None else ()
        return any(wiring.agent_group_id == agent_group_id for wiring in wirings)
