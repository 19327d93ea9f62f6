"""Starts that fail: nothing is lost, nothing is counted against the message, and a person hears of it once."""

import pytest

from host.fleet import NOTICE_AFTER
from host.runtime.base import RuntimeUnavailable, SandboxRefused
from host.settings import Settings
from mailboxes.rows import InStatus
from tests.fleet.house import House, Machine, until

AWAY = RuntimeUnavailable("No answer from the engine.")


@pytest.mark.fault(1)
async def test_a_start_that_keeps_failing_is_told_once_and_the_message_waits(house: House) -> None:
    house.process.away = AWAY
    await house.send()
    await house.pass_time(2)
    assert house.channel.notices() == []
    await house.pass_time(300)
    assert house.process.asked > NOTICE_AFTER
    assert house.channel.notices() == ["I cannot start now: No answer from the engine. I keep trying."]
    assert [(row["status"], row["tries"]) for row in house.rows()] == [(InStatus.PENDING, 0)]
    assert house.fleet.problems == {house.keys["42"]: "No answer from the engine."}
    house.process.away = None
    await house.pass_time(61)
    sandbox = await house.sandbox()
    sandbox.claim()
    sandbox.answer("here I am")
    await until(lambda: house.channel.texts() == ["here I am"])
    await house.pass_time(1)
    assert house.fleet.problems == {}


@pytest.mark.fault(1)
async def test_a_start_that_fails_and_then_works_is_not_told(house: House) -> None:
    house.process.failures.extend([AWAY, AWAY])
    await house.send()
    await house.pass_time(4)
    sandbox = await house.sandbox()
    sandbox.claim()
    sandbox.answer("here")
    await until(lambda: house.channel.texts() == ["here"])


@pytest.mark.fault(1)
async def test_each_outage_is_told_of_anew(house: House) -> None:
    for outage in (1, 2):
        house.process.failures.extend([AWAY, AWAY, AWAY])
        await house.send()
        await house.pass_time(10)
        sandbox = await house.sandbox()
        sandbox.claim(f"t-{outage}")
        await house.pass_time(1)
        sandbox.answer("done", f"t-{outage}")
        await until(lambda outage=outage: house.channel.texts().count("done") == outage)  # type: ignore[misc]
        await until(lambda: not house.life().busy)
        await house.fleet.stop(house.keys["42"], "the test")
    assert len(house.channel.notices()) == 2


async def test_the_pauses_between_failed_starts_grow_to_a_minute(house: House) -> None:
    house.process.away = AWAY
    await house.send()
    asked = []
    for seconds in (0, 1, 2, 5, 15, 60, 60):
        await house.pass_time(seconds)
        asked.append(house.process.asked)
    assert asked == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.fault(80)
async def test_a_sandbox_that_can_never_start_fails_its_messages_with_the_reason(house: House) -> None:
    house.process.failures.append(SandboxRefused("The image is of another version. Run: innkeeper build"))
    await house.send()
    await until(lambda: house.rows("failed"))
    await until(house.channel.notices)
    assert house.channel.notices() == [
        "The sandbox cannot start: The image is of another version. Run: innkeeper build"
    ]
    await house.pass_time(120, step=5)
    assert house.process.asked == 1
    await house.send("and now?")
    sandbox = await house.sandbox()
    assert len(sandbox.claim()) == 1


@pytest.mark.fault(16, 76)
async def test_while_another_sandbox_of_the_session_lives_none_is_started_and_the_sweep_ends_it(house: House) -> None:
    sandbox = await house.answered()
    await house.fleet.stop(house.keys["42"], "the test")
    stray = house.process.run(sandbox.spec)
    await house.send("more")
    await until(lambda: house.fleet.problems)
    assert house.process.live() == [stray]
    assert house.rows("pending"), "the message is not failed for it"
    await house.pass_time(61)
    await until(lambda: not stray.alive)
    await house.pass_time(61, step=5)
    again = await house.sandbox()
    assert len(again.claim("t-2")) == 1
    assert house.process.most_at_once == 1


@pytest.mark.fault(76)
async def test_a_stop_that_the_engine_fails_to_do_is_logged_and_done_again_and_nothing_starts_meanwhile(
    house: House,
) -> None:
    sandbox = await house.answered()
    sandbox.unstoppable = 2
    house.host.facts._settings.value = Settings(idle_minutes=0.1)
    await house.pass_time(8)
    assert sandbox.signals == ["stop"]
    await house.send("more")
    assert "could not be ended" in house.fleet.problems[house.keys["42"]]
    await house.pass_time(5)
    assert house.process.asked == 1
    await house.pass_time(20)
    await until(lambda: not sandbox.alive)
    assert sandbox.signals == ["stop", "stop", "stop"]
    again = await house.sandbox(after=sandbox)
    assert len(again.claim("t-2")) == 1


@pytest.mark.fault(82)
async def test_an_engine_that_is_away_when_the_host_starts_is_waited_for(machine: Machine) -> None:
    machine.docker.away = AWAY
    async with machine.host(INNKEEPER_RUNTIME="docker") as house:
        await house.send()
        await house.pass_time(60)
        assert len(house.channel.notices()) == 1, "the channels work, and say it once"
        assert house.channel.signs
        machine.docker.away = None
        house.host.images._moves.image_ready = True
        await house.pass_time(61, step=5)
        sandbox = await house.sandbox()
        sandbox.claim()
        sandbox.answer("here")
        await until(lambda: house.channel.texts() == ["here"])


async def test_one_session_that_cannot_start_holds_up_no_other(machine: Machine) -> None:
    async with machine.host(["1", "2"], INNKEEPER_MAX_SANDBOXES="1") as house:
        house.process.failures.append(AWAY)
        await house.send(chat="1")
        await house.send(chat="2")
        sandbox = await house.sandbox("2")
        assert len(sandbox.claim()) == 1
