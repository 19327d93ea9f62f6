"""What a sandbox's end means for the messages that it had, judged at once."""

import pytest

from tests.fleet.house import House, until


@pytest.mark.req("R087")
async def test_an_abnormal_exit_counts_a_try_and_retries_after_five_seconds(house: House) -> None:
    sandbox = await house.turn()
    sandbox.exit(137)
    await until(lambda: house.rows("pending"))
    row = house.rows()[0]
    assert (row["tries"], row["process_after"]) == (1, "2026-01-01T00:00:05.000Z")
    await house.pass_time(4)
    assert house.process.asked == 1
    await house.pass_time(2)
    again = await house.sandbox(after=sandbox)
    assert again.claim("t-2") == [row["id"]]


@pytest.mark.req("R111")
async def test_a_stop_by_the_host_in_the_middle_of_a_turn_is_no_try(house: House) -> None:
    sandbox = await house.turn()
    await house.fleet.stop(house.keys["42"], "an upgrade")
    again = await house.sandbox(after=sandbox)
    assert house.rows()[0]["tries"] == 0
    assert len(again.claim("t-2")) == 1
    again.answer("once", "t-2")
    await until(lambda: house.channel.texts() == ["once"])
    assert again.claim("t-3") == []


@pytest.mark.req("R111")
async def test_kill_of_the_runner_is_a_try(house: House) -> None:
    sandbox = await house.turn()
    sandbox.exit(137)
    await until(lambda: house.rows("pending"))
    assert house.rows()[0]["tries"] == 1


@pytest.mark.req("R111")
async def test_a_sandbox_that_holds_the_hosts_file_is_killed_and_that_is_a_try(house: House) -> None:
    sandbox = await house.turn()
    sandbox.hold_inbound()
    await house.send("the host has to write this")
    await until(house.is_gone)
    assert sandbox.signals == ["kill"]
    first, second = house.rows()
    assert (first["tries"], second["status"]) == (1, "pending")


@pytest.mark.req("R082")
async def test_a_runner_that_leaves_by_itself_costs_no_try_and_is_not_started_for_nothing(house: House) -> None:
    sandbox = await house.turn()
    sandbox.answer("done")
    await until(lambda: house.channel.texts() == ["done"])
    sandbox.exit(0)
    await until(house.is_gone)
    await house.pass_time(120)
    assert house.process.asked == 1
    assert house.rows()[0]["tries"] == 0


@pytest.mark.req("R082")
async def test_a_runner_that_leaves_its_work_undone_is_started_ever_more_slowly_without_a_try(house: House) -> None:
    await house.send()
    for _ in range(4):
        sandbox = await house.sandbox()
        sandbox.exit(0)
        await until(house.is_gone)
        await house.pass_time(15)
    asked = house.process.asked
    sandbox = await house.sandbox(after=sandbox) if house.process.live() else sandbox
    assert asked <= 6
    assert house.rows()[0]["tries"] == 0
    assert house.rows("pending")
    notices = house.channel.notices()
    assert len(notices) == 1
    assert "I keep trying" in notices[0]


@pytest.mark.fault(68)
async def test_a_claim_of_a_dead_runner_does_not_kill_its_successor(house: House) -> None:
    sandbox = await house.turn()
    sandbox.beats = False
    await house.pass_time(50)
    sandbox.exit(137)
    await until(house.is_gone)
    await house.pass_time(5)
    again = await house.sandbox(after=sandbox)
    await house.pass_time(30)
    assert again.alive
    assert len(again.claim("t-2")) == 1
    assert house.rows()[0]["tries"] == 1


@pytest.mark.fault(84)
async def test_a_row_that_crashes_the_runner_is_given_up_and_the_next_one_runs(house: House) -> None:
    await house.send("poison")
    sandbox = None
    for seconds in (5, 10, 20, 40, 0):
        sandbox = await house.sandbox(after=sandbox)
        assert len(sandbox.claim(sandbox.id)) == 1
        sandbox.exit(1)
        await until(house.is_gone)
        await house.pass_time(seconds)
    await until(lambda: house.rows("failed"))
    await until(lambda: len(house.channel.notices()) == 1)
    assert "I could not answer" in house.channel.notices()[0]
    await house.pass_time(120, step=5)
    assert house.process.asked == 5, "nothing is started for a row that has failed"
    await house.send("harmless")
    sandbox = await house.sandbox(after=sandbox)
    assert len(sandbox.claim("t-9")) == 1
    sandbox.answer("fine", "t-9")
    await until(lambda: house.channel.texts() == ["fine"])


@pytest.mark.fault(80, 84)
async def test_a_runner_that_dies_before_it_claims_anything_is_not_started_for_ever(house: House) -> None:
    await house.send()
    for _ in range(5):
        sandbox = await house.sandbox()
        sandbox.exit(1, "This runner and its host are of two versions.")
        await until(house.is_gone)
        await house.pass_time(40, step=5)
    await until(lambda: house.rows("failed"))
    await until(house.channel.notices)
    assert house.process.asked == 5
    assert len(house.channel.notices()) == 1
    assert "This runner and its host are of two versions." in house.channel.notices()[0]


async def test_a_commit_that_was_killed_is_rolled_back_before_the_exit_is_judged(house: House) -> None:
    sandbox = await house.turn()
    sandbox.die_in_a_commit()
    await until(lambda: house.rows("pending"))
    assert house.process.recovered == [house.keys["42"].session_id]
    assert house.rows()[0]["tries"] == 1


async def test_an_answer_that_was_committed_just_before_the_end_is_delivered_and_not_tried_again(house: House) -> None:
    sandbox = await house.turn()
    sandbox._do("answer", text="last words", turn="t-1", now=sandbox._now())  # without a ring
    sandbox.exit(137)
    await until(lambda: house.channel.texts() == ["last words"])
    assert house.rows("completed")


async def test_a_turn_that_had_spoken_is_carried_on_and_not_run_again(house: House) -> None:
    sandbox = await house.turn()
    sandbox.say("half of it")
    sandbox.exit(137)
    await until(lambda: len(house.rows()) == 2)
    done, continuation = house.rows()
    assert (done["status"], continuation["kind"], continuation["tries"]) == ("completed", "system", 1)
    assert "half of it" in continuation["content"]


async def test_a_second_commit_that_is_killed_within_ten_minutes_waits_for_its_turn_and_loses_nothing(
    house: House,
) -> None:
    first = await house.turn()
    first.die_in_a_commit()
    await until(lambda: house.rows("pending"))
    await house.pass_time(5)
    second = await house.sandbox(after=first)
    assert second.claim("t-2")
    second.say("said before the end", "t-2")
    await until(lambda: house.channel.texts() == ["said before the end"])
    second.die_in_a_commit()
    await until(house.is_gone)
    await house.pass_time(560, step=20)
    assert len(house.process.recovered) == 1, "no sandbox is started for a journal alone that soon"
    assert house.process.asked == 3
    [notice] = house.channel.notices()
    assert "in the middle of writing" in notice
    await house.pass_time(120, step=20)
    assert len(house.process.recovered) == 2
    third = await house.sandbox(after=second)
    assert len(third.claim("t-3")) == 1
    third.answer("and after it", "t-3")
    await until(lambda: house.channel.texts() == ["said before the end", "and after it"])
