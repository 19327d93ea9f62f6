"""Files that somebody sends from a terminal: how they are named, and what is read of them."""

import asyncio
import os
from pathlib import Path

import pytest

from host.channels.base import Attachment, NotFetched, TooLarge
from host.cli import attaching
from host.control import AsyncControlClient
from host.failure import Code, Failure
from host.home import Home
from tests.terminal.conftest import PlayedHost, command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my notes.txt"
    path.write_bytes(b"12345")
    return path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/file '{path}' it's  this", "it's  this"),
        ('/file "{path}"', ""),
        ("/file {escaped} look 'here", "look 'here"),
        ("  /file '{path}' # what?", "# what?"),
    ],
)
def test_a_line_that_sends_a_file_keeps_its_words(file: Path, line: str, words: str) -> None:
    typed = line.format(path=file, escaped=str(file).replace(" ", "\\ "))
    assert attaching.split(typed) == (words, (str(file),))


@pytest.mark.parametrize("line", ["hello", "/filet x", "see /file x", "/status"])
def test_any_other_line_is_only_words(line: str) -> None:
    assert attaching.split(line) == (line, ())


@pytest.mark.parametrize("line", ["/file", "/file ''", "/file 'half", "/file /no/such/file", "/file /tmp"])
def test_a_line_that_names_no_file_is_refused_with_the_next_step(line: str) -> None:
    with pytest.raises(Failure) as raised:
        attaching.split(line)
    assert raised.value.next


async def test_chat_sends_files_along_with_or_without_words(played: PlayedHost, file: Path) -> None:
    async with command("chat", "--once", "look", "--file", str(file)) as chat:
        assert (await chat.end())[0] == 0
    async with command("chat", "--file", os.path.relpath(file), "") as chat:
        assert (await chat.end())[0] == 0
    sent = Attachment("my notes.txt", str(file), size=5)
    assert [event.attachments for event in played.events] == [(sent,), (sent,)]
    assert [event.text for event in played.events] == ["look", ""]


async def test_chat_refuses_a_file_that_is_not_there(played: PlayedHost) -> None:
    async with command("chat", "--once", "look", "--file", "no-such-file") as chat:
        code, _, err = await chat.end()
    assert (code, "no-such-file" in err) == (5, True)
    assert played.events == []


@pytest.mark.parametrize("files", ["x", [7], ["relative"], ["/a\0b"], ["/"], ["/x"] * 1000])
async def test_the_host_refuses_what_is_no_list_of_paths(played: PlayedHost, home: Home, files: object) -> None:
    async with await AsyncControlClient.connect(home.control_socket) as client:
        with pytest.raises(Failure) as raised:
            await client.call("chat.send", chat="cli", text="x", key="12345678", files=files)
    assert raised.value.code is Code.USAGE


async def read(played: PlayedHost, path: Path, limit: int = 100) -> bytes:
    came = bytearray()

    async def write(data: bytes) -> None:
        came.extend(data)

    async with asyncio.timeout(10):
        await played.channel.fetch(str(path), write, limit)
    return bytes(came)


@pytest.mark.req("R127")
async def test_a_file_is_read_when_its_message_is_written_and_not_above_the_limit(
    played: PlayedHost, file: Path
) -> None:
    assert await read(played, file) == b"12345"
    with pytest.raises(TooLarge):
        await read(played, file, limit=4)


@pytest.mark.req("R129")
async def test_what_is_no_file_any_more_is_not_fetched(played: PlayedHost, file: Path) -> None:
    file.unlink()
    with pytest.raises(NotFetched, match="No such file"):
        await read(played, file)
    os.mkfifo(file)
    with pytest.raises(NotFetched, match="no regular file"):
        await read(played, file)
