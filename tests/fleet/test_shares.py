"""Fair shares of the places, played by a whole host: nobody waits for ever, and nobody loses anything by giving way."""

import pytest

from tests.fakes.runtime import ScriptedSandbox
from tests.fleet.house import House, Machine, until


@pytest.mark.req("R080", "R220")
async def test_who_has_waited_for_half_a_minute_gets_the_place_of_the_one_that_works_for_longest(
    machine: Machine,
) -> None:
    async with machine.host(["1", "2", "3"], INNKEEPER_MAX_SANDBOXES="2") as house:
        longest = await house.turn("1")
        await house.pass_time(10)
        second = await house.turn("2")
        await house.send(chat="3")
        await house.pass_time(29)
        assert (longest.signals, second.signals) == ([], [])
        await house.pass_time(2)
        assert (longest.signals, second.signals) == (["stop"], [])
        third = await house.sandbox("3")
        assert third.claim("t-3")
        assert house.fleet.queued() == [house.keys["1"]], "it goes on later"
        third.answer("short", "t-3")
        await until(lambda: house.channel.texts("3") and not house.life("3").busy)
        await house.pass_time(2)
        again = await house.sandbox("1", after=longest)
        assert len(again.claim("t-4")) == 1
        again.answer("done after all", "t-4")
        await until(lambda: house.channel.texts("1") == ["done after all"])
        assert [row["tries"] for chat in ("1", "2", "3") for row in house.rows(chat=chat)] == [0, 0, 0]
        assert house.channel.notices() == []


@pytest.mark.req("R080")
async def test_two_long_turns_on_one_place_both_come_to_their_end(machine: Machine) -> None:
    """Each takes two minutes in one go."""
    async with machine.host(["1", "2"], INNKEEPER_MAX_SANDBOXES="1") as house:
        await house.send(chat="1")
        await house.send(chat="2")
        begun: dict[str, float] = {}
        for _ in range(500):
            if len(house.channel.texts("1") + house.channel.texts("2")) == 2:
                break
            await _work(house, begun, 120)
            await house.pass_time(2, step=2)
        assert (house.channel.texts("1"), house.channel.texts("2")) == (["done"], ["done"])
        assert [row["tries"] for chat in ("1", "2") for row in house.rows(chat=chat)] == [0, 0]
        assert machine.process.most_at_once == 1


async def _work(house: House, begun: dict[str, float], seconds: float) -> None:
    """Has the live runners begin their turns, and end those that have lasted long enough."""
    for chat, key in house.keys.items():
        if key not in house.fleet.live() or house.fleet.live()[key].stopping is not None:
            continue
        sandbox = await house.sandbox(chat)
        turn = f"t-{sandbox.id}"
        if turn not in begun:
            if sandbox.claim(turn):
                begun[turn] = house.clock.monotonic()
        elif house.clock.monotonic() - begun[turn] >= seconds and house.rows("processing", chat):
            sandbox.answer("done", turn)
            await until(lambda chat=chat: house.channel.texts(chat))  # type: ignore[misc]


@pytest.mark.req("R080", "R155")
async def test_an_agent_with_many_chats_leaves_half_of_the_places_to_the_others(machine: Machine) -> None:
    many = [f"many/{number}" for number in range(8)]
    others = ["ann/1", "bob/1"]
    async with machine.host([*many, *others], INNKEEPER_MAX_SANDBOXES="4") as house:
        for number, chat in enumerate(many[:4]):
            await house.turn(chat, f"t-{number}")
        assert len(house.fleet.live()) == 4, "alone it takes all"
        for chat in [*many[4:], *others]:
            await house.send(chat=chat)
        await house.pass_time(31)
        first = await house.sandbox("ann/1")
        assert first.claim("t-ann")
        await house.pass_time(2)
        second = await house.sandbox("bob/1")
        assert second.claim("t-bob")
        held = [key.agent_group_id for key in house.fleet.live()]
        assert held.count(house.keys["many/0"].agent_group_id) == 2
        await _until_answered(house, "ann/1", first, "t-ann")
        await house.pass_time(2)
        assert len(house.fleet.live()) == 4, "a place that no other wants is not left empty"
        assert house.fleet.live()[house.keys["bob/1"]].stopping is None


async def _until_answered(house: House, chat: str, sandbox: ScriptedSandbox, turn: str) -> None:
    sandbox.answer("done", turn)
    await until(lambda: house.channel.texts(chat))


@pytest.mark.req("R080")
async def test_a_warm_sandbox_is_not_charged_for_the_time_in_which_nobody_waited(machine: Machine) -> None:
    async with machine.host(["1", "2", "3"], INNKEEPER_MAX_SANDBOXES="2") as house:
        warm = await house.answered("1")
        await house.pass_time(600, step=5)
        working = await house.turn("2", "t-2")
        await house.pass_time(10)
        await house.send("more", "1")
        assert warm.claim("t-3")
        await until(lambda: house.life("1").busy)
        await house.send(chat="3")
        await house.pass_time(32)
        assert (warm.signals, working.signals) == ([], ["stop"])


async def test_a_setting_that_makes_more_places_is_in_force_within_a_second(machine: Machine) -> None:
    async with machine.host(["1", "2"], INNKEEPER_MAX_SANDBOXES="1") as house:
        await house.turn("1")
        await house.send(chat="2")
        house.host.facts._settings.value = type(house.host.facts._settings.value)(max_sandboxes=2, runtime="process")
        await house.pass_time(1)
        await house.sandbox("2")
