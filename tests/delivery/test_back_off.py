"""What was surely not sent is tried again, later and later, and never in silence given up."""

import json

import pytest

from host.channels.base import Capabilities, NotSent
from host.delivery import BACK_OFF_SECONDS, back_off
from mailboxes.clock import from_text
from mailboxes.rows import DeliveryState
from tests.delivery.conftest import Post
from tests.mailbox.made import CHAT, KEY, OTHER, row_of, said


@pytest.mark.req("R139", "R242")
@pytest.mark.parametrize(("attempts", "seconds"), [(1, 5), (2, 25), (3, 120), (4, 600)])
@pytest.mark.parametrize(("draw", "factor"), [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)])
def test_the_pauses_grow_within_a_fifth_around_their_value(
    attempts: int, seconds: float, draw: float, factor: float
) -> None:
    assert back_off(attempts, lambda: draw) == pytest.approx(seconds * factor)


@pytest.mark.req("R139", "R242")
@pytest.mark.fault(2, 4)
async def test_five_failures_in_their_windows_make_a_dead_letter_and_another_chat_is_unaffected(post: Post) -> None:
    post.channel.plan("42", *(NotSent(f"failure {number}") for number in range(1, 6)))
    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two", address=OTHER))
    await post.until_state("o-2", DeliveryState.SENT)
    for number, seconds in enumerate(BACK_OFF_SECONDS, start=1):
        await post.until_held_up(f"failure {number}")
        row = row_of(post.folder, "o-1", "deliveries")
        wait = (from_text(row["next_attempt_at"]) - post.clock.now()).total_seconds()
        assert (row["state"], row["attempts"]) == ("queued", number)
        assert seconds * 0.8 - 0.001 <= wait <= seconds * 1.2
        calls = len(post.channel.calls)
        await post.clock.advance(seconds * 0.79)
        assert len(post.channel.calls) == calls
        await post.clock.advance(seconds * 0.42)
    await post.until_quiet()
    row = row_of(post.folder, "o-1", "deliveries")
    assert (row["state"], row["attempts"], row["last_error"]) == ("failed", 5, "failure 5")
    assert post.books.told == [("o-1", "failure 5")]
    assert [json.loads(str(row["content"]))["action"] for row in post.heard()] == ["delivery_failed"]


@pytest.mark.req("R139")
@pytest.mark.fault(4)
async def test_what_comes_behind_a_failure_waits_and_arrives_in_order(post: Post) -> None:
    post.channel.plan("42", NotSent("blip"), NotSent("blip"))
    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two"))
    for seconds in (6, 30):
        await post.until_held_up("blip")
        await post.clock.advance(seconds)
    await post.until_quiet()
    assert post.channel.texts() == ["one", "two"]
    assert post.books.told == []


@pytest.mark.req("R139")
@pytest.mark.fault(5)
async def test_a_permanent_refusal_is_a_dead_letter_at_once_and_frees_its_address(post: Post) -> None:
    post.channel.plan("42", NotSent("400: too strange", permanent=True))
    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two"))
    await post.until_quiet()
    assert post.channel.texts() == ["two"]
    assert post.channel.notices() == ["A message to you could not be delivered: 400: too strange."]
    assert row_of(post.folder, "o-1", "deliveries")["last_error"] == "400: too strange"
    for _ in range(3):
        await post.restart()
        await post.until_quiet()
    assert post.channel.sends() == ["one", "two"]
    assert len(post.channel.notices()) == 1
    assert post.state("o-1") == "failed"


@pytest.mark.req("R139")
@pytest.mark.fault(34)
async def test_a_platform_that_says_when_is_believed(post: Post) -> None:
    post.channel.plan("42", NotSent("429", retry_after=30))
    await post.say(said("o-1", 1, "one"))
    await post.until_held_up("429")
    await post.clock.advance(29.9)
    assert len(post.channel.calls) == 1
    await post.clock.advance(0.2)
    await post.until_quiet()
    assert post.channel.texts() == ["one"]


@pytest.mark.req("R139")
async def test_a_back_off_goes_on_over_a_restart_with_its_count(post: Post) -> None:
    post.channel.plan("42", NotSent("blip"), NotSent("blip"))
    await post.say(said("o-1", 1, "one"))
    await post.until_held_up("blip")
    await post.clock.advance(6)
    await post.until_held_up("blip")
    await post.restart()
    await post.until_held_up("back-off")
    await post.clock.advance(19)
    assert len(post.channel.calls) == 2
    await post.clock.advance(12)
    await post.until_quiet()
    assert post.channel.texts() == ["one"]
    assert row_of(post.folder, "o-1", "deliveries")["attempts"] == 2


@pytest.mark.req("R139")
async def test_a_back_off_is_bounded_when_the_wall_clock_went_back_while_the_host_was_down(post: Post) -> None:
    post.channel.plan("42", NotSent("blip"))
    await post.say(said("o-1", 1, "one"))
    await post.until_held_up("blip")
    post.clock.jump(-86_400)
    await post.restart()
    await post.until_held_up("back-off")
    await post.clock.advance(720)
    await post.until_quiet()
    assert post.channel.texts() == ["one"]


@pytest.mark.req("R140")
@pytest.mark.fault(28)
@pytest.mark.parametrize("restarted", [False, True])
async def test_chunks_that_went_are_not_sent_again(post: Post, restarted: bool) -> None:
    post.channel.capabilities = Capabilities(max_text=4)
    post.channel.plan("42", None, None, NotSent("blip"))
    await post.say(said("o-1", 1, "one two six ten"))
    await post.until_held_up("blip")
    if restarted:
        await post.restart()
        await post.until_held_up("back-off")
    assert row_of(post.folder, "o-1", "deliveries")["chunks_done"] == 2
    await post.clock.advance(6)
    await post.until_quiet()
    assert post.channel.texts() == ["one ", "two ", "six ", "ten"]
    assert [outgoing.chunk for _, outgoing in post.channel.calls] == [0, 1, 2, 2, 3]
    assert json.loads(row_of(post.folder, "o-1", "deliveries")["platform_ids"]) == [f"p-o-1-{n}" for n in range(4)]


@pytest.mark.req("R242")
async def test_a_dead_letter_that_is_tried_again_has_all_its_attempts(post: Post) -> None:
    post.channel.plan("42", NotSent("blocked", permanent=True), None, NotSent("blip"))  # None: the notice
    await post.say(said("o-1", 1, "one"))
    await post.until_quiet()
    item = await post.pool.call(KEY, lambda mailbox: mailbox.retry_delivery("o-1"))
    assert item is not None
    post.delivery.add([item])
    await post.until_held_up("blip")
    assert row_of(post.folder, "o-1", "deliveries")["attempts"] == 1
    await post.clock.advance(6)
    await post.until_quiet()
    assert post.channel.texts() == ["one"]
    assert post.delivery.reserve(CHAT)


@pytest.mark.req("R155")
@pytest.mark.fault(88)
async def test_a_record_that_cannot_be_written_is_not_sent_and_stops_no_other_row(post: Post) -> None:
    def breaks(_: object) -> None:
        post.books.before_record = lambda _: None
        raise OSError("read-only file system")

    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two"), said("o-3", 5, "three"))
    post.books.before_record = breaks
    await post.until_quiet()
    # The first one's send was on record before; it went, but that could not be written: after a restart it is unknown.
    assert post.channel.texts() == ["one", "two", "three"]
    assert [post.state(f"o-{number}") for number in (1, 2, 3)] == ["sending", "sent", "sent"]
