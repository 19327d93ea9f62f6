"""What becomes of a turn that ended early, as a table over plain values."""

import json
from datetime import UTC, datetime

import pytest

from host.judging import Interrupted, Spoken, continued, judge
from mailboxes import clock
from mailboxes.rows import InStatus, Kind, MessageIn
from tests.mailbox.made import message

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HELLO = (Spoken(1, "hello"),)


def turn(
    *rows: MessageIn,
    spoken: tuple[Spoken, ...] = (),
    counted: bool = True,
    retryable: bool = True,
    turn_id: str = "t-1",
) -> Interrupted:
    return Interrupted(turn_id, rows, "The model is away.", spoken, counted, retryable)


@pytest.mark.req("R022", "R153")
@pytest.mark.parametrize(("tries", "seconds"), [(0, 5), (1, 10), (2, 20), (3, 40)])
def test_a_failed_attempt_is_repeated_after_a_growing_pause(tries: int, seconds: int) -> None:
    verdict = judge(turn(message(tries=tries)), NOW)
    (update,) = verdict.updates
    assert (update.status, update.tries) == (InStatus.PENDING, tries + 1)
    assert update.process_after == clock.later(NOW, seconds)
    assert (verdict.continuation, verdict.notice) == (None, None)


@pytest.mark.req("R153", "R155")
def test_the_fifth_failure_is_the_last_and_the_user_hears_why() -> None:
    verdict = judge(turn(message(tries=4)), NOW)
    assert [(update.status, update.tries) for update in verdict.updates] == [(InStatus.FAILED, 5)]
    assert verdict.notice is not None
    assert "The model is away." in verdict.notice
    assert "5 times" in verdict.notice


@pytest.mark.req("R153")
def test_what_cannot_be_retried_fails_at_once_with_its_reason_alone() -> None:
    verdict = judge(turn(message(), retryable=False), NOW)
    assert [update.status for update in verdict.updates] == [InStatus.FAILED]
    assert verdict.notice == "The model is away."


@pytest.mark.req("R153")
@pytest.mark.fault(84)
def test_a_message_beside_a_poisoned_one_keeps_its_own_count() -> None:
    verdict = judge(turn(message("m-poison", tries=4), message("m-new")), NOW)
    poison, new = verdict.updates
    assert (poison.status, poison.tries) == (InStatus.FAILED, 5)
    assert (new.status, new.tries, new.process_after) == (InStatus.PENDING, 1, clock.later(NOW, 5))
    assert verdict.notice is not None


@pytest.mark.req("R111")
@pytest.mark.parametrize("tries", [0, 4, 5])
def test_a_stop_by_the_host_is_no_try_however_many_there_were(tries: int) -> None:
    verdict = judge(turn(message(tries=tries), counted=False, retryable=False), NOW)
    assert [(u.status, u.tries, u.process_after) for u in verdict.updates] == [(InStatus.PENDING, tries, None)]
    assert verdict.notice is None


@pytest.mark.req("R156", "R158")
def test_a_turn_that_spoke_is_not_run_again_none_of_its_messages_is() -> None:
    rows = (message("m-1"), message("m-2", tries=1), message("m-3"))
    verdict = judge(turn(*rows, spoken=HELLO), NOW)
    assert [(u.message_id, u.status) for u in verdict.updates] == [(row.id, InStatus.COMPLETED) for row in rows]
    carrying_on = verdict.continuation
    assert carrying_on is not None
    assert (carrying_on.kind, carrying_on.tries, carrying_on.address) == (Kind.SYSTEM, 2, rows[-1].address)
    assert carrying_on.process_after == clock.later(NOW, 10)
    assert continued(carrying_on) == (["m-1", "m-2", "m-3"], [{"seq": 1, "text": "hello"}])


@pytest.mark.req("R111", "R156")
def test_a_turn_that_spoke_and_was_stopped_by_the_host_goes_on_at_once_without_a_try() -> None:
    carrying_on = judge(turn(message(tries=3), spoken=HELLO, counted=False), NOW).continuation
    assert carrying_on is not None
    assert (carrying_on.tries, carrying_on.process_after) == (3, None)


@pytest.mark.req("R156")
def test_a_continuation_of_a_continuation_names_the_first_messages_and_all_that_was_said() -> None:
    first = judge(turn(message("m-1"), spoken=HELLO), NOW).continuation
    assert first is not None
    second = judge(turn(first, message("m-2"), spoken=(Spoken(3, "more"),), turn_id="t-2"), NOW).continuation
    assert second is not None
    assert second.id != first.id
    assert continued(second) == (["m-1", "m-2"], [{"seq": 1, "text": "hello"}, {"seq": 3, "text": "more"}])


@pytest.mark.req("R153", "R156")
def test_a_turn_that_spoke_fails_when_the_tries_are_used_up() -> None:
    verdict = judge(turn(message(tries=4), spoken=HELLO), NOW)
    assert [update.status for update in verdict.updates] == [InStatus.FAILED]
    assert verdict.continuation is None
    assert verdict.notice is not None


@pytest.mark.req("R156")
def test_a_long_text_is_repeated_to_the_agent_only_in_part() -> None:
    carrying_on = judge(turn(message(), spoken=(Spoken(1, "x" * 100_000),)), NOW).continuation
    assert carrying_on is not None
    assert len(carrying_on.content) < 5000
    assert json.loads(carrying_on.content)["action"] == "continue_turn"


def test_a_turn_without_messages_changes_nothing() -> None:
    assert judge(turn(), NOW).updates == ()


def test_only_a_continuation_is_read_as_one() -> None:
    assert continued(message()) is None
    assert continued(message(kind=Kind.SYSTEM, content='{"action": "delivery_failed"}')) is None
