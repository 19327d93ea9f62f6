"""What agents ask of the host: system rows, carried out in order and answered once.

A row stays open until its answer is committed, so a kill between effect and answer does the action again: each can be
done twice. Nothing that a row says carries authority; what an action may touch is decided by its handler.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from host.due import DueIndex
from host.items import Action, SessionRef, system_content
from host.mailbox import Mailbox
from host.mailbox_pool import MailboxPool
from mailboxes.clock import Clock
from mailboxes.crash import crash_at
from mailboxes.ids import derived_id
from mailboxes.rows import DeliveryState, MessageIn

Handler = Callable[[SessionRef, Action], Awaitable[object]]
"""Carries one action out and returns what the agent is answered. Raises ActionRefused."""

InPlaceOf = Callable[[SessionRef], Awaitable[SessionRef]]
"""The session itself while it is open, else the one that has taken its place."""

WINDOW_SECONDS = 600.0
MOST_IN_WINDOW = 200
"""So many actions of one session are carried out within WINDOW_SECONDS. What is beyond is dropped as a whole, and the
agent hears so once in ten minutes: a flood must not fill the mailbox with answers."""

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
        clock: Clock,
        in_place_of: InPlaceOf,
    ) -> None:
        self._pool = pool
        self._due = due
        self._handlers = handlers
        self._notify = notify
        self._in_place_of = in_place_of
        self._clock = clock
        self._locks: dict[SessionRef, asyncio.Lock] = {}
        self._done: dict[SessionRef, deque[float]] = {}

    async def answer(self, key: SessionRef) -> None:
        """Answers all that is open, one after another; whoever comes meanwhile waits and finds the rest."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            actions = await self._pool.call(key, lambda mailbox: mailbox.open_actions())
            room = self._room(key)
            for action in actions[:room]:
                await self._answer(key, action)
                self._done.setdefault(key, deque()).append(self._clock.monotonic())
            if len(actions) > room:
                await self._drop(key, actions[room:])

    def _room(self, key: SessionRef) -> int:
        """How many more may be carried out now."""
        since = self._clock.monotonic() - WINDOW_SECONDS
        for one in [one for one, times in self._done.items() if times[-1] <= since]:
            del self._done[one]
        times = self._done.get(key, deque())
        while times and times[0] <= since:
            times.popleft()
        return MOST_IN_WINDOW - len(times)

    async def _answer(self, key: SessionRef, action: Action) -> None:
        status, result = await self._carry_out(key, action)
        crash_at("before_action_answer")
        place = await self._in_place_of(key)
        if place == key:
            self._due.set(key, await self._pool.call(key, lambda box: _answered(box, action, status, result)))
            self._notify(key)
            return
        # It began its own conversation anew: the next one knows of it, and is not woken by it.
        row = await self._pool.call(key, lambda box: _row(box, action, status, result))
        await self._pool.call(place, lambda box: box.put([row]) if box.exists() else 0)
        await self._pool.call(key, lambda box: _close(box, [action], DeliveryState.SENT, None))

    async def _drop(self, key: SessionRef, actions: Sequence[Action]) -> None:
        reason = f"More than {MOST_IN_WINDOW} actions within {WINDOW_SECONDS / 60:g} minutes."

        def drop(mailbox: Mailbox) -> None:
            row = _row(mailbox, actions[0], "error", f"{reason} Those beyond were dropped. Wait before you ask again.")
            window = mailbox.stamp()[:15]  # ten minutes
            mailbox.put([replace(row, id=derived_id(f"{key.session_id} {window}", "too many actions"))])
            _close(mailbox, actions, DeliveryState.CANCELLED, reason)

        await self._pool.call(key, drop)
        log.warning("actions of a session were dropped: too many", session=key.session_id, dropped=len(actions))

    async def _carry_out(self, key: SessionRef, action: Action) -> tuple[str, object]:
        handler = self._handlers.get(action.name)
        if handler is None:
            log.warning("an agent asked for an unknown action", session=key.session_id, action=action.name)
            return "error", f"There is no action {action.name[:100]!r}."
        try:
            result = await handler(key, action)
        except ActionRefused as refused:
            return "error", str(refused)
        except Exception:  # an action that breaks is answered, or its agent would wait for ever
            log.exception("an action broke", session=key.session_id, action=action.name)
            return "error", "That went wrong inside the host. Its log says why."
        log.info("an action was done", session=key.session_id, action=action.name)
        return "success", result


def _answered(mailbox: Mailbox, action: Action, status: str, result: object) -> str | None:
    mailbox.answer_action(action, status, result)
    return mailbox.next_due()


def _row(mailbox: Mailbox, action: Action, status: str, result: object) -> MessageIn:
    """An answer that wakes nobody."""
    row = mailbox.host_row(mailbox.db, action.id, "result", action.in_reply_to, trigger=False)
    return replace(row, content=system_content(action.name, status, result))


def _close(mailbox: Mailbox, actions: Sequence[Action], state: DeliveryState, reason: str | None) -> None:
    def work(db: sqlite3.Connection) -> None:
        changed = "UPDATE deliveries SET state=?, state_changed=?, last_error=? WHERE id=? AND state='queued'"
        db.executemany(changed, [(state, mailbox.stamp(), reason, action.id) for action in actions])

    mailbox.write(work)
