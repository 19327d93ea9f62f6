"""What a live session's row says, how often it is looked at, and when it may go."""

import pytest

from host.runtime.base import RuntimeName
from tests.fleet.house import House, Machine, until


@pytest.mark.req("R081")
async def test_the_rows_status_follows_the_sandbox(house: House) -> None:
    assert await house.status() == "stopped"
    sandbox = await house.turn()
    await house.pass_time(1)
    assert await house.status() == "running"
    sandbox.answer("done")
    await until(lambda: not house.life().busy)
    await house.pass_time(1)
    assert await house.status() == "idle"
    await house.send("more")
    sandbox.claim("t-2")
    await until(lambda: house.life().busy)
    await house.pass_time(1)
    assert await house.status() == "running"
    sandbox.answer("done again", "t-2")
    await until(lambda: not house.life().busy)
    await house.fleet.stop(house.keys["42"], "the test is over")
    assert await house.status() == "stopped"


@pytest.mark.req("R081", "R133")
@pytest.mark.parametrize("idle", [False, True])
async def test_a_live_mailbox_is_read_every_second_without_a_bell(house: House, idle: bool) -> None:
    await house.send()
    await until(lambda: house.process.sandboxes)
    sandbox = house.process.sandboxes[0]
    await until(lambda: house.life().sandbox)
    sandbox.recover()  # nobody took up the bell
    sandbox.claim()
    if idle:
        sandbox.answer("first")
        await house.pass_time(1)
        await until(lambda: house.channel.texts() == ["first"])
        await house.send("more")
        sandbox.claim("t-2")
    for number in range(3):
        sandbox.say(f"part {number}", "t-2" if idle else "t-1")
        await house.pass_time(1)
        await until(lambda number=number: f"part {number}" in house.channel.texts())  # type: ignore[misc]


@pytest.mark.req("R081")
async def test_a_stopped_sessions_mailbox_is_left_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await house.turn()
    sandbox.answer("done")
    await until(lambda: house.channel.texts() == ["done"])
    await house.fleet.stop(house.keys["42"], "the test stops it")
    await house.host.delivery.settle(5.0)
    used: list[object] = []
    monkeypatch.setattr(house.host.postmaster._pool, "call", lambda *arguments: used.append(arguments))
    await house.pass_time(180, step=5)
    assert used == []


@pytest.mark.req("R082")
async def test_an_idle_sandbox_lives_for_thirty_minutes_and_then_is_stopped(house: House) -> None:
    sandbox = await house.answered()
    await house.pass_time(29 * 60 + 55, step=5)
    await house.pass_time(4)
    assert sandbox.alive
    await house.pass_time(2)
    await until(house.is_gone)
    assert sandbox.signals == ["stop"]
    await until_status(house, "stopped")
    assert house.row(house.rows()[0]["id"])["tries"] == 0
    assert house.process.asked == 1


async def until_status(house: House, status: str) -> None:
    while await house.status() != status:
        pass


@pytest.mark.req("R082")
async def test_a_message_keeps_a_sandbox_for_another_thirty_minutes(house: House) -> None:
    sandbox = await house.answered()
    await house.pass_time(29 * 60, step=5)
    await house.send("more")
    sandbox.claim("t-2")
    sandbox.answer("done again", "t-2")
    await until(lambda: house.channel.texts() == ["done", "done again"])
    await house.pass_time(29 * 60, step=5)
    assert sandbox.alive


@pytest.mark.req("R082")
async def test_a_sandbox_with_work_that_it_has_not_taken_up_is_not_stopped_as_idle(house: House) -> None:
    sandbox = await house.answered()
    await house.send("nobody takes this up")
    await house.pass_time(40 * 60, step=5)
    assert "stop" not in sandbox.signals


@pytest.mark.req("R082")
async def test_idle_minutes_are_the_settings_of_the_moment(house: House) -> None:
    sandbox = await house.answered()
    await house.host.facts.set_setting("idle_minutes", "0.1", "ada")
    await house.pass_time(8)
    await until(house.is_gone)
    assert sandbox.signals == ["stop"]


async def test_a_session_moves_to_a_container_when_it_is_next_idle(machine: Machine) -> None:
    async with machine.host(INNKEEPER_RUNTIME="auto") as house:
        sandbox = await house.turn()
        house.host.images._moves.image_ready = True
        await house.pass_time(5)
        assert sandbox.alive, "a turn is not broken off for it"
        sandbox.answer("done")
        await until(lambda: not house.life().busy)
        await house.pass_time(2)
        await until(house.is_gone)
        assert (sandbox.signals, machine.docker.asked) == (["stop"], 0)
        await house.send("more")
        assert (await house.sandbox()).id.startswith(RuntimeName.DOCKER)
