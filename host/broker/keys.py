"""The model key is read here and nowhere else. It is never logged, never shown, sent to nobody but the model API."""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dotenv import dotenv_values

KEY_NAME = "ANTHROPIC_API_KEY"
_USABLE = re.compile(r"[\x21-\x7e]{1,512}")


@dataclass(frozen=True, slots=True)
class Key:
    """A key. Its text stays out of every repr."""

    value: str = field(repr=False)

    def scrub(self, text: str) -> str:
        """The text without the key in it."""
        return text.replace(self.value, "[key]")


class Scrubber:
    """Takes a key out of a stream of bytes, also one that comes in pieces. Nothing is held back but what may be the
    beginning of a key."""

    def __init__(self, key: Key) -> None:
        self._key = key.value.encode()
        self._begun = b""

    def feed(self, chunk: bytes) -> bytes:
        """What may pass now."""
        data = (self._begun + chunk).replace(self._key, b"[key]")
        held = next(n for n in range(min(len(data), len(self._key) - 1), -1, -1) if data.endswith(self._key[:n]))
        self._begun = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """What was held back, at the end."""
        return self._begun


def usable(value: str) -> bool:
    """Whether it can be sent as a header at all: visible ASCII without blanks."""
    return _USABLE.fullmatch(value) is not None


class KeyStore:
    """The environment's key, else the one in the home's .env, which is read again whenever the file changes.

    `on_key` is told of each new key before anybody can use it.
    """

    def __init__(
        self, environment: Mapping[str, str], env_file: Path, on_key: Callable[[str], None] = lambda _value: None
    ) -> None:
        self._environment = environment
        self._on_key = on_key
        self._seen = ""
        self._file = env_file
        self._stamp: tuple[int, int, int] | None = None
        self._from_file = ""

    async def current(self) -> Key | None:
        """The key to use now; None when there is none (an empty one is none: fault 108)."""
        value = self._environment.get(KEY_NAME, "").strip() or (await asyncio.to_thread(self._read)).strip()
        if value != self._seen:
            self._seen = value
            self._on_key(value)
        return Key(value) if usable(value) else None

    def _read(self) -> str:
        try:
            status = self._file.stat()
        except FileNotFoundError:
            self._stamp, self._from_file = None, ""
            return ""
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if stamp != self._stamp:
            self._from_file = dotenv_values(self._file, interpolate=False).get(KEY_NAME) or ""
            self._stamp = stamp
        return self._from_file
