"""Files go with their message as the platform takes them, each once; where it takes none, a line names them."""

import json
from collections.abc import Sequence

import pytest

from host import untrusted
from host.channels.base import Capabilities, NotSent, OutcomeUnknown
from host.outbound_files import OutboundFiles, remove
from mailboxes.rows import MessageOut
from tests.delivery.conftest import Post
from tests.mailbox.made import KEY, said, snapshot


async def say(post: Post, names: Sequence[str], text: str = "look") -> None:
    """As the host does: the files are copied, then the row is taken over."""
    untrusted.provision_outbound(post.folder, None, None)
    folder = post.folder / "outbound" / "files" / "o-1"
    folder.mkdir()
    for name in names:
        (folder / name).write_text(name)
    row: MessageOut = said("o-1", 1, content=json.dumps({"text": text, "files": list(names)}))
    copies = await OutboundFiles(post.home).take(KEY, snapshot([row]), [row])
    assert copies.refused == {}
    await post.say(row)


def seen(post: Post) -> list[tuple[str, list[str], bool]]:
    return [(out.text, [file.name for file in out.files], out.last) for _, out in post.channel.taken]


@pytest.mark.req("R130", "R140")
async def test_each_file_is_a_chunk_behind_the_text(post: Post) -> None:
    post.channel.capabilities = Capabilities(files=True)
    await say(post, ["a.txt", "b.txt"])
    await post.until_quiet()
    assert seen(post) == [("look", [], False), ("", ["a.txt"], False), ("", ["b.txt"], True)]
    assert [file.path.read_text() for _, out in post.channel.taken for file in out.files] == ["a.txt", "b.txt"]


@pytest.mark.req("R130")
@pytest.mark.parametrize("text", ["look", ""])
async def test_where_text_and_files_are_one_message_they_go_together(post: Post, text: str) -> None:
    post.channel.capabilities = Capabilities(files=True, attaches=True)
    await say(post, ["a.txt", "b.txt"], text)
    await post.until_quiet()
    assert seen(post) == [(text, ["a.txt", "b.txt"], True)]


@pytest.mark.req("R137")
async def test_where_a_platform_takes_no_files_a_line_names_them(post: Post) -> None:
    await say(post, ["a.txt", "b.txt"])
    await post.until_quiet()
    assert seen(post) == [("look\n[files: a.txt, b.txt]", [], True)]


@pytest.mark.req("R140")
@pytest.mark.fault(28)
@pytest.mark.parametrize("error", [NotSent("blip"), OutcomeUnknown("lost")], ids=["not sent", "unknown"])
async def test_a_file_that_fails_is_sent_again_without_those_before_it(post: Post, error: Exception) -> None:
    post.channel.capabilities = Capabilities(files=True)
    post.channel.plan("42", None, None, error)
    await say(post, ["a.txt", "b.txt"])
    if isinstance(error, NotSent):
        await post.until_held_up("blip")
        await post.restart()
        await post.clock.advance(7)
    await post.until_quiet()
    assert [names for _, names, _ in seen(post)] == [[], ["a.txt"], ["b.txt"]]
    assert post.state("o-1") == "sent"


@pytest.mark.req("R130")
async def test_files_that_are_gone_by_the_time_are_named(post: Post) -> None:
    post.channel.capabilities = Capabilities(files=True)
    post.channel.plan("42", NotSent("blip"))
    await say(post, ["a.txt"])
    await post.until_held_up("blip")
    remove(post.folder, "o-1")
    await post.restart()
    await post.clock.advance(7)
    await post.until_quiet()
    assert [(text, names) for text, names, _ in seen(post)][-1] == ("look\n[files: a.txt]", [])
