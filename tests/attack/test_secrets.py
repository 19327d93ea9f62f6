"""A canary for a key and one for a message: every error forced, then nothing of them where it does not belong."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.broker.keys import Key, Scrubber
from host.home import Home
from tests.fakes.messages_api import Fail, MessagesApi, Say, Truncate, Use
from tests.whole.harness import running

KEY = "sk-canary-a81f04c2"
OTHER = "token-canary-77bd19"
WORDS = "words-canary-5512ee"

_COMMAND = "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' ' '; cat %s/.env /workspace/*/.env"


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi(KEY) as started:
        yield started


def children_of(pid: int) -> Iterator[Path]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield Path("/proc", child)
            yield from children_of(int(child))


def everything_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != ".env":
            yield path, path.read_bytes()


@pytest.mark.req("R089")
@pytest.mark.fault(124, 125)
@pytest.mark.parametrize("kind", ["process", pytest.param("docker", marks=pytest.mark.docker)])
async def test_no_key_and_no_message_gets_where_it_does_not_belong(
    home: Home, api: MessagesApi, request: pytest.FixtureRequest, kind: str
) -> None:
    if kind == "docker":
        request.getfixturevalue("agent_image")
    home.env_file.write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    environment = {"INNKEEPER_RUNTIME": kind, "ANTHROPIC_BASE_URL": api.url, "TELEGRAM_BOT_TOKEN": OTHER}
    async with running(home, environment) as (host, terminal):
        await terminal.ask(f"hello {WORDS}")
        api.next(Use((("bash", {"command": _COMMAND % home.root}),)))
        await terminal.ask("look around")
        seen = b""
        for child in children_of(host.pid):
            with contextlib.suppress(FileNotFoundError):
                seen += (child / "environ").read_bytes() + (child / "cmdline").read_bytes()
        for behaviour in (
            Fail(401, "authentication_error", f"The key {KEY} is wrong."),
            Say(f"Your key is {KEY}."),
            Truncate(),
            Fail(400, "invalid_request_error", f"{KEY} {WORDS}"),
        ):
            api.next(behaviour)
            await terminal.ask(f"{WORDS} once more", seconds=90)
        printed = host.output()
    assert any(call.headers["x-api-key"] == KEY for call in api.calls), "the canary went where it belongs"
    assert any("HOME=/workspace/agent/home" in text for text in terminal.texts), "the tool has looked"
    assert "Your key is [key]." in terminal.texts
    said = "\n".join([*terminal.texts, *terminal.notices, printed]).encode() + seen
    places = dict(everything_below(home.root))
    for canary in (KEY, OTHER):
        assert canary.encode() not in said
        assert [path for path, content in places.items() if canary.encode() in content] == []
    logs = b"".join(content for path, content in places.items() if path.is_relative_to(home.logs))
    assert WORDS.encode() not in logs
    assert places[home.logs / "host.log"]


@pytest.mark.req("R089")
@pytest.mark.parametrize("size", [1, 2, 5, 17, 1000])
def test_a_key_in_an_answer_is_struck_out_however_it_is_cut(size: int) -> None:
    text = f"sk-canary-{KEY}{KEY} sk-{KEY[:-1]} {KEY} end sk-can".encode()
    scrubber = Scrubber(Key(KEY))
    out = b"".join(scrubber.feed(text[start : start + size]) for start in range(0, len(text), size)) + scrubber.rest()
    assert out == text.replace(KEY.encode(), b"[key]")


def test_what_cannot_be_a_key_is_not_held_back() -> None:
    assert Scrubber(Key(KEY)).feed(b'data: {"type": "ping"}\n\n') == b'data: {"type": "ping"}\n\n'
