"""Who gets the next place, and who has to go: the decisions alone."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.items import SessionRef
from host.places import PATIENCE_SECONDS, Holder, Waiting, half, who_has_to_go, who_is_next

NOW = 10_000.0


def ref(name: str) -> SessionRef:
    """ "a2" is a session of the agent "a"."""
    return SessionRef(name[0], name)


@pytest.mark.parametrize(("places", "most"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (8, 4), (9, 4)])
def test_one_agent_holds_at_most_half_of_the_places_and_never_less_than_one(places: int, most: int) -> None:
    assert half(places) == most


@pytest.mark.req("R080")
@pytest.mark.parametrize(
    ("waiting", "held", "places", "chosen"),
    [
        pytest.param("a1 b1", {}, 2, "a1", id="first come"),
        pytest.param("a5 a6 b1", {"a": 4}, 8, "b1", id="an agent with half lets others go first"),
        pytest.param("a5 b1", {"a": 3, "b": 4}, 8, "a5", id="one with less than half does not"),
        pytest.param("a5 a6", {"a": 4}, 8, "a5", id="where it alone waits it takes all"),
        pytest.param("a8", {"a": 7}, 8, "a8", id="also the last one"),
        pytest.param("a2 b2", {"a": 1, "b": 1}, 3, "a2", id="of an odd number somebody has the larger half"),
        pytest.param("a3 b2", {"a": 2, "b": 1}, 4, "b2", id="an even number is shared evenly"),
        pytest.param("a1 b1", {}, 1, "a1", id="one place has no half"),
        pytest.param("a3 b3 c2", {"a": 2, "b": 2, "c": 1}, 2, "c2", id="who has least where all have half"),
    ],
)
def test_who_gets_the_next_place(waiting: str, held: dict[str, int], places: int, chosen: str) -> None:
    assert who_is_next([ref(name) for name in waiting.split()], held, places) == ref(chosen)


def decide(waiting: dict[str, float], holders: dict[str, tuple[float, int]], places: int) -> str | None:
    """`waiting`: seconds in the queue; `holders`: seconds in the place, and stops before."""
    chosen = who_has_to_go(
        [Waiting(ref(name), NOW - seconds) for name, seconds in waiting.items()],
        [Holder(ref(name), NOW - seconds, stops) for name, (seconds, stops) in holders.items()],
        Counter(name[0] for name in holders),
        places,
        NOW,
    )
    return None if chosen is None else chosen.session_id


@pytest.mark.req("R080", "R220")
@pytest.mark.parametrize(
    ("waiting", "holders", "places", "goes"),
    [
        pytest.param({}, {"a1": (900, 0)}, 1, None, id="nobody for nobody"),
        pytest.param({"b1": 29}, {"a1": (900, 0)}, 1, None, id="nobody before the patience is over"),
        pytest.param({"b1": 30}, {"a1": (900, 0)}, 1, "a1", id="one place"),
        pytest.param({"a2": 30}, {"a1": (900, 0)}, 1, "a1", id="one place, one agent"),
        pytest.param({"b1": 30}, {"a1": (29, 0)}, 1, None, id="who has only just come stays"),
        pytest.param({"b1": 30}, {"a1": (59, 1)}, 1, None, id="who had to go before stays for longer"),
        pytest.param({"b1": 30}, {"a1": (60, 1)}, 1, "a1", id="and then goes"),
        pytest.param({"b1": 30}, {"a1": (900, 5)}, 1, None, id="a long turn ends in the end"),
        pytest.param({"d1": 30}, {"a1": (40, 0), "b1": (90, 0), "c1": (60, 0)}, 3, "b1", id="the longest past"),
        pytest.param({"d1": 30}, {"a1": (100, 1), "b1": (90, 0)}, 2, "b1", id="not just the longest there"),
        pytest.param(
            {"c1": 30}, {"a1": (40, 0), "a2": (50, 0), "b1": (900, 0)}, 3, "a2", id="of the agent with most places"
        ),
        pytest.param(
            {"b1": 30}, {"a1": (5, 3), "a2": (9, 3), "a3": (7, 3)}, 4, "a2", id="more than half is nobody's share"
        ),
        pytest.param(
            {"b2": 30}, {"a1": (5, 3), "a2": (9, 3), "b1": (90, 9)}, 3, None, id="of an odd number somebody has it"
        ),
        pytest.param(
            {"a3": 99, "b2": 20},
            {"a1": (40, 0), "a2": (50, 0), "b1": (90, 0), "c1": (80, 0)},
            4,
            "a2",
            id="who has half already takes it from its own",
        ),
        pytest.param(
            {"a3": 99, "b2": 40},
            {"a1": (10, 0), "a2": (10, 0), "b1": (90, 0), "c1": (80, 0)},
            4,
            "b1",
            id="and holds up nobody where its own may stay",
        ),
        pytest.param(
            {"a3": 40},
            {"a1": (40, 0), "a2": (50, 0), "b1": (90, 0), "b2": (95, 0)},
            4,
            "b2",
            id="alone in the queue it takes from any",
        ),
    ],
)
def test_who_has_to_go(
    waiting: dict[str, float], holders: dict[str, tuple[float, int]], places: int, goes: str | None
) -> None:
    assert decide(waiting, holders, places) == goes


@dataclass(slots=True)
class Turn:
    """A turn of a session that comes at a time and needs so many seconds in one go."""

    key: SessionRef
    comes: int
    needs: int
    since: float | None = None
    stops: int = 0


STEP = 5


def play(turns: list[Turn], places: int) -> dict[str, int]:
    """When each turn ended, under a host that does no more than ask who is next and who has to go."""
    ended: dict[str, int] = {}
    queue: list[Waiting] = []
    live: list[Turn] = []
    now = 0
    while len(ended) < len(turns):
        queue += [Waiting(turn.key, now) for turn in turns if now - STEP < turn.comes <= now]
        for turn in [turn for turn in live if turn.since is not None and now - turn.since >= turn.needs]:
            ended[turn.key.session_id] = now
            live.remove(turn)
        held = Counter(turn.key.agent_group_id for turn in live)
        holders = [Holder(turn.key, turn.since or 0.0, turn.stops) for turn in live]
        goes = who_has_to_go(queue, holders, held, places, now) if len(live) == places else None
        for turn in [turn for turn in live if turn.key == goes]:
            turn.stops += 1
            live.remove(turn)
            queue.append(Waiting(turn.key, now))
        while queue and len(live) < places:
            held = Counter(turn.key.agent_group_id for turn in live)
            chosen = who_is_next([one.key for one in queue], held, places)
            queue = [one for one in queue if one.key != chosen]
            turn = next(turn for turn in turns if turn.key == chosen)
            turn.since = now
            live.append(turn)
        now += STEP
        longest = max(turn.needs for turn in turns)
        assert now <= 200 + sum(3 * turn.needs + longest + 90 for turn in turns), "somebody begins anew for ever"
    return ended


def test_two_long_turns_on_one_place_both_end() -> None:
    """Were the share the same each time, neither would ever end."""
    ended = play([Turn(ref("a1"), 0, 1200), Turn(ref("b1"), 0, 1200)], 1)
    assert ended.keys() == {"a1", "b1"}


def test_a_short_turn_waits_half_a_minute_for_a_place_that_a_long_one_has() -> None:
    ended = play([Turn(ref("a1"), 0, 3000), Turn(ref("b1"), 40, 5)], 1)
    assert ended["b1"] <= 40 + PATIENCE_SECONDS + 2 * STEP


def test_the_one_chat_of_an_agent_does_not_wait_behind_the_twenty_of_another() -> None:
    many = [Turn(SessionRef("a", f"a{number}"), 0, 600) for number in range(20)]
    ended = play([*many, Turn(ref("b1"), 5, 5)], 4)
    assert ended["b1"] <= 5 + PATIENCE_SECONDS + 3 * STEP


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200), st.integers(1, 300)), min_size=1, max_size=9),
    st.integers(1, 5),
)
@settings(max_examples=100, deadline=None)
def test_every_turn_ends_whatever_comes_when(drawn: list[tuple[str, int, int]], places: int) -> None:
    turns = [
        Turn(SessionRef(agent, f"{agent}{number}"), comes, needs) for number, (agent, comes, needs) in enumerate(drawn)
    ]
    assert len(play(turns, places)) == len(turns)
