"""A reply that never arrives: the person hears of it once, the agent in its next turn, and nobody is woken for it."""

import json

import pytest
import structlog

from host.channels.base import NotSent
from tests.fleet.house import House, until

BLOCKED = NotSent("403: the bot was blocked", permanent=True)


@pytest.mark.req("R155")
@pytest.mark.fault(2)
async def test_the_agent_hears_in_its_next_turn_and_the_chat_at_once_that_a_reply_did_not_arrive(house: House) -> None:
    house.channel.plan("42", BLOCKED)
    sandbox = await house.turn()
    sandbox.answer("lost on the way")
    await until(house.channel.notices)
    assert house.channel.notices() == ["A message to you could not be delivered: 403: the bot was blocked."]
    await house.fleet.stop(house.keys["42"], "the test")
    await house.pass_time(120, step=5)
    assert house.process.asked == 1, "bad news alone wakes nobody"
    await house.send("are you there?")
    again = await house.sandbox(after=sandbox)
    claimed = again.claim("t-2")
    rows = [house.row(row_id) for row_id in claimed]
    heard = [json.loads(row["content"]) for row in rows if row["kind"] == "system"]
    assert [(row["action"], row["result"]["error"]) for row in heard] == [("delivery_failed", BLOCKED.args[0])]
    assert len(claimed) == 2
    assert len(house.channel.notices()) == 1


@pytest.mark.fault(2, 24)
async def test_where_the_notice_does_not_arrive_either_that_is_an_error_in_the_log_and_the_end_of_it(
    house: House,
) -> None:
    house.channel.plan("42", BLOCKED, BLOCKED)
    with structlog.testing.capture_logs() as events:
        sandbox = await house.turn()
        sandbox.answer("lost on the way")
        await until(lambda: len([one for one in events if one["event"] == "delivery failed for good"]) == 2)
        await house.pass_time(60, step=5)
    assert {one["log_level"] for one in events if one["event"] == "delivery failed for good"} == {"error"}
    assert house.channel.taken == []
    assert house.process.asked == 1
    undelivered = await house.host.facts.status()
    assert undelivered["messages"] == {"arriving": 0, "undelivered": 2}
