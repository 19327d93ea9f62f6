"""The sign that somebody writes: on while a session works, paused after each of its words, off with its sandbox."""

import pytest

from tests.fleet.house import House, until


@pytest.mark.req("R141")
async def test_the_sign_is_shown_refreshed_paused_after_a_word_and_gone_with_the_turn(house: House) -> None:
    sandbox = await house.turn()
    assert house.channel.signs == [("42", True)]
    await house.pass_time(9)
    assert house.channel.signs == [("42", True)] * 3
    sandbox.say("a first word")
    await until(lambda: house.channel.signs[-1] == ("42", False))
    shown = len(house.channel.signs)
    await house.pass_time(9)
    assert len(house.channel.signs) == shown
    await house.pass_time(4)
    assert house.channel.signs[-1] == ("42", True)
    sandbox.answer("done")
    await until(lambda: house.channel.signs[-1] == ("42", False))
    shown = len(house.channel.signs)
    await house.pass_time(30)
    assert len(house.channel.signs) == shown


@pytest.mark.req("R141")
async def test_the_sign_goes_when_the_sandbox_crashes(house: House) -> None:
    sandbox = await house.turn()
    sandbox.exit(137)
    await until(lambda: house.channel.signs[-1] == ("42", False))


@pytest.mark.req("R141")
@pytest.mark.fault(40)
async def test_no_sign_outlives_the_longest_turn(house: House) -> None:
    await house.host.facts.set_setting("turn_minutes", "600", "ada")
    await house.turn()
    await house.pass_time(3700, step=4)
    assert house.channel.signs[-1] == ("42", False)


@pytest.mark.req("R141")
async def test_a_platform_that_refuses_the_sign_gets_the_answer_all_the_same(house: House) -> None:
    house.channel.sign_fails = OSError("no such method")
    sandbox = await house.turn()
    sandbox.answer("here")
    await until(lambda: house.channel.texts() == ["here"])
