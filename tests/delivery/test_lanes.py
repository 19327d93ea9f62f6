"""One lane per address: order holds in it, and nothing in it touches another."""

import asyncio

import pytest

from host.channels.base import Capabilities, NobodyAttached, NotSent
from mailboxes.clock import later
from mailboxes.rows import Address, DeliveryState
from tests.delivery.conftest import Post, until
from tests.fakes.recording_channel import Held, RecordingChannel
from tests.mailbox.made import CHAT, KEY, OTHER, message, said


@pytest.mark.req("R134", "R140")
async def test_rows_to_one_address_arrive_in_order_and_are_recorded_with_the_platforms_ids(post: Post) -> None:
    await post.say(*(said(f"o-{number}", 2 * number + 1, f"text {number}") for number in range(5)))
    await post.until_quiet()
    assert post.channel.texts() == [f"text {number}" for number in range(5)]
    assert [post.state(f"o-{number}") for number in range(5)] == ["sent"] * 5
    target = await post.pool.call(KEY, lambda mailbox: mailbox.target(3))
    assert target is not None
    assert target.platform_ids == ("p-o-1-0",)


@pytest.mark.req("R134")
async def test_two_adds_at_once_send_each_row_once_and_one_at_a_time(post: Post) -> None:
    held = Held()
    post.channel.script.append(held)
    first = said("o-1", 1, "one")
    await asyncio.gather(post.say(first), post.say(said("o-2", 3, "two")), post.say(first))
    await until(lambda: len(post.channel.calls) == 1)
    await post.say(said("o-3", 5, "three"))
    assert len(post.channel.calls) == 1
    held.release.set()
    await post.until_quiet()
    assert post.channel.texts() == ["one", "two", "three"]
    assert post.channel.most_at_once == {CHAT: 1}


@pytest.mark.req("R140")
async def test_the_intent_is_on_record_before_anything_is_sent(post: Post) -> None:
    held = Held()
    post.channel.script.append(held)
    await post.say(said("o-1", 1), said("o-2", 3))
    await until(lambda: len(post.channel.calls) == 1)
    assert (post.state("o-1"), post.state("o-2")) == ("sending", "queued")
    assert post.books.recorded == []  # the take-over had committed the first intent already
    held.release.set()
    await post.until_quiet()
    assert post.books.states("o-2") == [DeliveryState.SENDING, DeliveryState.SENT]


@pytest.mark.req("R134", "R139")
async def test_a_chat_that_hangs_or_backs_off_holds_up_no_other(post: Post) -> None:
    post.channel.plan("42", NotSent("away"))
    post.channel.plan("43")
    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two"), said("o-3", 5, "three", address=OTHER))
    await post.until_state("o-3", DeliveryState.SENT)
    await post.until_held_up("in back-off: away")
    assert post.delivery.waiting() == {CHAT: "in back-off: away"}
    assert post.channel.texts("42") == []
    await post.say(said("o-4", 7, "four", address=OTHER))
    await post.until_state("o-4", DeliveryState.SENT)
    assert post.channel.texts("43") == ["three", "four"]


@pytest.mark.req("R139")
async def test_nobody_attached_is_no_attempt_and_delivery_goes_on_when_somebody_is(post: Post) -> None:
    post.channel.script.append(NobodyAttached())
    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two"))
    await post.until_held_up("nobody is attached")
    await post.clock.advance(100_000)
    assert post.state("o-1") == "queued"
    assert post.channel.texts() == []
    post.delivery.attached(OTHER)
    await post.clock.advance(0)
    assert post.channel.texts() == []
    post.delivery.attached(Address("telegram", "bot", "42", "any thread"))
    await post.until_quiet()
    assert post.channel.texts() == ["one", "two"]
    assert {change.attempts for _, change in post.books.recorded} == {0}


@pytest.mark.req("R139")
async def test_somebody_who_attaches_while_their_absence_is_recorded_is_not_missed(post: Post) -> None:
    post.channel.script.append(NobodyAttached())
    post.books.before_record = lambda change: (
        post.delivery.attached(CHAT) if change.state == DeliveryState.QUEUED else None
    )
    await post.say(said("o-1", 1, "one"))
    await post.until_quiet()
    assert post.channel.texts() == ["one"]


@pytest.mark.req("R135")
async def test_without_a_channel_a_row_waits_for_one(post: Post) -> None:
    del post.channels["telegram", "bot"]
    await post.say(said("o-1", 1, "one"))
    await post.until_held_up("there is no channel telegram")
    assert post.state("o-1") == "queued"
    post.delivery.channels_changed()
    await post.clock.advance(0)
    await post.until_held_up("there is no channel telegram")
    post.channels["telegram", "bot"] = post.channel
    post.delivery.channels_changed()
    await post.until_quiet()
    assert post.channel.texts() == ["one"]
    assert post.delivery.waiting() == {}


@pytest.mark.req("R135")
async def test_two_bots_of_one_platform_never_mix(post: Post) -> None:
    second = RecordingChannel()
    post.channels["telegram", "second"] = second
    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two", address=Address("telegram", "second", "42")))
    await post.until_quiet()
    assert (post.channel.texts(), second.texts()) == (["one"], ["two"])


@pytest.mark.req("R133")
async def test_what_is_due_later_is_sent_at_its_time_and_holds_up_nothing(post: Post) -> None:
    now = post.clock.now()
    await post.say(
        said("o-1", 1, "in 90 s", deliver_after=later(now, 90)),
        said("o-2", 3, "in 30 s", deliver_after=later(now, 30)),
        said("o-3", 5, "now"),
    )
    await post.until_state("o-3", DeliveryState.SENT)
    await post.clock.advance(29.9)
    assert post.channel.texts() == ["now"]
    await post.clock.advance(0.1)
    await post.until_state("o-2", DeliveryState.SENT)
    await post.clock.advance(60)
    await post.until_state("o-1", DeliveryState.SENT)
    assert post.channel.texts() == ["now", "in 30 s", "in 90 s"]


@pytest.mark.req("R133")
async def test_what_is_due_later_is_sent_soon_after_the_wall_clock_jumped_there(post: Post) -> None:
    await post.say(said("o-1", 1, "tomorrow", deliver_after=later(post.clock.now(), 86_400)))
    await post.clock.advance(0)
    post.clock.jump(86_400)
    await post.clock.advance(60)
    await post.until_state("o-1", DeliveryState.SENT)


@pytest.mark.req("R133")
async def test_what_is_due_later_survives_a_restart(post: Post) -> None:
    await post.say(said("o-1", 1, "later", deliver_after=later(post.clock.now(), 90)))
    await post.restart()
    await post.clock.advance(89)
    assert post.channel.calls == []
    await post.clock.advance(1)
    await post.until_state("o-1", DeliveryState.SENT)
    assert post.channel.texts() == ["later"]


async def test_the_end_of_what_is_queued_is_told_in_its_turn(post: Post) -> None:
    order: list[str] = []
    held = Held()
    post.channel.script.append(held)
    await post.say(said("o-1", 1, "one"))
    post.delivery.when_drained(CHAT, lambda: order.append(f"drained after {len(post.channel.taken)}"))
    await post.say(said("o-2", 3, "two"))
    post.delivery.when_drained(CHAT, lambda: order.append(f"drained after {len(post.channel.taken)}"))
    post.delivery.when_drained(OTHER, lambda: order.append("nothing to drain"))
    await until(lambda: order == ["nothing to drain"])
    held.release.set()
    await post.until_quiet()
    assert order == ["nothing to drain", "drained after 1", "drained after 2"]


@pytest.mark.req("R134")
async def test_an_address_is_free_again_when_its_lane_is_done_or_its_take_over_failed(post: Post) -> None:
    assert post.delivery.reserve(CHAT)
    assert not post.delivery.reserve(CHAT)
    post.delivery.release([CHAT])
    await post.say(said("o-1", 1))
    assert not post.delivery.reserve(CHAT)
    await post.until_quiet()
    assert post.delivery.reserve(CHAT)
    assert not post.delivery.reserve(Address("slack", "bot", "42"))


@pytest.mark.req("R138", "R140")
async def test_a_text_goes_in_as_many_chunks_as_the_platform_asks(post: Post) -> None:
    post.channel.capabilities = Capabilities(max_text=10)
    await post.say(said("o-1", 1, "one two three four five"))
    await post.until_quiet()
    assert post.channel.texts() == ["one two ", "three ", "four five"]
    assert [outgoing.last for _, outgoing in post.channel.taken] == [False, False, True]
    target = await post.pool.call(KEY, lambda mailbox: mailbox.target(1))
    assert target is not None
    assert target.platform_ids == ("p-o-1-0", "p-o-1-1", "p-o-1-2")


@pytest.mark.req("R138")
async def test_a_blank_text_is_done_without_a_send(post: Post) -> None:
    await post.say(said("o-1", 1, "  "))
    await post.until_state("o-1", DeliveryState.SENT)
    assert post.channel.calls == []


async def test_only_the_hosts_own_word_is_shown_as_a_notice(post: Post) -> None:
    forged = '{"text": "I am the host", "notice": true}'
    await post.say(said("o-1", 1, content=forged, in_reply_to=None, turn_id=None))
    await post.pool.call(KEY, lambda mailbox: mailbox.put([message()]))
    notice = await post.pool.call(KEY, lambda mailbox: mailbox.notice("damaged", "It was damaged."))
    assert notice is not None
    post.delivery.add([notice])
    await post.until_quiet()
    assert [outgoing.notice for _, outgoing in post.channel.taken] == [False, True]


async def test_settling_waits_for_what_is_being_sent_and_not_for_what_is_held_up(post: Post) -> None:
    held = Held()
    post.channel.plan("43", held)
    post.channel.plan("42", NobodyAttached())
    await post.say(said("o-1", 1), said("o-2", 3, address=OTHER))
    await post.until_held_up("nobody")
    settled = asyncio.ensure_future(post.delivery.settle(20))
    await post.clock.advance(0)
    assert not settled.done()
    held.release.set()
    await settled
    assert post.state("o-2") == "sent"
    await post.delivery.settle(20)


async def test_a_close_in_the_middle_of_a_send_leaves_the_row_on_record(post: Post) -> None:
    post.channel.script.append(Held())
    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two"))
    await until(lambda: len(post.channel.calls) == 1)
    await post.restart()
    await post.until_quiet()
    assert post.channel.texts() == ["one", "two"]
    assert (post.state("o-1"), post.state("o-2")) == ("sent", "sent")
