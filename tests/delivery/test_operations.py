"""An edit or a reaction is a row like any other: in its lane, behind what it changes, and never silently lost."""

import pytest

from host.channels.base import Capabilities, NobodyAttached, NotSent, OutcomeUnknown
from mailboxes.clock import later
from mailboxes.rows import DeliveryState, MessageOut
from tests.delivery.conftest import Post, until
from tests.mailbox.made import KEY, OTHER, message, said

ALL = Capabilities(edit=True, reactions=True)


def operation(row_id: str, seq: int, content: str) -> MessageOut:
    return said(row_id, seq, content=content)


EDIT = operation("o-2", 3, '{"operation": "edit", "messageId": 1, "text": "better"}')
REACTION = operation("o-2", 3, '{"operation": "reaction", "messageId": 1, "emoji": "+1"}')


@pytest.mark.req("R135", "R140")
@pytest.mark.parametrize(("row", "done"), [(EDIT, "better"), (REACTION, "+1")], ids=["edit", "reaction"])
async def test_a_change_waits_for_its_target_and_hits_the_platforms_id(post: Post, row: MessageOut, done: str) -> None:
    post.channel.capabilities = ALL
    post.channel.plan("42", NotSent("blip"))
    await post.say(said("o-1", 1, "one"), row)
    await post.until_held_up("blip")
    assert post.channel.edits == []
    await post.clock.advance(6)
    await post.until_quiet()
    assert post.channel.edits == [("p-o-1-0", done)]
    assert post.state("o-2") == "sent"


@pytest.mark.req("R135")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"operation": "dance"}', "there is no operation 'dance'"),
        ('{"operation": "edit", "messageId": 99, "text": "x"}', "no message has the id 99"),
        ('{"operation": "edit", "messageId": 1e300, "text": "x"}', "no message has the id 1e+300"),
        (f'{{"operation": "edit", "messageId": {2**70}, "text": "x"}}', f"no message has the id {2**70}"),
        ('{"operation": "edit", "messageId": "one", "text": "x"}', "no message has the id 'one'"),
    ],
    ids=["unknown operation", "unknown target", "no whole number", "a huge number", "no id"],
)
async def test_what_cannot_be_done_is_a_dead_letter_at_once_and_frees_its_address(
    post: Post, content: str, reason: str
) -> None:
    post.channel.capabilities = ALL
    await post.say(operation("o-1", 1, content), said("o-2", 3, "two"))
    await post.until_quiet()
    assert post.state("o-1") == "failed"
    assert post.books.told == [("o-1", reason)]
    assert post.channel.texts() == ["two"]


@pytest.mark.req("R135")
async def test_a_change_of_a_dead_letter_is_one_too(post: Post) -> None:
    post.channel.capabilities = ALL
    post.channel.plan("42", NotSent("blocked", permanent=True))
    await post.say(said("o-1", 1, "one"), EDIT)
    await post.until_quiet()
    assert [item for item, _ in post.books.told] == ["o-1", "o-2"]
    assert post.channel.edits == []


@pytest.mark.req("R139")
@pytest.mark.parametrize("error", [NotSent("blip"), NobodyAttached()], ids=["blip", "nobody"])
async def test_a_change_that_did_not_go_is_done_later(post: Post, error: Exception) -> None:
    post.channel.capabilities = ALL
    post.channel.plan("42", None, error)
    await post.say(said("o-1", 1, "one"), EDIT)
    await post.until_held_up()
    assert post.state("o-2") == "queued"
    post.delivery.channels_changed()
    await post.clock.advance(6)
    await post.until_quiet()
    assert post.channel.edits == [("p-o-1-0", "better")]
    assert post.state("o-2") == "sent"


@pytest.mark.req("R139")
@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), RuntimeError("broken")], ids=["lost", "broken adapter"])
async def test_a_change_of_unknown_outcome_is_made_once_more_and_then_given_up(post: Post, error: Exception) -> None:
    post.channel.capabilities = ALL
    post.channel.plan("42", None, error, error)
    await post.say(said("o-1", 1, "one"), EDIT)
    await post.until_quiet()
    assert post.books.states("o-2")[-1] == DeliveryState.FAILED
    assert [item for item, _ in post.books.told] == ["o-2"]


@pytest.mark.req("R135")
async def test_where_a_platform_cannot_edit_the_new_text_is_sent(post: Post) -> None:
    await post.say(said("o-1", 1, "one"), EDIT)
    await post.until_quiet()
    assert post.channel.texts() == ["one", "better"]


@pytest.mark.req("R120", "R140")
async def test_an_edit_goes_into_each_chunk_of_its_message(post: Post) -> None:
    post.channel.capabilities = Capabilities(edit=True, max_text=10)
    await post.say(
        said("o-1", 1, "one two three four five"),
        operation("o-2", 3, '{"operation": "edit", "messageId": 1, "text": "six seven eight nine ten eleven twelve"}'),
        operation("o-3", 5, '{"operation": "edit", "messageId": 1, "text": "short"}'),
    )
    await post.until_quiet()
    edits = dict(post.channel.edits[:3])
    assert edits == {"p-o-1-0": "six seven ", "p-o-1-1": "eight ", "p-o-1-2": "nine ten "}
    assert post.channel.texts()[3:] == ["eleven ", "twelve"], "what found no place is sent behind it"
    assert post.channel.edits[3:] == [("p-o-1-0", "short"), ("p-o-1-1", "\u2026"), ("p-o-1-2", "\u2026")]


@pytest.mark.req("R120")
async def test_an_edit_of_a_message_that_goes_later_comes_after_it_and_holds_up_nothing(post: Post) -> None:
    post.channel.capabilities = ALL
    due = later(post.clock.now(), 3600)
    await post.say(said("o-1", 1, "one", deliver_after=due), EDIT, said("o-3", 5, "three"))
    await until(lambda: post.channel.texts() == ["three"])
    assert post.channel.edits == []
    await post.restart()
    await post.clock.advance(3601)
    await until(lambda: "sent" in [str(state) for state in post.books.states("o-2")])
    assert post.channel.texts() == ["three", "one"]
    assert post.channel.edits == [("p-o-1-0", "better")]


@pytest.mark.req("R120", "R140")
@pytest.mark.parametrize(
    ("kind", "content"),
    [("chat", '{"text": "hi", "messageId": "p-7"}'), ("chat-sdk", '{"id": "p-7", "text": "hi"}')],
    ids=["chat", "chat-sdk"],
)
async def test_what_a_person_wrote_is_reacted_to_and_never_edited(post: Post, kind: str, content: str) -> None:
    post.channel.capabilities = ALL
    await post.pool.call(KEY, lambda box: box.put([message("m-1", kind=kind, content=content)]))
    await post.say(
        operation("o-1", 1, '{"operation": "reaction", "messageId": 2, "emoji": "eyes"}'),
        operation("o-2", 3, '{"operation": "edit", "messageId": 2, "text": "I say so"}'),
    )
    await post.until_quiet()
    assert post.channel.edits == [("p-7", "eyes")]
    assert post.books.told == [("o-2", "the message with the id 2 is somebody else's")]


@pytest.mark.req("R120")
async def test_a_message_in_another_chat_is_not_edited(post: Post) -> None:
    post.channel.capabilities = ALL
    await post.say(said("o-1", 1, "one", address=OTHER))
    await post.until_quiet()
    await post.say(EDIT)
    await post.until_quiet()
    assert post.books.told == [("o-2", "the message with the id 1 is in another chat")]
    assert post.channel.edits == []
