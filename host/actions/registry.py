"""Which actions there are: those of this package's modules, and those of other packages by the entry-point group
innkeeper.actions. A new action is a new file.

An action is a coroutine function under `@action`, which says who may ask for it; a module lists its own in ACTIONS.
host.actions.authority decides whether this session may, host.acting calls it. It may be called again after a kill, so
whatever it makes has an id that follows from `context.id`.
"""

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Protocol

import structlog

from host import actions
from host.db.engine import CentralDatabase
from host.db.snapshot import Routing
from host.home import Home
from host.items import SessionRef, TakeOver
from host.mailbox_pool import MailboxPool
from host.task_desk import TaskDesk
from mailboxes.clock import Clock
from mailboxes.rows import MessageIn

GROUP = "innkeeper.actions"

Payload = Mapping[str, object]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Permission(StrEnum):
    """Who may ask."""

    OWN_SESSION = "own session"
    """Every session, for itself."""
    OWN_AGENT = "own agent"
    """Every session for itself; for another session of its agent (`session_id`) only in a turn that people caused who
    may administer the agent."""
    OWNER = "owner"
    """Only in a turn that an owner of the host caused."""


class Post(Protocol):
    """What is asked of host.postmaster.Postmaster."""

    async def put(self, key: SessionRef, rows: Sequence[MessageIn], provision: Callable[[], None]) -> None:
        """Writes rows into a session's mailbox, then rings or wakes it."""
        ...

    def cancelled(self, key: SessionRef, taken: TakeOver, due: str | None) -> None:
        """Rows of a session were ended by the host."""
        ...


@dataclass(frozen=True, slots=True)
class Services:
    """What actions stand on. `reset` begins a session anew; one that is over stays over."""

    home: Home
    database: CentralDatabase
    routing: Routing
    pool: MailboxPool
    post: Post
    tasks: TaskDesk
    reset: Callable[[SessionRef], Awaitable[None]]
    clock: Clock


@dataclass(frozen=True, slots=True)
class ActionContext:
    """One request: of which session, the id of its row, the message that it names as its cause, and the session that it
    is about. `reaches_others`: the people of this turn may have the agent's other sessions read and changed."""

    key: SessionRef
    id: str
    in_reply_to: str | None
    target: SessionRef
    reaches_others: bool
    services: Services


Run = Callable[[ActionContext, Payload], Awaitable[object]]
"""Returns what the agent is answered (JSON). Raises host.acting.ActionRefused."""


@dataclass(frozen=True, slots=True)
class RegisteredAction:
    """`by_hand`: how a person does it, a sentence for whoever may not."""

    name: str
    permission: Permission
    run: Run
    by_hand: str = ""


def action(name: str, *, permission: Permission, by_hand: str = "") -> Callable[[Run], RegisteredAction]:
    """Makes a coroutine function an action."""
    return lambda run: RegisteredAction(name, permission, run, by_hand)


def load_actions() -> Mapping[str, RegisteredAction]:
    """All of them by name. Shipped ones come first: a plugin cannot take their place, and one that is broken is logged
    and left out. Blocks: it imports."""
    found: dict[str, RegisteredAction] = {}
    for module in pkgutil.iter_modules(actions.__path__, f"{actions.__name__}."):
        shipped: Sequence[RegisteredAction] = getattr(importlib.import_module(module.name), "ACTIONS", ())
        found |= {one.name: one for one in shipped}
    for entry in entry_points(group=GROUP):
        try:
            value = entry.load()
        except Exception:
            log.exception("an action of another package cannot be loaded", action=entry.name)
            continue
        if not isinstance(value, RegisteredAction) or value.name != entry.name or value.name in found:
            log.error(
                "an action of another package is left out",
                action=entry.name,
                reason="not its name, or a name that is taken",
            )
            continue
        found[value.name] = value
    return found
