"""Slash commands: one list that both sides read. The host gates ADMIN before anything is written; the runner passes or
filters the rest."""

from enum import Enum


class CommandClass(Enum):
    """What happens to a text that starts with a slash."""

    NONE = "none"
    """No command: an ordinary message."""
    PASS = "pass"  # noqa: S105  a word, not a secret
    """Goes raw to the provider, alone."""
    FILTER = "filter"
    """Dropped in silence: the claim completes without a turn."""
    ADMIN = "admin"
    """Needs an owner or admin of the agent; checked by the host."""


PASSED = frozenset({"/help", "/rehearse"})
FILTERED = frozenset({"/start"})
ADMIN = frozenset({"/clear", "/compact", "/remote-control"})


def command_of(text: str) -> str | None:
    """The command word of a text (``/help`` of ``/help me`` and of ``/help@my_bot``), or None."""
    if not text.startswith("/"):
        return None
    return text.split(maxsplit=1)[0].split("@", 1)[0].lower()


def classify(text: str) -> CommandClass:
    """The class of a message's text."""
    word = command_of(text)
    if word in PASSED:
        return CommandClass.PASS
    if word in FILTERED:
        return CommandClass.FILTER
    if word in ADMIN:
        return CommandClass.ADMIN
    return CommandClass.NONE
