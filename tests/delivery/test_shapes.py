"""Every shape of a row that an agent may say reaches the one who is to act on it, once."""

import json

import pytest

from host.channels.base import Outgoing
from host.items import Action
from mailboxes.rows import Address
from tests.delivery.conftest import Post
from tests.mailbox.made import KEY, said, snapshot, take

SHAPES: dict[str, tuple[str, dict[str, object], str]] = {
    "chat": ("chat", {"text": "hi"}, "hi"),
    "chat-with-files": ("chat", {"text": "look", "files": ["a.txt", "b.txt"]}, "look\n[files: a.txt, b.txt]"),
    "markdown": ("chat-sdk", {"markdown": "*hi*", "attachments": []}, "*hi*"),
    "card": ("chat-sdk", {"card": {"type": "card", "title": "x"}, "fallbackText": "a card"}, "a card"),
    "task": ("task", {"result": "done", "status": "ok"}, "done"),
    "webhook": ("webhook", {"response": {"status": 200, "body": "pong"}}, "pong"),
}
"""By name: kind, content, and what the platform gets."""


@pytest.mark.req("R030")
async def test_each_shape_reaches_its_adapter_or_its_handler_once(post: Post) -> None:
    rows = [
        said(f"o-{name}", 2 * n + 1, address=Address("telegram", "bot", name), kind=kind, content=json.dumps(content))
        for n, (name, (kind, content, _)) in enumerate(SHAPES.items())
    ]
    asked = {"action": "register_agent", "payload": {"name": "x"}}
    rows.append(said("o-system", 99, kind="system", content=json.dumps(asked)))
    actions: list[Action] = []
    for _ in range(2):  # the second time as after a host that died before it could note how far it had read
        taken = await post.pool.call(KEY, lambda box: take(box, snapshot(rows), reserve=post.delivery.reserve))
        actions += taken.actions
        post.delivery.add(taken.items)
        await post.until_quiet()

    assert {address.platform_id: outgoing for address, outgoing in post.channel.calls} == {
        name: Outgoing(f"o-{name}", 0, text, session=KEY.session_id, in_reply_to="m-1")
        for name, (_, _, text) in SHAPES.items()
    }
    assert len(post.channel.calls) == len(SHAPES)
    assert {post.state(f"o-{name}") for name in SHAPES} == {"sent"}
    assert actions == [Action("o-system", "register_agent", {"name": "x"}, "m-1")]
    assert await post.pool.call(KEY, lambda box: box.open_actions()) == actions
    await post.pool.call(KEY, lambda box: box.answer_action(actions[0], "ok", {"id": "ag-2"}))
    assert await post.pool.call(KEY, lambda box: box.open_actions()) == []
    [heard] = post.heard()
    assert json.loads(str(heard["content"])) == {"action": "register_agent", "status": "ok", "result": {"id": "ag-2"}}
