"""What a platform cannot show is shown in another way, or left out: nothing is lost and nothing fails for it."""

import json

import pytest

from host.channels.base import Capabilities
from tests.delivery.conftest import Post
from tests.mailbox.made import said

CARD = {
    "type": "card",
    "title": "Deploy 1.2?",
    "subtitle": "three services",
    "children": [
        {"type": "text", "content": "All checks are green."},
        {"type": "fields", "children": [{"type": "field", "label": "Branch", "value": "main"}]},
        {"type": "actions", "children": [{"type": "link-button", "label": "Open", "url": "https://ci.example/7"}]},
    ],
}


def card(**more: object) -> str:
    return json.dumps({"card": CARD, **more})


@pytest.mark.req("R137", "R121")
async def test_a_card_goes_as_one_where_the_platform_has_cards(post: Post) -> None:
    post.channel.capabilities = Capabilities(cards=True)
    await post.say(said("o-1", 1, kind="chat-sdk", content=card(fallbackText="a card")))
    await post.until_quiet()
    [(_, out)] = post.channel.taken
    assert (out.card, out.text, out.last) == (CARD, "a card", True)


@pytest.mark.req("R137", "R121")
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (card(fallbackText="a card"), "a card"),
        (
            card(),
            "Deploy 1.2? three services\nAll checks are green.\nBranch main\nOpen https://ci.example/7",
        ),
    ],
    ids=["with a fallback", "without one"],
)
async def test_elsewhere_its_words_are_sent(post: Post, content: str, text: str) -> None:
    await post.say(said("o-1", 1, kind="chat-sdk", content=content))
    await post.until_quiet()
    assert post.channel.texts() == [text]
    assert post.channel.taken[0][1].card is None


@pytest.mark.req("R137")
async def test_a_card_without_end_becomes_a_few_lines(post: Post) -> None:
    wide = {"title": "z", "children": [{"text": str(number)} for number in range(5000)]}
    await post.say(said("o-1", 1, kind="chat-sdk", content=json.dumps({"card": wide})))
    await post.until_quiet()
    assert len("".join(post.channel.texts()).splitlines()) <= 200


@pytest.mark.req("R137", "R120")
async def test_a_reaction_is_left_out_where_there_are_none(post: Post) -> None:
    reaction = said("o-2", 3, content='{"operation": "reaction", "messageId": 1, "emoji": "+1"}')
    await post.say(said("o-1", 1, "one"), reaction, said("o-3", 5, "three"))
    await post.until_quiet()
    assert post.channel.texts() == ["one", "three"]
    assert post.state("o-2") == "sent"
    assert post.heard() == []


@pytest.mark.req("R137", "R138", "R120")
async def test_an_edit_is_a_new_message_where_nothing_can_be_edited(post: Post) -> None:
    post.channel.capabilities = Capabilities(max_text=10)
    edit = said("o-2", 3, content='{"operation": "edit", "messageId": 1, "text": "now it is better"}')
    await post.say(said("o-1", 1, "one"), edit)
    await post.until_quiet()
    assert post.channel.texts() == ["one", "now it is ", "better"]
    assert post.state("o-2") == "sent"


@pytest.mark.req("R142")
async def test_a_webhooks_answer_to_a_chat_is_its_body(post: Post) -> None:
    await post.say(said("o-1", 1, kind="webhook", content='{"response": {"status": 200, "body": "deployed"}}'))
    await post.until_quiet()
    assert post.channel.texts() == ["deployed"]
