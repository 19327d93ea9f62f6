"""`/simulate-failure` in `host chat`: a part of what comes to the terminal fails, and the numbers of it add up."""

from collections.abc import AsyncIterator, Iterator

import pytest

from host.channels.base import NobodyAttached, NotSent, OutcomeUnknown, Outgoing
from host.channels.failing import FailingTerminal
from host.channels.terminal import TerminalChannel
from host.failure import Failure
from host.home import Home
from tests.delivery.conftest import Post, post, until
from tests.mailbox.made import said
from tests.terminal.conftest import PlayedHost, command
from tests.terminal.test_terminal import CLI, attached

__all__ = ["post"]


class Practice(PlayedHost):
    """A host whose terminal fails as the test draws."""

    draws: Iterator[float]

    def _channel(self) -> TerminalChannel:
        async def open_still(_event_key: str) -> bool | None:
            return None

        return FailingTerminal(outcome=open_still, ack_seconds=0.2, draw=lambda: next(self.draws))


@pytest.fixture
async def practice(home: Home) -> AsyncIterator[Practice]:
    made = Practice(home)
    made.draws = iter(())
    await made.start()
    yield made
    await made.stop()


def numbers(answer: object) -> tuple[object, ...]:
    assert isinstance(answer, dict)
    return tuple(answer[name] for name in ("rate", "attempted", "succeeded", "failed", "pending"))


@pytest.mark.req("R243")
async def test_it_fails_at_its_rate_and_counts_what_it_does(practice: Practice) -> None:
    async with attached(practice) as (client, _):
        assert numbers(await client.call("chat.simulate_failure")) == (0.5, 0, 0, 0, 0)
        practice.draws = iter([0.4, 0.6])
        with pytest.raises(NotSent, match="simulated"):
            await practice.channel.deliver(CLI, Outgoing("d-1", 0, "hello"))
        with pytest.raises(OutcomeUnknown):  # it passes, and this terminal acknowledges nothing
            await practice.channel.deliver(CLI, Outgoing("d-1", 0, "hello"))
    with pytest.raises(NobodyAttached):
        await practice.channel.deliver(CLI, Outgoing("d-1", 0, "hello"))
    async with attached(practice) as (client, _):
        assert numbers(await client.call("chat.simulate_failure", rate=1)) == (1.0, 2, 0, 2, 0)
        assert numbers(await client.call("chat.simulate_failure")) == (0.0, 2, 0, 2, 0)
        for wrong in (-0.1, 1.1, "half", True):
            with pytest.raises(Failure, match="from 0 to 1"):
                await client.call("chat.simulate_failure", rate=wrong)


@pytest.mark.req("R243")
async def test_it_is_reached_from_a_chat_and_no_agent_hears_of_it(practice: Practice) -> None:
    async with command("chat") as chat:
        code, out, _ = await chat.end(b"hi\n/simulate-failure 0.25\n/simulate-failure\n")
    assert code == 0
    assert out.splitlines() == [
        "hi",
        "25% of what comes here fails. So far: 1 attempted, 1 succeeded, 0 failed, 0 pending.",
        "0% of what comes here fails. So far: 1 attempted, 1 succeeded, 0 failed, 0 pending.",
    ]
    assert [event.text for event in practice.events] == ["hi"]


@pytest.mark.req("R243")
async def test_what_waits_is_pending(post: Post) -> None:
    post.channel.plan("42", NotSent("blip"))
    await post.say(said("o-1", 1), said("o-2", 3))
    await post.until_held_up("blip")
    assert post.delivery.queued("telegram") == 2
    assert post.delivery.queued("terminal") == 0
    await post.clock.advance(7)
    await until(lambda: post.delivery.queued("telegram") == 0)
