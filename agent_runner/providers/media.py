"""Pictures and PDFs of messages as native blocks of the Messages API.

The transcript holds no picture: it holds the formatted text, which names each file's path, and the blocks are made anew
for each request. So a file that the API refuses is in no history: from the note of its refusal on it is left out.
"""

import asyncio
import base64
import html
import io
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from agent_runner.formatting import escape
from mailboxes.layout import FILES
from mailboxes.media_types import HEAD_BYTES, media_type

Block = dict[str, Any]

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
DOCUMENT = "application/pdf"

MAX_EDGE = 1568
"""Pixels. The API makes longer ones smaller itself (platform.claude.com, "Vision"); it refuses over 8000, and over 2000
where a request holds many pictures."""

MAX_PICTURE_BYTES = 750_000
"""Of one picture; a request has room for several. The API refuses over 5 MB."""

MAX_DOCUMENT_BYTES = 4_000_000
MAX_PIXELS = 40_000_000
MAX_JPEG_PIXELS = 80_000_000
"""A picture is decoded in a sandbox of 1 GiB; a JPEG is made smaller while it is decoded."""

MAX_READ_BYTES = 50 * 1024 * 1024
"""The host brings no larger file."""

MAX_CHARACTERS = 5_500_000
"""Base64 of all files in one request: the host's broker takes 8 MiB in all, text included."""

MAX_SHOWN, _STEP = 20, 10
"""Files in one request, the newest. Older ones leave in groups, so that the request's beginning, and with it the
model's cache, changes seldom."""

_ATTEMPTS = ((MAX_EDGE, 88), (MAX_EDGE, 70), (1000, 70), (700, 60))
"""Longest edge and quality of a picture that is made smaller; even noise fits the last."""

_SHOWN = re.compile(r'<attachment name="[^"]*" type="([^"]*)" path="([^"]+)"/>')
_REFUSED = re.compile(r'<attachment-refused path="([^"]+)"')
_PLACE = re.compile(r"messages\.(\d+)\.content\.(\d+)")


@dataclass(frozen=True, slots=True)
class Shown:
    """A file that a request shows natively, and where: the indices of the message and of the block in it."""

    path: str
    message: int
    block: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A file as a block, or the reason why there is none; neither for a file that models are not shown."""

    block: Block | None = None
    problem: str = ""

    @property
    def characters(self) -> int:
        return len(self.block["source"]["data"]) if self.block is not None else 0


_NOTHING = _Prepared()


class Unshowable(Exception):
    """A file cannot be shown to a model; the text is the reason, as the end of a sentence."""


class Media:
    """The files that a session's requests show; each is read once while requests need it."""

    def __init__(self) -> None:
        self._prepared: dict[str, _Prepared] = {}
        self._one_at_a_time = asyncio.Lock()

    async def expand(self, messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Shown]]:
        """The messages with a native block, or a note, before each text that names files; and what is shown where."""
        places = _places(messages)
        if not places:
            self._prepared.clear()
            return list(messages), []
        first = -(-max(0, len(places) - MAX_SHOWN) // _STEP) * _STEP
        wanted = dict(islice(places.items(), first, None))
        self._prepared = {path: made for path, made in self._prepared.items() if path in wanted}
        for path in wanted:
            await self._prepare(path)
        kept = self._within_room(list(wanted))
        expanded, shown = list(messages), []
        for index in dict.fromkeys(index for index, _ in wanted.values()):
            blocks: list[Block] = []
            for number, block in enumerate(_as_blocks(messages[index]["content"])):
                for path in (path for path, place in wanted.items() if place == (index, number) and path in kept):
                    made = self._prepared[path]
                    blocks.append(_label(path, made.problem))
                    if made.block is not None:
                        shown.append(Shown(path, index, len(blocks)))
                        blocks.append(made.block)
                blocks.append(block)
            expanded[index] = {**messages[index], "content": blocks}
        return expanded, shown

    async def _prepare(self, path: str) -> None:
        if path not in self._prepared:
            async with self._one_at_a_time:  # each may take a few hundred MB for a moment
                self._prepared[path] = await asyncio.to_thread(_prepare, Path(path))

    def _within_room(self, paths: Sequence[str]) -> set[str]:
        """Those that there is room for, the newest first; of what models are not shown, none."""
        room, kept = MAX_CHARACTERS, set()
        for path in reversed(paths):
            made = self._prepared[path]
            room -= made.characters
            if room < 0:
                break
            if made is not _NOTHING:
                kept.add(path)
        return kept


def suspects(complaint: str, shown: Sequence[Shown], turn_begins_at: int, *, too_long: bool) -> list[str]:
    """The files that the API may have refused a request for: the one that it names, else those that came with this
    turn, else all. Where the request is too long the older ones come first."""
    if found := _PLACE.search(complaint):
        named = [one.path for one in shown if (one.message, one.block) == (int(found[1]), int(found[2]))]
        if named:
            return named
    new = [one.path for one in shown if one.message >= turn_begins_at]
    old = [one.path for one in shown if one.message < turn_begins_at]
    return (old or new) if too_long else (new or old)


def refusal(path: str, reason: str) -> str:
    """What the transcript says of a file that was refused; from then on it is shown no more."""
    return (
        f'<attachment-refused path="{escape(path)}" reason="{escape(" ".join(reason.split())[:200])}"/>\n'
        "The model service does not take this file, so it is not shown to you. It still lies at its path."
    )


def _as_blocks(content: str | list[Block]) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _places(messages: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Where each file that is not refused is named first, in order: path -> (message, block)."""
    found: dict[str, tuple[int, int]] = {}
    refused: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] != "user":
            continue
        for number, text in _texts(message["content"]):
            refused.update(html.unescape(path) for path in _REFUSED.findall(text))
            for kind, path in _SHOWN.findall(text):
                if (kind in PICTURES or kind == DOCUMENT) and _is_inbound(html.unescape(path)):
                    found.setdefault(html.unescape(path), (index, number))
    return {path: place for path, place in found.items() if path not in refused}


def _texts(content: str | list[Block]) -> Iterator[tuple[int, str]]:
    """The formatted texts of a message. A command is a person's own words and no formatter's: elements in it are
    somebody's invention."""
    for number, block in enumerate(_as_blocks(content)):
        text = block.get("text") if block.get("type") == "text" else None
        if isinstance(text, str) and not text.startswith("/"):
            yield number, text


def _is_inbound(path: str) -> bool:
    parts = Path(path).parts
    return len(parts) > 4 and parts[-4:-2] == ("inbound", FILES) and ".." not in parts


def _label(path: str, problem: str) -> Block:
    name = Path(path).name
    return {"type": "text", "text": f"[{name}, which cannot be shown: {problem}]" if problem else f"[{name}]"}


def _prepare(path: Path) -> _Prepared:
    """Blocking and, for a picture, work."""
    try:
        data, kind = _read(path)
        if kind in PICTURES:
            kind, data = _picture(data, kind)
            return _Prepared(_native("image", kind, data))
        if kind == DOCUMENT:
            return _Prepared(_native("document", kind, data))
    except Unshowable as fault:
        return _Prepared(problem=str(fault))
    except OSError:
        pass  # gone after its time: the text still names it
    return _NOTHING


def _native(sort: str, kind: str, data: bytes) -> Block:
    return {"type": sort, "source": {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}}


def _read(path: Path) -> tuple[bytes, str]:
    """A file's bytes and type; no bytes of a type that models are not shown. Raises OSError, Unshowable."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return b"", ""
        head = file.read(HEAD_BYTES)
        kind = media_type(head)
        if kind not in PICTURES and kind != DOCUMENT:
            return b"", kind
        limit = MAX_DOCUMENT_BYTES if kind == DOCUMENT else MAX_READ_BYTES
        if status.st_size > limit:
            raise Unshowable(f"it has {status.st_size // 1_000_000} MB, and {limit // 1_000_000} MB is the most")
        return head + file.read(limit), kind


def _picture(data: bytes, kind: str) -> tuple[str, bytes]:
    """The picture's type and bytes as the API takes them: untouched where they are within the limits. Raises
    Unshowable."""
    pillow = _pillow()
    if pillow is None:
        if len(data) > MAX_PICTURE_BYTES:
            raise Unshowable("it is large, and Pillow is not here to make it smaller")
        return kind, data
    try:
        with pillow.open(io.BytesIO(data), formats=["PNG", "JPEG", "GIF", "WEBP"]) as picture:
            pixels = picture.width * picture.height
            if pixels > (MAX_JPEG_PIXELS if kind == "image/jpeg" else MAX_PIXELS):
                raise Unshowable(f"it has {pixels // 1_000_000} million pixels")
            if max(picture.size) <= MAX_EDGE and len(data) <= MAX_PICTURE_BYTES:
                picture.load()  # damage shows now, and not as a refusal
                return kind, data
            return "image/jpeg", _smaller(pillow, picture)
    except Unshowable:
        raise
    except Exception:  # noqa: BLE001  decoders raise whatever a made-up file leads them to
        raise Unshowable("it is damaged") from None


def _smaller(pillow: ModuleType, picture: Any) -> bytes:
    from PIL import ImageOps

    picture.draft("RGB", (MAX_EDGE, MAX_EDGE))
    picture.thumbnail((MAX_EDGE, MAX_EDGE))
    upright = ImageOps.exif_transpose(picture).convert("RGBA")
    flat = pillow.new("RGB", upright.size, "white")
    flat.paste(upright, mask=upright)
    made = b""
    for edge, quality in _ATTEMPTS:
        flat.thumbnail((edge, edge))
        written = io.BytesIO()
        flat.save(written, "JPEG", quality=quality)
        made = written.getvalue()
        if len(made) <= MAX_PICTURE_BYTES:
            break
    return made


def _pillow() -> ModuleType | None:
    try:
        from PIL import Image
    except ImportError:
        return None
    Image.MAX_IMAGE_PIXELS = None  # the limits above are ours, and a warning would say nothing to anybody
    return Image
