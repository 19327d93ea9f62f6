"""What agents ask of the host: system rows, carried out in order and answered once.

A row stays open until its answer is committed, so a kill between effect and answer does the action again: each can be
done twice. Nothing that a row says carries authority; what an action may touch is decided by its handler.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from host.due import DueIndex
from host.items import Action, SessionRef
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool

Handler = Callable[[SessionRef, Action], Awaitable[object]]
"""Carries one action out and returns what the agent is answered. Raises ActionRefused."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ActionRefused(Exception):
    """It is not done; the text is a sentence that the agent can act on."""


class Acting:
    """Carries out the open actions of a session. `notify` is called when answers were written."""

    def __init__(
        self,
        pool: MailboxPool,
        due: DueIndex,
        handlers: Mapping[str, Handler],
        notify: Callable[[SessionRef], None],
    ) -> None:
        self._pool = pool
        self._due = due
        self._handlers = handlers
        self._notify = notify
        self._locks: dict[SessionRef, asyncio.Lock] = {}

    async def answer(self, key: SessionRef) -> None:
        """Answers all that is open, one after another; whoever comes meanwhile waits and finds the rest."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            for action in await self._pool.call(key, lambda mailbox: mailbox.open_actions()):
                await self._answer(key, action)

    async def _answer(self, key: SessionRef, action: Action) -> None:
        status, result = await self._carry_out(key, action)

        def work(mailbox: Mailbox) -> str | None:
            mailbox.answer_action(action, status, result)
            return mailbox.next_due()

        self._due.set(key, await self._pool.call(key, work))
        self._notify(key)

    async def _carry_out(self, key: SessionRef, action: Action) -> tuple[str, object]:
        handler = self._handlers.get(action.name)
        if handler is None:
            log.warning("an agent asked for an unknown action", session=key.session_id, action=action.name)
            return "error", f"There is no action {action.name!r}."
        try:
            result = await handler(key, action)
        except ActionRefused as refused:
            return "error", str(refused)
        except Exception:  # an action that breaks is answered, or its agent would wait for ever
            log.exception("an action broke", session=key.session_id, action=action.name)
            return "error", "That went wrong inside the host. Its log says why."
        log.info("an action was done", session=key.session_id, action=action.name)
        return "success", result
