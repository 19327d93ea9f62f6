"""Alive is told from dead by beats alone, on the host's own clock; and how long one turn may take."""

import pytest

from host.db import pending_questions
from host.db.pending_questions import Pending
from mailboxes.clock import later, to_text
from tests.fakes.runtime import ScriptedSandbox
from tests.fleet.house import House, until


@pytest.mark.req("R152", "R154")
@pytest.mark.fault(69)
async def test_a_turn_of_forty_minutes_whose_runner_beats_is_left_alone(house: House) -> None:
    sandbox = await house.turn()
    await house.pass_time(12 * 60, step=5)
    assert (sandbox.alive, house.rows()[0]["tries"], house.rows()[0]["status"]) == (True, 0, "processing")
    await house.pass_time(28 * 60, step=5)
    assert sandbox.alive
    sandbox.answer("at last")
    await until(lambda: house.channel.texts() == ["at last"])
    assert house.process.asked == 1
    assert house.rows()[0]["tries"] == 0


async def put_question(house: House, hours: float) -> None:
    now, session = house.clock.now(), house.keys["42"].session_id
    row = Pending(
        "q-1", session, "o-1", "42", "telegram", "bot", None, to_text(now), "0" * 16, 1, "{}", later(now, hours * 3600)
    )
    await house.host.database.run(lambda connection: pending_questions.add(connection, row))


async def ask(house: House, *, state: str = "waiting", hours: float | None = None) -> ScriptedSandbox:
    """A runner with an open question, of which the host knows where `hours` are given."""
    sandbox = await house.turn()
    if hours is not None:
        await put_question(house, hours)
    if state == "idle":
        sandbox.answer("asked")
        await until(lambda: house.rows("completed"))
    sandbox.write(f"UPDATE runner_state SET state = '{state}', open_questions = 1")
    await until(lambda: house.life().waits)
    return sandbox


@pytest.mark.req("R152", "R154", "R171")
async def test_a_turn_that_waits_for_a_person_lasts_as_long_as_the_question(house: House) -> None:
    sandbox = await ask(house, hours=2)
    await house.pass_time(118 * 60, step=20)
    assert sandbox.alive
    await house.pass_time(3 * 60, step=5)
    await house.pass_time(2)
    assert sandbox.signals == ["kill"]
    assert house.rows()[0]["tries"] == 1
    assert "longer than its question" in house.fleet.incidents[house.keys["42"]]


@pytest.mark.req("R171")
async def test_a_runner_whose_question_nobody_knows_keeps_its_place_for_minutes_only(house: House) -> None:
    sandbox = await ask(house)
    await house.pass_time(355, step=5)
    assert sandbox.alive
    await house.pass_time(10)
    assert sandbox.signals == ["kill"]


@pytest.mark.req("R171")
async def test_no_question_keeps_a_sandbox_for_more_than_a_day(house: House) -> None:
    await ask(house, hours=72)
    life = house.life()
    await house.pass_time(301, step=43)
    assert life.waits_until == life.waits_since + 24 * 3600


@pytest.mark.req("R171")
async def test_an_idle_sandbox_with_an_open_question_is_stopped_only_after_that(house: House) -> None:
    sandbox = await ask(house, state="idle", hours=1)
    await house.pass_time(40 * 60, step=20)
    assert sandbox.alive
    await house.pass_time(21 * 60, step=20)
    await until(house.is_gone)
    assert sandbox.signals == ["stop"]
    assert house.rows()[0]["tries"] == 0


@pytest.mark.req("R152")
async def test_a_silent_runner_is_killed_after_a_minute_and_judged(house: House) -> None:
    sandbox = await house.turn()
    sandbox.beats = False
    await house.pass_time(59)
    assert sandbox.alive
    await house.pass_time(2)
    assert sandbox.signals == ["kill"]
    assert house.rows()[0]["tries"] == 1
    await house.pass_time(5)
    again = await house.sandbox()
    assert len(again.claim("t-2")) == 1


@pytest.mark.req("R152")
async def test_a_runner_without_a_bell_is_heard_through_its_file(house: House) -> None:
    await house.send()
    await until(lambda: house.process.sandboxes)
    await until(lambda: house.life().sandbox)
    sandbox = house.process.sandboxes[0]
    sandbox.recover()
    sandbox.claim()
    for _ in range(24):
        sandbox.beat()
        await house.pass_time(5, step=5)
        await until(lambda: house.life().beat_at == house.clock.monotonic())
    assert sandbox.alive
    sandbox.beats = False
    await house.pass_time(65, step=5)
    await until(house.is_gone)
    assert sandbox.signals == ["kill"]


@pytest.mark.req("R152")
async def test_a_host_that_was_held_up_for_an_hour_kills_nothing(house: House) -> None:
    sandbox = await house.turn()
    await house.pass_time(5)
    await house.clock.advance(3600)  # nothing ran meanwhile, so nobody could be heard
    await house.fleet.tick()
    await house.pass_time(30)
    assert sandbox.alive
    assert sandbox.signals == []


@pytest.mark.req("R152")
@pytest.mark.fault(74)
@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_a_wall_clock_that_jumps_neither_kills_nor_spares(house: House, seconds: float) -> None:
    sandbox = await house.turn()
    house.clock.jump(seconds)
    await house.pass_time(30)
    assert sandbox.alive
    sandbox.beats = False
    house.clock.jump(seconds)
    await house.pass_time(62)
    assert sandbox.signals == ["kill"]


@pytest.mark.req("R085")
@pytest.mark.fault(69)
async def test_a_turn_that_takes_longer_than_its_limit_is_ended_and_the_reason_is_said(house: House) -> None:
    await house.configure({"timeout": 120})
    await house.send()
    sandbox = None
    for pause in (5, 10, 20, 40, 0):
        sandbox = await house.sandbox(after=sandbox)
        sandbox.claim(sandbox.id)
        await until(lambda: house.life().busy)
        await house.pass_time(115, step=5)
        assert sandbox.alive
        await house.pass_time(10, step=5)
        await until(house.is_gone)
        assert sandbox.signals == ["kill"]
        await house.pass_time(pause, step=5)
    await until(house.channel.notices)
    assert "The turn took longer than 2 minutes." in house.channel.notices()[0]
    assert house.process.asked == 5, "no loop"


async def test_without_a_limit_of_the_agents_own_the_settings_hold(house: House) -> None:
    await house.host.facts.set_setting("turn_minutes", "1", "ada")
    sandbox = await house.turn()
    await house.pass_time(55, step=5)
    assert sandbox.alive
    await house.pass_time(10, step=5)
    await until(house.is_gone)
    assert sandbox.signals == ["kill"]


async def test_each_turn_has_the_whole_time(house: House) -> None:
    await house.host.facts.set_setting("turn_minutes", "1", "ada")
    sandbox = await house.turn()
    for number in range(2, 5):
        await house.pass_time(45, step=5)
        sandbox.answer("done", f"t-{number - 1}")
        await house.send("more")
        sandbox.claim(f"t-{number}")
        turn_id = f"t-{number}"
        await until(lambda turn_id=turn_id: house.life().state.turn_id == turn_id)  # type: ignore[misc, union-attr]
    assert sandbox.alive
