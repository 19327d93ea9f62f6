"""Events as text: the content that a mailbox row gets, and the form in which the spool keeps a whole event."""

import json
from collections.abc import Mapping
from dataclasses import replace

from host.channels.base import Attachment, InboundEvent, Sender
from host.db.messaging_group_agents import BusyMode
from mailboxes.rows import Address, Kind


def dump(value: Mapping[str, object]) -> str:
    """Compact JSON text, keys in their own order; half a surrogate pair (some platforms cut texts so) becomes `?`."""
    return _whole(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _whole(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _plain(text: str) -> str:
    """Text that either database can hold in a column: whole characters and no NUL."""
    return _whole(text).replace("\0", "\ufffd")


def clean(event: InboundEvent) -> InboundEvent:
    """The event with ids and names that a database can hold: from outside comes anything."""
    address, sender = event.address, event.sender
    parts = (event.event_key, address.platform_id, address.thread_id or "", sender.handle, sender.display_name or "")
    if all(part.isascii() and "\0" not in part for part in parts):
        return event
    thread = None if address.thread_id is None else _plain(address.thread_id)
    name = None if sender.display_name is None else _plain(sender.display_name)
    return replace(
        event,
        event_key=_plain(event.event_key),
        address=replace(address, platform_id=_plain(address.platform_id), thread_id=thread),
        sender=replace(sender, handle=_plain(sender.handle), display_name=name),
    )


def content_of(event: InboundEvent, busy: BusyMode = BusyMode.STEER) -> str:
    """The content of the row: exactly sender, senderId, text, attachments, isFromMe for chat (ledger R027); what the
    adapter gave, untouched, for any other kind. `attachments` is empty until host.attachments has fetched them. A chat
    where messages do not simply go into the running turn has its way of it (`busy`) in each of them, and a message of a
    platform that has ids for them its own (`messageId`), so that it can be reacted to."""
    stamp = {} if busy is BusyMode.STEER or event.kind not in {Kind.CHAT, Kind.CHAT_SDK} else {"busy": busy.value}
    if event.content is not None:
        return dump({**event.content, **stamp})
    sender = event.sender
    return dump(
        {
            **stamp,
            **({} if event.message_id is None else {"messageId": event.message_id}),
            "sender": sender.display_name or sender.handle,
            "senderId": sender.user_id(event.address.channel_type),
            "text": event.text,
            "attachments": [],
            "isFromMe": sender.is_me,
        }
    )


def to_json(event: InboundEvent) -> str:
    """The whole event."""
    parts = {
        "address": _fields(event.address),
        "sender": _fields(event.sender),
        "attachments": [_fields(attachment) for attachment in event.attachments],
    }
    return dump({**_fields(event), **parts})


def _fields(value: InboundEvent | Address | Sender | Attachment) -> dict[str, object]:
    # dataclasses.asdict copies deeply, which costs more than all else that the intake does.
    return {name: getattr(value, name) for name in value.__slots__}


def from_json(text: str) -> InboundEvent:
    """The event of `to_json`."""
    values = json.loads(text)
    return InboundEvent(
        **{
            **values,
            "address": Address(**values["address"]),
            "sender": Sender(**values["sender"]),
            "kind": Kind(values["kind"]),
            "attachments": tuple(Attachment(**attachment) for attachment in values["attachments"]),
        }
    )
