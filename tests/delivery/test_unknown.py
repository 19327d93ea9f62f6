"""When the answer is lost: ask where one can ask, else once more and counted, never a third time."""

import pytest

from host.channels.base import Capabilities, NotSent, OutcomeUnknown
from mailboxes.rows import Address, DeliveryState
from tests.delivery.conftest import Post, until
from tests.fakes.recording_channel import Held, Taken
from tests.mailbox.made import KEY, OTHER, row_of, said

LOST = OutcomeUnknown("the answer was lost")
THIRD = Address("telegram", "bot", "44")


@pytest.mark.fault(6)
async def test_not_sent_unknown_and_sent_are_three_things(post: Post) -> None:
    post.channel.plan("42", NotSent("no connection"))
    post.channel.plan("43", Taken(LOST), Held())
    await post.say(said("o-1", 1), said("o-2", 3, address=OTHER), said("o-3", 5, address=THIRD))
    await post.until_state("o-3", DeliveryState.SENT)
    await post.until_held_up("no connection")
    await until(lambda: len(post.channel.calls) == 4)
    assert (post.state("o-1"), post.state("o-3")) == ("queued", "sent")
    assert post.books.states("o-2") == [DeliveryState.UNKNOWN, DeliveryState.SENDING]


@pytest.mark.fault(6)
@pytest.mark.req("R140")
async def test_a_platform_that_can_be_asked_and_has_it_is_not_sent_it_again(post: Post) -> None:
    post.channel.knows = True
    post.channel.plan("42", Taken(LOST))
    await post.say(said("o-1", 1, "one"))
    await post.until_quiet()
    assert post.channel.texts() == ["one"]
    assert [(outgoing.delivery_id, outgoing.chunk) for outgoing in post.channel.asked] == [("o-1", 0)]
    assert post.state("o-1") == "sent"


@pytest.mark.fault(6)
@pytest.mark.parametrize("knows", [None, False, ValueError("broken")], ids=["cannot say", "has it not", "breaks"])
async def test_otherwise_it_is_sent_once_more_and_counted(post: Post, knows: bool | Exception | None) -> None:
    post.channel.knows = knows
    post.channel.plan("42", LOST)
    await post.say(said("o-1", 1, "one"))
    await post.until_quiet()
    assert post.channel.texts() == ["one"]
    assert len(post.channel.calls) == 2
    assert post.state("o-1") == "sent"


@pytest.mark.fault(6)
@pytest.mark.parametrize("error", [LOST, RuntimeError("the library broke")], ids=["lost", "broken adapter"])
async def test_unknown_twice_is_a_dead_letter_and_is_said(post: Post, error: Exception) -> None:
    post.channel.plan("42", error, error)
    await post.say(said("o-1", 1, "one"), said("o-2", 3, "two"))
    await post.until_quiet()
    assert post.channel.sends() == ["one", "one", "two"]
    assert post.state("o-1") == "failed"
    assert [item for item, _ in post.books.told] == ["o-1"]
    assert str(error) in post.books.told[0][1]


@pytest.mark.fault(6)
@pytest.mark.req("R140")
async def test_each_chunk_has_its_own_second_chance(post: Post) -> None:
    post.channel.capabilities = Capabilities(max_text=4)
    post.channel.plan("42", LOST, None, LOST, None)
    await post.say(said("o-1", 1, "one two"))
    await post.until_quiet()
    assert post.channel.texts() == ["one ", "two"]
    assert post.state("o-1") == "sent"


@pytest.mark.fault(5, 6)
async def test_a_host_that_dies_twice_in_the_same_send_does_not_send_a_third_time(post: Post) -> None:
    post.channel.plan("42", Held(), Held())
    await post.say(said("o-1", 1, "one"))
    await until(lambda: len(post.channel.calls) == 1)
    await post.restart()
    await until(lambda: len(post.channel.calls) == 2)
    await post.restart()
    await post.until_quiet()
    assert len(post.channel.sends()) == 2
    row = row_of(post.folder, "o-1", "deliveries")
    assert (row["state"], row["last_error"]) == ("failed", "it is not known whether it arrived, twice")
    assert [item for item, _ in post.books.told] == ["o-1"]
    await post.restart()
    assert post.books.told == []
    assert await post.pool.call(KEY, lambda mailbox: mailbox.retry_delivery("o-1")) is not None


@pytest.mark.req("R140")
async def test_after_a_restart_the_platform_is_asked_about_the_very_chunk(post: Post) -> None:
    post.channel.capabilities = Capabilities(max_text=4)
    post.channel.knows = True
    post.channel.plan("42", None, Held())
    await post.say(said("o-1", 1, "one two six"))
    await until(lambda: len(post.channel.calls) == 2)
    await post.restart()
    await post.until_quiet()
    assert [outgoing.chunk for outgoing in post.channel.asked] == [1]
    assert post.channel.texts() == ["one ", "six"]


@pytest.mark.fault(10)
async def test_an_answer_whose_acknowledgement_hangs_is_not_sent_as_the_answer_to_the_next_question(post: Post) -> None:
    held = Held()
    post.channel.plan("42", held)
    await post.say(said("o-1", 1, "answer 1", in_reply_to="m-1"))
    await until(lambda: len(post.channel.calls) == 1)
    await post.say(said("o-2", 3, "answer 2", in_reply_to="m-2", turn_id="t-2"))
    held.release.set()
    await post.until_quiet()
    assert post.channel.texts() == ["answer 1", "answer 2"]
    assert [row_of(post.folder, name, "deliveries")["in_reply_to"] for name in ("o-1", "o-2")] == ["m-1", "m-2"]
