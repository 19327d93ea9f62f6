"""What a turn commits when, and where its answers go."""

from collections.abc import Callable

import pytest

from agent_runner.batching import Batch
from agent_runner.desk import Desk, DeskError
from agent_runner.mailbox import Output, TurnFull
from agent_runner.providers.base import Result
from agent_runner.turn import Route, Turn, route_of
from mailboxes.rows import Address, MessageIn

HERE = Address("telegram", "bot", "1", "7")


def row(seq: int, kind: str = "chat", address: Address | None = HERE) -> MessageIn:
    return MessageIn(f"m-{seq}", kind, "", "{}", address, seq=seq)


async def nowhere(_turn: Turn, _output: Output) -> int:
    return 7


def turn(*batches: Batch) -> Turn:
    made = Turn(nowhere)
    for batch in batches:
        made.accept(batch)
    return made


@pytest.mark.req("R107", "R108")
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row(2), row(4)], Route("chat", HERE, "m-4")),
        ([row(2), row(4, "task", None)], Route("chat", HERE, "m-2")),
        ([row(2), row(4, "system")], Route("system", HERE, "m-4")),
        ([row(2, "task", None), row(4, "system", None)], Route("task", None, "m-2")),
        ([row(2, "system", None)], None),
    ],
)
def test_an_answer_goes_to_the_last_row_that_has_an_address(rows: list[MessageIn], expected: Route | None) -> None:
    assert route_of(rows) == expected


@pytest.mark.req("R095")
def test_results_wait_until_an_input_is_answered_and_complete_exactly_that_one() -> None:
    running = turn(Batch((row(2),)), Batch((row(4),)))
    assert running.take(Result("first half", 0)) is None
    part = running.take(Result("second half", 1))
    assert part is not None
    assert [output.content for output in part.outputs] == [{"text": "first half"}, {"text": "second half"}]
    assert part.rows == [row(2)]
    assert running.is_open
    part = running.take(Result("other", 2))
    assert part is not None
    assert part.rows == [row(4)]
    assert not running.is_open


def test_one_result_may_answer_several_inputs_and_completes_what_was_left_out_of_the_prompt() -> None:
    running = turn(Batch((row(4),), omitted=(row(2),)), Batch((row(6),)))
    part = running.take(Result("both", 2))
    assert part is not None
    assert part.rows == [row(2), row(4), row(6)]
    assert [output.in_reply_to for output in part.outputs] == ["m-6"]


def test_what_is_said_when_all_is_answered_is_committed_at_once() -> None:
    running = turn(Batch((row(2),)))
    assert running.take(Result("answer", 1)) is not None
    part = running.take(Result("by the way", 1))
    assert part is not None
    assert part.rows == []
    assert [output.in_reply_to for output in part.outputs] == ["m-2"]


async def test_nothing_is_sent_for_a_turn_that_is_over_or_has_no_chat() -> None:
    running = turn(Batch((row(2),)))
    assert await running.send("hi") == 7
    running.closed = True
    with pytest.raises(RuntimeError, match="is over"):
        await running.send("hi")
    with pytest.raises(RuntimeError, match="nobody to send to"):
        await turn(Batch((row(2, "system", None),))).send("hi")


def test_what_a_tool_has_said_is_not_said_again_but_answers_the_next_input_all_the_same() -> None:
    made = turn(Batch((row(2),)))
    made.heard("yes,  I do")
    first = made.take(Result("yes, I do", 1))
    assert first is not None
    assert (first.outputs, [done.id for done in first.rows]) == ([], ["m-2"])
    made.accept(Batch((row(4),)))
    second = made.take(Result("yes, I do", 2))
    assert second is not None
    assert [output.content for output in second.outputs] == [{"text": "yes, I do"}]


async def test_what_could_not_be_sent_by_a_tool_is_still_an_answer() -> None:
    async def full(_turn: Turn, _output: Output, _named: Callable[[str], None]) -> int:
        raise TurnFull("this turn has sent as much as a mailbox holds")

    desk = Desk(full)
    desk.turn = turn(Batch((row(2),)))
    with pytest.raises(DeskError, match="as much as a mailbox holds"):
        await desk.say("the last word")
    part = desk.turn.take(Result("the last word", 1))
    assert part is not None
    assert [output.content for output in part.outputs] == [{"text": "the last word"}]
