"""Which rows make a batch, as tables."""

import json

import pytest

from agent_runner.batching import Batch, Waiting, candidates, cut_batch
from mailboxes.commands import CommandClass
from mailboxes.limits import BATCH_CHARACTERS, BATCH_ROWS
from mailboxes.rows import Address, MessageIn

HERE = ("address", "telegram", "a", "1", "")
THERE = ("address", "telegram", "a", "2", "")
NOWHERE = ("series", "")


def waiting(seq: int, origin: tuple[str, ...] = HERE, *, starts: bool = True) -> Waiting:
    return Waiting(f"m-{seq}", seq, origin, origin[0] == "address", starts)


def row(seq: int, text: str = "hi", *, trigger: bool = True, on_wake: bool = False, kind: str = "chat") -> MessageIn:
    content = json.dumps({"text": text})
    return MessageIn(
        f"m-{seq}", kind, "", content, Address("telegram", "a", "1"), seq=seq, trigger=trigger, on_wake=on_wake
    )


def seqs(batch: Batch) -> list[int]:
    return [r.seq for r in batch.rows]


@pytest.mark.req("R094")
def test_the_origin_whose_oldest_row_is_oldest_comes_first() -> None:
    chosen = candidates([waiting(2, THERE), waiting(4, HERE), waiting(6, THERE)])
    assert chosen is not None
    assert chosen.ids == ("m-2", "m-6")


def test_rows_that_only_ride_along_start_no_turn() -> None:
    assert candidates([waiting(2, starts=False), waiting(4, THERE, starts=False)]) is None


def test_a_row_that_starts_a_turn_takes_those_along_that_came_before_it() -> None:
    chosen = candidates([waiting(2, starts=False), waiting(4, THERE, starts=False), waiting(6)])
    assert chosen is not None
    assert chosen.ids == ("m-2", "m-6")


def test_a_notice_without_an_address_rides_with_any_origin() -> None:
    chosen = candidates([waiting(2, NOWHERE, starts=False), waiting(4)])
    assert chosen is not None
    assert chosen.ids == ("m-2", "m-4")


def test_more_bystanders_than_a_batch_holds_are_counted_and_not_shown() -> None:
    many = [waiting(2 * n, starts=False) for n in range(1, 121)]
    chosen = candidates([*many, waiting(500)])
    assert chosen is not None
    assert len(chosen.ids) == BATCH_ROWS
    assert chosen.ids[-1] == "m-500"
    assert len(chosen.omitted) == 121 - BATCH_ROWS


@pytest.mark.req("R094")
def test_a_batch_has_at_most_fifty_rows_oldest_first() -> None:
    assert seqs(cut_batch([row(n) for n in range(2, 202, 2)])) == list(range(2, 102, 2))


@pytest.mark.req("R094")
def test_a_batch_has_at_most_sixty_thousand_characters() -> None:
    third = "x" * (BATCH_CHARACTERS // 3)
    assert seqs(cut_batch([row(2, third), row(4, third), row(6, third), row(8, "small")])) == [2, 4]


def test_a_single_larger_row_goes_alone() -> None:
    assert seqs(cut_batch([row(2, "x" * (BATCH_CHARACTERS + 1)), row(4)])) == [2]


@pytest.mark.req("R102", "R103")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/help", CommandClass.PASS),
        ("/help me", CommandClass.PASS),
        ("/help@my_bot", CommandClass.PASS),
        ("/rehearse slow 1", CommandClass.PASS),
        ("/start", CommandClass.FILTER),
        ("/clear", CommandClass.ADMIN),
        ("/nothing we know", CommandClass.NONE),
        ("say /help", CommandClass.NONE),
    ],
)
def test_a_command_goes_alone_and_text_waits_behind_it(text: str, expected: CommandClass) -> None:
    batch = cut_batch([row(2, text), row(4)])
    assert batch.command is expected
    assert seqs(batch) == ([2, 4] if expected is CommandClass.NONE else [2])


@pytest.mark.req("R102")
def test_text_before_a_command_goes_first_and_without_it() -> None:
    assert seqs(cut_batch([row(2), row(4, "/help"), row(6)])) == [2]


def test_the_origin_of_a_batch_is_that_of_the_row_that_started_it() -> None:
    notice = MessageIn("m-2", "system", "", "{}", None, seq=2, trigger=False)
    assert cut_batch([notice, row(4)]).origin == HERE


def test_a_bystanders_command_and_a_tasks_slash_are_text() -> None:
    assert seqs(cut_batch([row(2, "/clear", trigger=False), row(4)])) == [2, 4]
    assert cut_batch([row(2, "/clear", kind="task")]).command is CommandClass.NONE
