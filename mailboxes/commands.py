"""Slash commands: one list that both sides read. The host answers some itself, and checks the right to the
administrative ones before anything is written; the runner passes or filters the rest."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType


class CommandClass(Enum):
    """What the runner does with a text that starts with a slash."""

    NONE = "none"
    """No command: an ordinary message."""
    PASS = "pass"  # noqa: S105  a word, not a secret
    """Goes raw to the provider, alone."""
    FILTER = "filter"
    """Dropped in silence: the claim completes without a turn."""
    ADMIN = "admin"
    """The runner's own work, for an owner or admin of the agent; checked by the host."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the list. `summary` is for `/help`, "" keeps it out of there."""

    summary: str
    kind: CommandClass = CommandClass.NONE
    by_host: bool = False
    """Answered by the host: the runner never sees it."""
    admin: bool = False
    """Needs an owner or admin of the agent."""


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "/help": Command("what you can write here", CommandClass.PASS, by_host=True),
        "/status": Command("whether I am at work, and on what", by_host=True),
        "/why": Command("what happened to a message; write it as a reply to that message", by_host=True),
        "/stop": Command("end what I am doing now", by_host=True),
        "/new": Command("begin a new conversation; tasks stay", by_host=True, admin=True),
        "/tasks": Command("what I am to do at which time", by_host=True),
        "/usage": Command("how many tokens I have used", by_host=True, admin=True),
        "/clear": Command("forget what was said before", CommandClass.ADMIN, admin=True),
        "/compact": Command("", CommandClass.ADMIN, admin=True),
        "/context": Command("how full my memory of this conversation is", CommandClass.ADMIN, admin=True),
        "/remote-control": Command("", CommandClass.ADMIN, admin=True),
        "/rehearse": Command("", CommandClass.PASS),
        "/start": Command("", CommandClass.FILTER),
    }
)

STOP_WORDS = frozenset({"stop", "halt"})
"""What alone means /stop while a turn runs, whatever its case and punctuation."""


def command_of(text: str) -> str | None:
    """The command word of a text (``/help`` of ``/help me`` and of ``/help@my_bot``), or None."""
    if not text.startswith("/"):
        return None
    return text.split(maxsplit=1)[0].split("@", 1)[0].lower()


def classify(text: str) -> CommandClass:
    """The class of a message's text."""
    command = COMMANDS.get(command_of(text) or "")
    return CommandClass.NONE if command is None else command.kind


def is_stop(text: str) -> bool:
    """Whether a text is nothing but a stop word."""
    return text.strip(" \t\n.!,").lower() in STOP_WORDS
