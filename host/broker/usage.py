"""Tokens: counted from the stream as it passes, priced by one dated table."""

import json
from dataclasses import dataclass
from typing import Any

PROVED_MODEL = "claude-sonnet-5-5"
"""What `host setup` proves a key with: the runner's own default (a test holds the two together)."""

_MAX_LINE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens; `input_tokens` are those that no cache served."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    @property
    def prompt_tokens(self) -> int:
        """All that was read."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens; prompts of over 100,000 tokens cost `long_factor` times as much."""

    input: float
    output: float
    cache_read: float
    long_factor: float = 1.0

    def of(self, usage: Usage) -> float:
        """What one call cost. Writing the cache costs a quarter more than reading afresh."""
        fresh = usage.input_tokens + 1.25 * usage.cache_write_tokens
        total = fresh * self.input + usage.cache_read_tokens * self.cache_read + usage.output_tokens * self.output
        return total / 1_000_000 * (self.long_factor if usage.prompt_tokens > 100_000 else 1.0)


PRICES = {
    "claude-fable-5-1": Price(10, 50, 1.0),
    "claude-opus-5-5": Price(4, 20, 0.4),
    "claude-opus-5": Price(5, 25, 0.5),
    "claude-opus-4-8": Price(5, 25, 0.5),
    "claude-opus-4-7": Price(5, 25, 0.5),
    "claude-opus-4-6": Price(5, 25, 0.5),
    "claude-sonnet-5-5": Price(2, 10, 0.1),
    "claude-sonnet-5": Price(2, 10, 0.2),
    "claude-sonnet-4-6": Price(3, 15, 0.3),
    "claude-haiku-5-5": Price(0.1, 0.5, 0.01, long_factor=5.0),
    "claude-haiku-4-5": Price(1, 5, 0.1),
}
"""US dollars per million tokens, as platform.claude.com (pricing) had them on 2026-11-30."""


def cost(model: str, usage: Usage) -> float | None:
    """US dollars of one call, None for a model that the table does not know."""
    price = PRICES.get(model)
    return None if price is None else price.of(usage)


class Meter:
    """Reads the usage out of a stream's bytes; the counts in it are totals so far, and the last ones hold."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._line = b""
        self.complete = False

    @property
    def usage(self) -> Usage:
        """What is known so far."""
        get = self._counts.get
        return Usage(
            get("input_tokens", 0),
            get("output_tokens", 0),
            get("cache_read_input_tokens", 0),
            get("cache_creation_input_tokens", 0),
        )

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes."""
        *lines, rest = (self._line + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        # A line this long is none of the two that count.
        self._line = rest if len(rest) <= _MAX_LINE else b""

    def _take(self, line: bytes) -> None:
        if not line.startswith(b"data:") or b'"message_' not in line:
            return
        try:
            event: Any = json.loads(line[5:])
        except (ValueError, RecursionError):
            return
        kind = event.get("type") if isinstance(event, dict) else None
        if kind == "message_start":
            self._count(event.get("message"))
        elif kind == "message_delta":
            self._count(event)
        elif kind == "message_stop":
            self.complete = True

    def _count(self, holder: Any) -> None:
        counts = holder.get("usage") if isinstance(holder, dict) else None
        if isinstance(counts, dict):
            self._counts.update({k: v for k, v in counts.items() if isinstance(v, int) and not isinstance(v, bool)})
