"""What is broken in one session's files is that session's alone, and is told of."""

import pytest

from host.channels.base import InboundEvent
from mailboxes.rows import Address
from tests.fleet.house import ADA, House, Machine, until


async def send(house: House, words: str, chat: str) -> None:
    """A person writes; returns when it is committed, which is not yet when it is in the mailbox."""
    assert house.channel.accept is not None
    await house.channel.accept([InboundEvent(words, Address("telegram", "bot", chat), ADA, words)], None)


def told(house: House, chat: str) -> list[str]:
    """All that came to a chat."""
    return [outgoing.text for address, outgoing in house.channel.taken if address.platform_id == chat]


@pytest.mark.req("R155")
@pytest.mark.fault(88)
async def test_a_broken_inbound_mailbox_holds_up_its_own_session_and_the_chat_and_status_hear_of_it(
    machine: Machine,
) -> None:
    async with machine.host(["bad", "good"]) as house:
        await house.answered("bad")
        await house.fleet.stop(house.keys["bad"], "the test")
        await house.host.delivery.settle(5.0)
        await house.host.postmaster._pool.forget(house.keys["bad"])
        path = house.folder("bad") / "inbound" / "inbound.db"
        whole = path.read_bytes()
        path.write_bytes(b"no database at all" * 500)
        await send(house, "for the broken one", "bad")
        await until(lambda: house.host.postmaster._pool.broken)
        await send(house, "for the other one", "good")
        good = await house.sandbox("good")
        assert good.claim("t-good")
        good.answer("done", "t-good")
        await until(lambda: house.channel.texts("good") == ["done"])
        await house.pass_time(120, step=5)
        problems = (await house.host.facts.status())["problems"]
        assert isinstance(problems, list)
        [said] = problems
        assert house.keys["bad"].session_id in said["what"]
        assert "file is not a database" in said["what"]
        assert said["next"]
        await until(lambda: len(told(house, "bad")) == 2)
        assert told(house, "bad")[1:] == [
            "Your message is here and waits, because I cannot write it down: file is not a database. I keep trying."
        ]
        await house.host.postmaster._pool.forget(house.keys["bad"])
        path.write_bytes(whole)
        await house.pass_time(61, step=5)
        await until(lambda: not house.host.postmaster._pool.broken)
        bad = await house.sandbox("bad")
        assert len(bad.claim("t-bad")) == 1
        assert (await house.host.facts.status())["problems"] == []
