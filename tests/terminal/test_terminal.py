"""The terminal adapter, through the control socket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from host.channels.base import Channel, NobodyAttached, OutcomeUnknown, Outgoing
from host.channels.registry import ChannelUnknown, channel_types, manifest
from host.channels.terminal import MAX_TEXT, TerminalChannel, chat_of
from host.control import AsyncControlClient
from host.failure import Code, Failure
from mailboxes.limits import MAX_CONTENT_BYTES
from mailboxes.rows import Address
from tests.terminal.conftest import PlayedHost

CLI = Address("terminal", "local", "cli")


@contextlib.asynccontextmanager
async def attached(
    played: PlayedHost, chat: str = "cli"
) -> AsyncIterator[tuple[AsyncControlClient, AsyncIterator[object]]]:
    """A terminal by hand, attached: its connection and its events from here on."""
    async with await AsyncControlClient.connect(played.home.control_socket) as client:
        events = client.stream("chat.attach", chat=chat)
        async with asyncio.timeout(10):
            assert await anext(events) == {"type": "turn", "active": False}
        yield client, events


async def test_the_registry_makes_the_terminal_and_it_is_a_channel() -> None:
    assert "terminal" in channel_types()
    channel: Channel = manifest("terminal").make()
    assert isinstance(channel, TerminalChannel)


async def test_an_unknown_channel_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ChannelUnknown, match="terminal"):
        manifest("carrier-pigeon")


async def test_with_nobody_attached_delivery_says_so(played: PlayedHost) -> None:
    with pytest.raises(NobodyAttached):
        await played.channel.deliver(CLI, Outgoing("d-1", 0, "hello"))


async def test_the_host_hears_when_somebody_attaches(played: PlayedHost) -> None:
    async with attached(played):
        assert played.attached == [CLI]


async def test_a_delivery_is_done_when_the_terminal_has_acknowledged_it(played: PlayedHost) -> None:
    async with attached(played) as (client, events):
        delivery = asyncio.create_task(played.channel.deliver(CLI, Outgoing("d-1", 2, "hello", last=False)))
        async with asyncio.timeout(10):
            assert await anext(events) == {
                "type": "text",
                "delivery_id": "d-1",
                "chunk": 2,
                "last": False,
                "text": "hello",
                "notice": False,
                "files": [],
                "asks": False,
            }
            assert not delivery.done()
            await client.call("chat.ack", chat="cli", delivery_id="d-1", chunk=2)
            assert await delivery == ["d-1/2"]


async def test_without_an_acknowledgement_the_outcome_is_unknown_and_the_silent_terminal_is_gone(
    played: PlayedHost,
) -> None:
    played.channel._ack_seconds = 0.05
    async with attached(played):
        with pytest.raises(OutcomeUnknown):
            await played.channel.deliver(CLI, Outgoing("d-1", 0, "hello"))
        with pytest.raises(NobodyAttached):
            await played.channel.deliver(CLI, Outgoing("d-1", 0, "hello"))


async def test_an_acknowledgement_of_something_else_counts_for_nothing(played: PlayedHost) -> None:
    played.channel._ack_seconds = 0.3
    async with attached(played) as (client, events):
        delivery = asyncio.create_task(played.channel.deliver(CLI, Outgoing("d-1", 0, "hello")))
        await anext(events)
        await client.call("chat.ack", chat="cli", delivery_id="d-1", chunk=1)
        await client.call("chat.ack", chat="cli", delivery_id="d-2", chunk=0)
        await client.call("chat.ack", chat="cli-other", delivery_id="d-1", chunk=0)
        with pytest.raises(OutcomeUnknown):
            await delivery


async def test_the_same_key_again_is_the_same_message(played: PlayedHost) -> None:
    async with attached(played) as (client, _):
        first = await client.call("chat.send", chat="cli", text="hello", key="12345678")
        again = await client.call("chat.send", chat="cli", text="hello", key="12345678")
    assert first == again == {"event_key": "cli:message:12345678"}
    assert len(played.events) == 1


async def test_the_os_user_is_on_record_as_the_name_of_who_wrote(played: PlayedHost) -> None:
    import os
    import pwd

    async with attached(played) as (client, _):
        await client.call("chat.send", chat="cli", text="hello", key="12345678")
    assert played.events[0].sender.display_name == pwd.getpwuid(os.geteuid()).pw_name


async def test_each_agent_has_a_chat_of_its_own(played: PlayedHost) -> None:
    other = Address("terminal", "local", chat_of("porter"))
    assert chat_of(None) == chat_of("main") == "cli"
    async with attached(played, "cli-porter"):
        with pytest.raises(NobodyAttached):
            await played.channel.deliver(CLI, Outgoing("d-1", 0, "hello"))
        played.channel._ack_seconds = 0.05
        with pytest.raises(OutcomeUnknown):
            await played.channel.deliver(other, Outgoing("d-1", 0, "hello"))


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"text": "   ", "key": "12345678"}, "says nothing"),
        ({"text": "\ud800", "key": "12345678"}, "not valid Unicode"),
        ({"text": "x" * MAX_CONTENT_BYTES, "key": "12345678"}, "too long"),
        ({"text": "hello", "key": "short"}, "8 to 64"),
        ({"text": "hello", "key": "a:b:c:d:e"}, "8 to 64"),
        ({"text": "hello"}, "'key'"),
        ({"text": 1, "key": "12345678"}, "'text'"),
        ({"text": "hello", "key": "12345678", "chat": "telegram"}, "cli-<agent>"),
        ({"text": "hello", "key": "12345678", "chat": "cli-../x"}, "cli-<agent>"),
    ],
)
async def test_a_message_that_cannot_be_is_refused_with_the_reason(
    played: PlayedHost, params: dict[str, object], said: str
) -> None:
    async with attached(played) as (client, _):
        with pytest.raises(Failure, match=said):
            await client.call("chat.send", **{"chat": "cli", **params})
    assert not played.events


async def test_the_end_of_a_turn_and_of_a_message_reach_its_chat_alone(played: PlayedHost) -> None:
    async with attached(played) as (_, events), attached(played, "cli-porter") as (_, others):
        played.channel.turn(CLI, active=True)
        await played.channel.typing(CLI, active=True)
        played.channel.settled("cli:message:12345678", failed=True)
        played.channel.settled("cli-porter:message:87654321", failed=False)
        async with asyncio.timeout(10):
            assert [await anext(events) for _ in range(3)] == [
                {"type": "turn", "active": True},
                {"type": "typing", "active": True},
                {"type": "settled", "event_key": "cli:message:12345678", "failed": True, "reason": ""},
            ]
            assert await anext(others) == {
                "type": "settled",
                "event_key": "cli-porter:message:87654321",
                "failed": False,
                "reason": "",
            }


async def test_a_chunk_of_the_longest_text_fits_a_line_of_the_control_socket(played: PlayedHost) -> None:
    longest = "\U0001f600" * MAX_TEXT
    async with attached(played) as (client, events):
        delivery = asyncio.create_task(played.channel.deliver(CLI, Outgoing("d-1", 0, longest)))
        async with asyncio.timeout(10):
            event = await anext(events)
            assert isinstance(event, dict)
            assert event["text"] == longest
            await client.call("chat.ack", chat="cli", delivery_id="d-1", chunk=0)
            await delivery


async def test_a_terminal_that_is_far_behind_is_hung_up_on(played: PlayedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.channels.terminal.MAX_BEHIND", 2)
    async with attached(played) as (_, events):
        for number in range(10):
            played.channel.turn(CLI, active=number % 2 == 0)
        async with asyncio.timeout(10):
            assert len([event async for event in events]) <= 3
        with pytest.raises(NobodyAttached):
            await played.channel.deliver(CLI, Outgoing("d-1", 0, "hello"))


async def test_before_the_host_serves_a_terminal_is_told_that_it_starts(played: PlayedHost) -> None:
    await played.channel.teardown()
    async with await AsyncControlClient.connect(played.home.control_socket) as client:
        with pytest.raises(Failure, match="starting") as caught:
            await client.call("chat.send", chat="cli", text="hello", key="12345678")
    assert caught.value.code is Code.NO_HOST
    assert not played.channel.health().healthy
