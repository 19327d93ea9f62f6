"""The places of live sandboxes: who waits for one, who gets the next, and who has to go for it.

Pure decisions over plain values; times are seconds of the host's monotonic clock. First come, first served, with two
bounds: while agents wait for each other, one holds at most half of the places; and nobody keeps a place for ever while
others wait for one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from host.items import SessionRef

PATIENCE_SECONDS = 30.0
"""How long one waits before somebody has to go."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A session that waits for a place, since when."""

    key: SessionRef
    since: float


@dataclass(frozen=True, slots=True)
class Holder:
    """A session that has a place and could be stopped. `since`: when it began to keep others from it; `stops`: how
    often it has had to go before its turn was done."""

    key: SessionRef
    since: float
    stops: int = 0

    def over(self, now: float) -> float:
        """Seconds that it has been there past its share (negative: it may still stay).

        The share doubles with each stop: a turn that takes longer than the patience of the others ends all the same.
        """
        return now - self.since - PATIENCE_SECONDS * float(1 << self.stops)


def half(places: int) -> int:
    """The most that one agent holds while others wait; never less than one."""
    return max(1, places // 2)


def who_is_next(waiting: Sequence[SessionRef], held: Mapping[str, int], places: int) -> SessionRef:
    """Who of those that wait (first come first, at least one) gets the next free place. `held`: places by agent group.

    The first whose agent has less than half; where every one of them has that, the first of the agent that has least.
    """
    return next(
        (key for key in waiting if held.get(key.agent_group_id, 0) < half(places)),
        min(waiting, key=lambda key: held.get(key.agent_group_id, 0)),
    )


def who_has_to_go(
    waiting: Sequence[Waiting], holders: Sequence[Holder], held: Mapping[str, int], places: int, now: float
) -> SessionRef | None:
    """Whose sandbox is stopped for one that has waited for too long; None where nobody has to go.

    `waiting`: first come first, without those for whom a place is becoming free. Of the holders past their share the
    one goes whose agent has most places, and of that agent's the one furthest past. An agent with more than half has no
    share to keep from others; one that has half already gets a place only from its own.
    """
    agents = {one.key.agent_group_id for one in waiting}
    for one in waiting:
        if now - one.since < PATIENCE_SECONDS:
            return None
        own = one.key.agent_group_id
        only_own = held.get(own, 0) >= half(places) and agents != {own}
        candidates = [
            holder
            for holder in holders
            if (not only_own or holder.key.agent_group_id == own)
            and (holder.over(now) >= 0 or _has_too_much(holder.key.agent_group_id, own, held, places))
        ]
        if candidates:
            chosen = max(candidates, key=lambda holder: (held.get(holder.key.agent_group_id, 0), holder.over(now)))
            return chosen.key
    return None


def _has_too_much(agent: str, other: str, held: Mapping[str, int], places: int) -> bool:
    """Whether an agent has more than half, and still no less than the other when that one has got a place of its. (Of
    three places one of two agents must have two; they would take that one from each other for ever.)"""
    return held.get(agent, 0) > half(places) and held.get(agent, 0) - 1 > held.get(other, 0)
