"""What an agent may ask of agents: that there be another one. Only an owner's word has it done."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from host import sessions as session_folders
from host.acting import ActionRefused
from host.actions.registry import ActionContext, Payload, Permission, action
from host.db import agent_groups, messaging_groups
from host.db.agent_groups import AgentGroup, AgentGroupRefused
from host.db.messaging_group_agents import SessionMode
from host.db.messaging_groups import MessagingGroup
from host.db.snapshot import TriggerRules
from host.facts import add_agent
from mailboxes.clock import to_text
from mailboxes.ids import derived_id

MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A request, parsed. `chat`: (channel type, platform id) of a chat in which the agent is to answer as well."""

    name: str
    folder: str
    chat: tuple[str, str] | None
    trigger_rules: str | None
    session_mode: SessionMode

    @classmethod
    def parse(cls, payload: Payload) -> "_Wanted":
        """Raises ActionRefused."""
        name, folder = payload.get("name"), payload.get("folder")
        if not isinstance(name, str) or not 1 <= len(name.strip()) <= MAX_NAME or not name.isprintable():
            raise ActionRefused(f"name is a text of 1 to {MAX_NAME} printable characters.")
        if not isinstance(folder, str):
            raise ActionRefused("folder is a text: small letters, digits, - and _.")
        rules = payload.get("triggerRules")
        try:
            mode = SessionMode(str(payload.get("sessionMode") or SessionMode.SHARED))
            text = None if rules is None else json.dumps(rules, ensure_ascii=False)
            TriggerRules.parse(text)
        except ValueError as error:
            raise ActionRefused(f"The agent cannot be wired so: {error}.") from None
        return cls(name.strip(), folder, _chat(payload), text, mode)


def _chat(payload: Mapping[str, object]) -> tuple[str, str] | None:
    channel, platform = payload.get("channelType"), payload.get("platformId")
    if channel is None and platform is None:
        return None
    if not isinstance(channel, str) or not isinstance(platform, str):
        raise ActionRefused("channelType and platformId belong together: the texts that name one chat.")
    return channel, platform


@action(
    "register_agent_group",
    permission=Permission.OWNER,
    by_hand="The owner writes it to this agent, or runs: host agents add NAME",
)
async def register_agent_group(context: ActionContext, payload: Payload) -> object:
    """A new agent with its folder and its chat in the terminal, answering in one more chat where `channelType` and
    `platformId` name one that the host knows: {"agent_group_id", "name", "folder"}. Routing knows it at once."""
    wanted, services = _Wanted.parse(payload), context.services
    agent_id = "a-" + derived_id(f"{context.key.session_id}\0{context.id}", "agent").replace("-", "")[:20]
    now = to_text(services.clock.now())

    def make(connection: Connection) -> AgentGroup:
        known = agent_groups.get(connection, agent_id)
        if known is not None:
            return known
        chat = _known_chat(connection, wanted.chat)
        group = add_agent(connection, services.home, wanted.name, wanted.folder, now, agent_id=agent_id)
        if chat is not None:
            session_folders.wire(
                connection, chat, group, now, trigger_rules=wanted.trigger_rules, session_mode=wanted.session_mode
            )
        return group

    try:
        group = await services.database.run(make)
    except AgentGroupRefused as refused:
        raise ActionRefused(str(refused)) from None
    await services.routing.refresh()
    return {"agent_group_id": group.id, "name": group.name, "folder": group.folder}


def _known_chat(connection: Connection, wanted: tuple[str, str] | None) -> MessagingGroup | None:
    if wanted is None:
        return None
    found = [one for one in messaging_groups.every(connection) if (one.channel_type, one.platform_id) == wanted]
    if len(found) != 1:
        raise ActionRefused(
            f"This host knows {len(found) or 'no'} chats {wanted[1]} on {wanted[0]}, and it must be one. Leave "
            "channelType and platformId out: the agent then answers in the terminal."
        )
    return found[0]


ACTIONS = (register_agent_group,)
