"""`host chat` against the real control socket and the real terminal channel."""

import asyncio
import json
import signal

import pytest

from host.channels.base import InboundEvent
from host.home import Home
from host.lock import home_lock
from tests.terminal.conftest import PlayedHost, command


@pytest.mark.req("R066")
async def test_a_piped_line_becomes_a_message_of_cli_user_and_the_reply_is_printed(played: PlayedHost) -> None:
    async with command("chat") as chat:
        code, out, err = await chat.end(b"hi\n")
    assert (code, out, err) == (0, "hi\n", "")
    (event,) = played.events
    assert event.sender.user_id(event.address.channel_type) == "terminal:cli-user"
    assert event.address.platform_id == "cli"


@pytest.mark.req("R066")
async def test_each_piped_line_waits_for_the_end_of_the_turn_before_it_and_blank_lines_are_ignored(
    played: PlayedHost,
) -> None:
    played.answer = lambda event: [f"{event.text} {number}" for number in (1, 2)]
    async with command("chat") as chat:
        code, out, _ = await chat.end(b"one\n\n   \ntwo\r\nthree")
    assert code == 0
    assert out.splitlines() == ["one 1", "one 2", "two 1", "two 2", "three 1", "three 2"]


async def test_once_sends_its_text_prints_what_came_and_ends(played: PlayedHost) -> None:
    async with command("chat", "--once", "hello") as chat:
        assert await chat.end() == (0, "hello\n", "")


async def test_once_without_a_text_sends_all_of_standard_input_as_one_message(played: PlayedHost) -> None:
    async with command("chat", "--once") as chat:
        code, out, _ = await chat.end(b"two\nlines")
    assert (code, out) == (0, "two\nlines\n")


async def test_once_in_json_is_one_document(played: PlayedHost) -> None:
    async with command("--json", "chat", "--once", "hello") as chat:
        code, out, _ = await chat.end()
    assert code == 0
    assert json.loads(out) == {"failed": False, "messages": [{"text": "hello", "notice": False, "files": []}]}


async def test_a_turn_that_failed_makes_the_command_fail(played: PlayedHost) -> None:
    played.failing = True
    async with command("chat", "--once", "hello") as chat:
        code, out, _ = await chat.end()
    assert (code, out) == (1, "hello\n")


async def test_a_turn_that_takes_too_long_is_said_with_the_next_step(played: PlayedHost) -> None:
    async def never(event: InboundEvent) -> None:
        await asyncio.Event().wait()

    played.turn = never  # type: ignore[method-assign]
    async with command("chat", "--once", "--timeout", "0.5", "hello") as chat:
        code, out, err = await chat.end()
    assert (code, out) == (1, "")
    assert "has not ended within 0.5 s" in err
    assert "--timeout" in err


async def test_control_characters_of_an_agent_never_reach_the_terminal(played: PlayedHost) -> None:
    played.answer = lambda _event: ["\x1b]0;owned\x07 a\u202eb"]
    async with command("chat", "--once", "hello") as chat:
        _, out, _ = await chat.end()
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\u202e" not in out


async def test_ctrl_c_ends_a_waiting_chat_with_130_and_no_traceback(played: PlayedHost) -> None:
    async with command("chat") as chat:
        async with asyncio.timeout(20):
            while not played.attached:
                await asyncio.sleep(0.01)
        chat.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            code = await chat.process.wait()
            assert chat.process.stderr is not None
            err = await chat.process.stderr.read()
    assert code == 130
    assert b"Traceback" not in err


async def test_a_line_that_was_sent_before_a_restart_of_the_host_is_answered_once(played: PlayedHost) -> None:
    held = asyncio.Event()
    echo = played.turn

    async def slow(event: object) -> None:
        await held.wait()

    played.turn = slow  # type: ignore[method-assign]
    async with command("chat", "--once", "hello") as chat:
        ending = asyncio.create_task(chat.end())
        async with asyncio.timeout(20):
            while not played.events:
                await asyncio.sleep(0.01)
        await played.restart()
        async with asyncio.timeout(20):
            while len(played.attached) < 2:
                await asyncio.sleep(0.01)
        await echo(played.events[0])
        assert await ending == (0, "hello\n", "")
    assert len(played.events) == 1


async def test_a_turn_that_settled_while_the_terminal_was_away_is_heard_of_when_it_is_back(played: PlayedHost) -> None:
    async def never(event: object) -> None:
        await asyncio.Event().wait()

    played.turn = never  # type: ignore[method-assign]
    async with command("chat", "--once", "hello") as chat:
        ending = asyncio.create_task(chat.end())
        async with asyncio.timeout(20):
            while not played.events:
                await asyncio.sleep(0.01)
        played.done[played.events[0].event_key] = False
        await played.restart()
        code, out, _ = await ending
    assert (code, out) == (0, "")


async def test_a_host_that_holds_the_home_and_does_not_serve_yet_is_waited_for(home: Home) -> None:
    played = PlayedHost(home)
    with home_lock(home.lock_file):
        async with command("--debug", "chat", "--once", "hello") as chat:
            # It says that it waits, and only then does the host serve.
            assert chat.process.stderr is not None
            async with asyncio.timeout(20):
                assert await chat.process.stderr.readline() == b"Waiting for the host that is starting ...\n"
            await played.start()
            try:
                assert (await chat.end())[:2] == (0, "hello\n")
            finally:
                await played.stop()


async def test_two_terminals_of_one_chat_both_see_the_answer(played: PlayedHost) -> None:
    async with command("chat") as watching, command("chat", "--once", "hello") as asking:
        async with asyncio.timeout(20):
            while not played.attached:
                await asyncio.sleep(0.01)
        assert (await asking.end())[1] == "hello\n"
        assert (await watching.end())[1].splitlines()[:1] in ([], ["hello"])
