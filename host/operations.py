"""Edits and reactions: what an adapter is called for, and what stands for it where a platform has no such thing."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

from host.channels.base import Capabilities, Channel, EditingChannel, Outgoing
from host.items import Item, Target
from host.presenting import split
from mailboxes.rows import Address

EDIT, REACTION = "edit", "reaction"

_EMPTIED = "\N{HORIZONTAL ELLIPSIS}"
"""What is left of a chunk whose message became shorter by an edit: it cannot be taken back everywhere."""


class CannotShow(Exception):
    """A row asks for what there is not; the text is the reason, for the agent."""


async def _nothing(_platform_ids: list[str]) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Step:
    """One call of an adapter; `outgoing` is what a platform may be asked for afterwards. `done` hears the platform's
    ids (none where only asking told that it was taken) before the step is on record: after a crash maybe once more."""

    run: Callable[[], Awaitable[list[str]]]
    outgoing: Outgoing | None = None
    done: Callable[[list[str]], Awaitable[None]] = _nothing


def sending(channel: Channel, address: Address, chunk: Outgoing) -> Step:
    """Sends one chunk."""
    return Step(lambda: channel.deliver(address, chunk), chunk)


async def edit(channel: Channel, item: Item, target: Target, values: Mapping[str, object]) -> list[Step]:
    """Each chunk of the new text into one of the old; those beyond are sent, old ones beyond are emptied. A platform
    that cannot edit gets a new message."""
    pieces = await split(str(values.get("text", "")), channel.capabilities)
    changeable = target.platform_ids if channel.capabilities.edit else ()
    session = item.session.session_id if item.session else None
    steps = []
    for number in range(max(len(pieces), len(changeable))):
        piece = pieces[number] if number < len(pieces) else _EMPTIED
        if number < len(changeable):
            steps.append(_editing(cast("EditingChannel", channel), item.address, changeable[number], piece))
        else:
            last = number == len(pieces) - 1
            chunk = Outgoing(item.id, number, piece, last=last, session=session, in_reply_to=item.in_reply_to)
            steps.append(sending(channel, item.address, chunk))
    return steps


def _editing(channel: EditingChannel, address: Address, platform_id: str, text: str) -> Step:
    async def run() -> list[str]:
        await channel.edit(address, platform_id, text)
        return [platform_id]

    return Step(run)


async def react(channel: Channel, item: Item, target: Target, values: Mapping[str, object]) -> list[Step]:
    """At the end of a message."""
    platform_id, emoji = target.platform_ids[-1], str(values.get("emoji", ""))

    async def run() -> list[str]:
        await cast("EditingChannel", channel).react(item.address, platform_id, emoji)
        return [platform_id]

    return [Step(run)]


def is_left_out(operation: str, capabilities: Capabilities) -> bool:
    """Whether a platform cannot show an operation and nothing stands for it: a reaction, where there are none."""
    return operation == REACTION and not capabilities.reactions


OPERATIONS: Mapping[str, Callable[[Channel, Item, Target, Mapping[str, object]], Awaitable[list[Step]]]] = {
    EDIT: edit,
    REACTION: react,
}
"""What a row's `operation` may ask for beside an ordinary send."""
