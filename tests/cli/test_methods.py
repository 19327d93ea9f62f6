"""What the control socket serves for the commands, with the host's parts played by the test."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from host.control import ControlServer
from host.home import Home
from host.methods import HostFacts, Row, register
from tests.terminal.conftest import command


class PlayedFacts:
    """Remembers what it was asked for, and by whom."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.problems: list[Row] = []

    async def status(self) -> Row:
        return {"host": {"state": "running", "home": "/x\x1b[31m"}, "problems": self.problems, "warnings": []}

    async def view(self, name: str, params: Mapping[str, object]) -> object:
        self.asked.append((name, dict(params)))
        if name == "messages.list":
            return [{"id": "m-12345", "at": "2026-01-02T03:04:05.678Z", "text": "hello", "state": "failed"}]
        return [{"name": "model", "value": "", "source": "default"}]

    async def add_agent(self, name: str, folder: str, actor: str) -> Row:
        return {"name": name, "folder": folder, "actor": actor}

    async def retry_message(self, message_id: str, actor: str) -> Row:
        self.asked.append(("retry", message_id, actor))
        return {"id": message_id, "state": "queued"}

    async def set_setting(self, name: str, value: str | None, actor: str) -> None:
        self.asked.append(("set", name, value))

    async def build_image(self, progress: Callable[[object], Awaitable[None]]) -> Row:
        await progress("Step 1/2 : FROM base")
        return {"tag": "innkeeper-agent:abc", "built": True}

    def request_stop(self, *, restart: bool) -> None:
        self.asked.append(("stop", restart))


@pytest.fixture
async def facts(home: Home) -> AsyncIterator[PlayedFacts]:
    played = PlayedFacts()
    as_contract: HostFacts = played
    server = ControlServer(home.control_socket)
    register(server, as_contract)
    await server.start()
    try:
        yield played
    finally:
        await server.stop()


async def run(*words: str) -> tuple[int, str, str]:
    async with command(*words) as running:
        return await running.end()


async def test_a_build_shows_its_steps_and_then_the_image(facts: PlayedFacts) -> None:
    code, out, err = await run("build")
    assert (code, out) == (0, "The image innkeeper-agent:abc is built.\n")
    assert "Step 1/2" in err
    assert await run("--json", "build") == (0, '{"tag": "innkeeper-agent:abc", "built": true}\n', "")


async def test_a_message_is_tried_again_by_the_beginning_of_its_id(facts: PlayedFacts) -> None:
    code, out, _ = await run("messages", "retry", "m-1", "-y")
    assert code == 0
    assert "m-12345 is tried again" in out
    assert ("messages.list", {"id": "m-1"}) in facts.asked
    assert facts.asked[-1][:2] == ("retry", "m-12345")


async def test_a_value_that_a_setting_cannot_have_never_reaches_the_host(facts: PlayedFacts) -> None:
    code, _, err = await run("config", "set", "model", "x", "-y")
    assert code == 0, err
    assert ("set", "model", "x") in facts.asked
    assert (await run("config", "unset", "model", "-y"))[0] == 0
    assert ("set", "model", None) in facts.asked
    code, _, err = await run("config", "set", "colour", "red", "-y")
    assert code == 5


async def test_down_without_waiting_asks_for_a_stop_and_returns(facts: PlayedFacts) -> None:
    assert (await run("down", "--no-wait"))[0] == 0
    assert facts.asked == [("stop", False)]


async def test_status_says_what_is_wrong_first_and_fails(facts: PlayedFacts) -> None:
    assert (await run("status"))[0] == 0
    facts.problems = [{"what": "Session s-1 does not run: it is broken.", "next": "See `host logs`."}]
    code, out, _ = await run("status")
    assert code == 1
    assert out.startswith("Session s-1 does not run: it is broken. See")
    assert "\x1b" not in out


async def test_hints_say_the_home_that_was_chosen(home: Home) -> None:
    _, _, err = await run("--home", str(home.root), "down")
    assert f"--home {home.root} up" in err
