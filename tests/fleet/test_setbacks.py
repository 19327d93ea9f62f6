"""A session that breaks again and again is started ever more slowly, and is told of once; the others feel nothing."""

import pytest

from host.runtime.base import RuntimeUnavailable
from tests.fakes.runtime import ScriptedSandbox
from tests.fleet.house import House, Machine, until


async def crash(house: House, after: ScriptedSandbox | None, chat: str = "42") -> ScriptedSandbox:
    """A claim, and the end of the sandbox."""
    sandbox = await house.sandbox(chat, after=after)
    sandbox.claim(sandbox.id)
    sandbox.exit(1)
    await until(lambda: house.is_gone(chat))
    return sandbox


@pytest.mark.req("R155")
@pytest.mark.fault(1)
async def test_a_session_that_crashes_at_whatever_comes_is_not_started_for_each_message(house: House) -> None:
    """A message a second for five minutes, and a sandbox that ends at each of them."""
    sandbox = None
    for number in range(300):
        await house.send(f"message {number}")
        await house.settle()
        if house.fleet.live():
            sandbox = await crash(house, sandbox)
        await house.pass_time(1)
    assert 5 <= house.process.asked <= 12, "1, 2, 5, 15 and then 60 seconds lie between two starts"
    [problem] = house.fleet.problems.values()
    assert "times in a row" in problem
    assert house.fleet.again_in(house.keys["42"])
    assert "times in a row" in house.fleet.incidents[house.keys["42"]]


@pytest.mark.req("R155")
async def test_a_message_that_crashes_its_runner_is_told_once_in_the_chat(house: House) -> None:
    await house.send("poison")
    sandbox = None
    for seconds in (5, 10, 20, 40, 0):
        sandbox = await crash(house, sandbox)
        await house.pass_time(seconds)
    await until(house.channel.notices)
    await house.pass_time(300, step=5)
    assert len(house.channel.notices()) == 1
    assert "I could not answer" in house.channel.notices()[0]
    assert house.fleet.problems == {}, "nothing waits any more, so nothing is wrong now"


@pytest.mark.req("R155")
async def test_a_turn_that_ends_makes_the_session_well_again(house: House) -> None:
    await house.send("first")
    first = await crash(house, None)
    await house.pass_time(5)
    second = await crash(house, first)
    await house.pass_time(10)
    third = await house.sandbox(after=second)
    third.claim("t-3")
    third.answer("done", "t-3")
    await until(lambda: house.channel.texts() == ["done"] and not house.life().busy)
    await house.pass_time(1)
    await house.send("second")
    third.claim("t-4")
    third.exit(1)
    await until(house.is_gone)
    assert house.fleet.again_in(house.keys["42"]) is None, "the first crash in a row costs no pause"
    assert house.fleet.problems == {}


@pytest.mark.req("R082", "R155")
async def test_a_runner_that_leaves_in_the_middle_of_each_turn_is_started_ever_more_slowly_and_told_of(
    house: House,
) -> None:
    await house.send()
    sandbox = None
    for _ in range(4):
        sandbox = await house.sandbox(after=sandbox)
        sandbox.claim(sandbox.id)
        sandbox.exit(0)
        await until(house.is_gone)
        await house.pass_time(15)
    assert house.process.asked <= 5
    assert house.rows()[0]["tries"] == 0
    [notice] = house.channel.notices()
    assert "I keep trying" in notice


@pytest.mark.req("R155")
async def test_a_session_that_crashes_holds_up_no_other(machine: Machine) -> None:
    async with machine.host(["bad", "good"], INNKEEPER_MAX_SANDBOXES="1") as house:
        await house.send(chat="bad")
        sandbox = None
        for seconds in (5, 10):
            sandbox = await crash(house, sandbox, "bad")
            await house.pass_time(seconds)
        await crash(house, sandbox, "bad")
        await house.send("more", "bad")
        await house.send(chat="good")
        good = await house.sandbox("good")
        assert good.claim("t-good")
        good.answer("done", "t-good")
        await until(lambda: house.channel.texts("good") == ["done"])


@pytest.mark.req("R155")
@pytest.mark.fault(1)
async def test_an_engine_that_goes_away_after_crashes_is_told_of_all_the_same(house: House) -> None:
    await house.send()
    sandbox = None
    for seconds in (5, 10, 20):
        sandbox = await crash(house, sandbox)
        await house.pass_time(seconds if seconds < 20 else 1)
    house.process.away = RuntimeUnavailable("No answer from the engine.")
    await house.pass_time(300, step=5)
    assert house.channel.notices() == ["I cannot start now: No answer from the engine. I keep trying."]
