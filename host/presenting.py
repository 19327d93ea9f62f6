"""How a row looks on a platform: its chunks, and what stands for what the platform cannot show (ledger R137, R138)."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from host.channels.base import Capabilities, Outgoing, SentFile
from host.items import Item, text_of
from host.splitting import split_text

_QUICKLY_SPLIT = 16_384
"""Characters that are split on the event loop; a longer text goes to a thread."""

_CARD_TEXTS = ("title", "subtitle", "text", "content", "label", "value", "url")
_CARD_PARTS = ("children", "fields", "rows", "actions")
_MAX_CARD_PARTS = 200


async def present(capabilities: Capabilities, item: Item, files: Sequence[SentFile]) -> list[Outgoing]:
    """The chunks of an item that is no operation, in the order in which they are sent. `files`: those that were taken
    over with it and are still here."""
    content = json.loads(item.content)
    shown = tuple(files) if capabilities.files else ()
    text = _words(item, content, {file.name for file in shown})
    card = content.get("card")
    if isinstance(card, dict) and capabilities.cards:
        chunks = [Outgoing(item.id, 0, text, card=card)]
    else:
        pieces = await split(text or _lines_of(card), capabilities)
        chunks = [Outgoing(item.id, number, piece) for number, piece in enumerate(pieces)]
    if shown and capabilities.attaches:
        last = chunks.pop() if chunks else Outgoing(item.id, 0, "")
        chunks.append(replace(last, files=shown))
    elif shown:
        chunks += [Outgoing(item.id, number, "", files=(file,)) for number, file in enumerate(shown, len(chunks))]
    session = item.session.session_id if item.session else None
    return [
        replace(one, last=one is chunks[-1], notice=item.by_host, session=session, in_reply_to=item.in_reply_to)
        for one in chunks
    ]


async def split(text: str, capabilities: Capabilities) -> list[str]:
    """A text in pieces that the platform takes."""
    most, utf16 = capabilities.max_text, capabilities.utf16
    if len(text) <= _QUICKLY_SPLIT:
        return split_text(text, most, utf16=utf16)
    # 240,000 line breaks behind an open fence take 0.15 s.
    return await asyncio.to_thread(split_text, text, most, utf16=utf16)


def _words(item: Item, content: Mapping[str, object], shown: set[str]) -> str:
    """What is to be read; files that do not come along are named in a line."""
    named = content.get("files")
    if not isinstance(named, list) or not shown:
        return text_of(item.kind, item.content)
    return text_of(item.kind, json.dumps({**content, "files": [name for name in named if name not in shown]}))


def _lines_of(card: object) -> str:
    """A card as lines of text, for one that came without a fallback."""
    if not isinstance(card, dict):
        return ""
    return "\n".join(dict.fromkeys(line for line in _texts(card) if line.strip()))


def _texts(card: Mapping[str, object]) -> Iterator[str]:
    """The texts of a card from top to bottom, whatever its parts are called. A row's JSON is at most 64 deep."""
    left = _MAX_CARD_PARTS
    waiting: list[object] = [card]
    while waiting and left:
        left -= 1
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, list):
            waiting += reversed(part)
        elif isinstance(part, dict):
            own = " ".join(value for key in _CARD_TEXTS if isinstance(value := part.get(key), str))
            waiting += reversed([own, *(part[key] for key in _CARD_PARTS if key in part)])
