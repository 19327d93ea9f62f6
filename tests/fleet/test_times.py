"""What is due later, and what a sweep does."""

import pytest

from host.mailbox import Mailbox
from mailboxes.clock import later
from mailboxes.rows import Kind, MessageIn
from tests.fleet.house import House, Machine, until


async def put_for_later(house: House, seconds: float, chat: str = "42") -> None:
    """A row of a stopped session that is due in so many seconds."""
    due = later(house.clock.now(), seconds)
    row = MessageIn("m-late", Kind.CHAT, due, '{"text": "later"}', process_after=due)

    def put(mailbox: Mailbox) -> str | None:
        mailbox.put([row])
        return mailbox.next_due()

    post = house.host.postmaster
    post._due.set(house.keys[chat], await post._pool.call(house.keys[chat], put))


async def say_later_and_stop(house: House, seconds: float, chat: str = "42") -> None:
    """The session says something that is to be delivered in so many seconds, and stops."""
    sandbox = await house.turn(chat)
    sandbox.answer("in a while")
    sandbox.write(f"UPDATE messages_out SET deliver_after = '{later(house.clock.now(), seconds)}'")
    await house.fleet.stop(house.keys[chat], "the test")


@pytest.mark.req("R133")
async def test_a_reply_is_delivered_on_the_ring(house: House) -> None:
    sandbox = await house.turn()
    sandbox.answer("at once")
    await until(lambda: house.channel.texts() == ["at once"])  # no time has passed


@pytest.mark.req("R133")
async def test_what_a_stopped_session_wanted_said_later_is_said_on_time(house: House) -> None:
    await say_later_and_stop(house, 90)
    await house.pass_time(89)
    assert house.channel.texts() == []
    await house.pass_time(2)
    await until(lambda: house.channel.texts() == ["in a while"])
    assert house.process.asked == 1


@pytest.mark.req("R133", "R151")
async def test_a_message_that_is_due_later_wakes_a_stopped_session_on_time(house: House) -> None:
    sandbox = await house.answered()
    await house.fleet.stop(house.keys["42"], "the test")
    await put_for_later(house, 30)
    await house.pass_time(29)
    assert house.process.asked == 1
    await house.pass_time(2)
    again = await house.sandbox(after=sandbox)
    assert again.claim("t-2") == ["m-late"]


@pytest.mark.req("R133")
async def test_a_message_for_later_outlives_the_host(machine: Machine) -> None:
    async with machine.host() as house:
        sandbox = await house.turn()
        sandbox.exit(1)
        await house.settle()
        assert house.rows()[0]["process_after"] == later(house.clock.now(), 5)
    async with machine.host() as house:
        await house.pass_time(4)
        assert machine.process.asked == 1
        await house.pass_time(2)
        assert machine.process.asked == 2


@pytest.mark.req("R151")
async def test_one_minute_wakes_what_is_due_judges_what_is_dead_and_delivers_what_waited(machine: Machine) -> None:
    async with machine.host(["due", "dead", "said"]) as house:
        await put_for_later(house, 40, "due")
        await say_later_and_stop(house, 40, "said")
        dead = await house.turn("dead")
        dead.beats = False
        await house.pass_time(64)
        assert house.rows(chat="dead")[0]["tries"] == 1
        assert (await house.sandbox("due")).claim("t-9") == ["m-late"]
        await until(lambda: house.channel.texts("said") == ["in a while"])
