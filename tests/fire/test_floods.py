"""Too much of everything: rings, connections, rows, processor time, sessions. Who makes it pays for it alone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fire.scene import SAYS, House, house
from tests.whole.harness import Forge, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home_of_many(forge: Forge) -> AsyncIterator[House]:
    """One host for all floods; in the end the neighbour has had no trouble from any."""
    async with house(forge, INNKEEPER_MAX_SANDBOXES="6") as made:
        yield made
        assert (await made.agent("calm")).notices == []
        assert {row["tries"] for row in await made.rows("calm", "SELECT tries FROM messages_in")} == {0}


@pytest.mark.req("R026", "R155")
@pytest.mark.parametrize("attack", ["ringing", "connecting", "burning"])
async def test_a_flood_beside_honest_work_holds_up_nobody(home_of_many: House, attack: str) -> None:
    terminal = await home_of_many.agent(attack)
    assert await terminal.ask("hello") == [f"{SAYS}hello"]
    for _ in range(3):
        await home_of_many.neighbour_answers()
    assert await terminal.ask("again") == [f"{SAYS}again"]
    assert terminal.notices == []
    await _end(home_of_many, attack)


async def _end(home_of_many: House, attack: str) -> None:
    """Ends what floods: a sandbox dies with its first process."""
    session = await home_of_many.session(attack)
    before = len(await home_of_many.log(attack, "a sandbox has ended"))
    for pid in await home_of_many.runners(session):
        os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: len(home_of_many.host.events("a sandbox has ended")) > before)


@pytest.mark.req("R026", "R136", "R155")
async def test_rows_without_end_hold_up_nobody(home_of_many: House) -> None:
    terminal = await home_of_many.agent("speaking")
    key = await terminal.send("hello")
    for _ in range(3):
        await home_of_many.neighbour_answers()
    await terminal.until(lambda: key in terminal.settled)
    assert f"{SAYS}hello" in terminal.texts
    assert not [text for text in terminal.texts if "flood" in text]


@pytest.mark.req("R026", "R155")
async def test_an_outbox_that_outgrows_the_reader_is_set_aside(home_of_many: House) -> None:
    terminal = await home_of_many.agent("filling")
    key = await terminal.send("hello")
    await home_of_many.neighbour_answers()
    await terminal.until(lambda: key in terminal.settled)
    assert f"{SAYS}hello" in terminal.texts
    [said] = await home_of_many.said("filling")
    assert "larger than 2097152 bytes" in said


@pytest.mark.req("R152")
@pytest.mark.fault(68)
async def test_a_runner_that_is_held_still_is_killed_for_its_silence_and_its_message_runs_again(
    home_of_many: House,
) -> None:
    terminal = await home_of_many.agent("honest")
    await terminal.ask("warm up")
    [runner] = await home_of_many.runners(await home_of_many.session("honest"))
    os.kill(runner, signal.SIGSTOP)
    key = await terminal.send("hello")
    await home_of_many.neighbour_answers()
    await terminal.until(lambda: key in terminal.settled)
    assert terminal.texts[1:] == [f"{SAYS}hello"]
    assert terminal.notices == []
    [line] = await home_of_many.log("honest", "a sandbox is killed")
    assert "no sign of life for 4 seconds" in line["reason"]
    [said] = await home_of_many.said("honest")
    assert "no sign of life" in said


@pytest.mark.req("R080", "R220", "R155")
async def test_many_sessions_at_once_share_few_places_and_hold_up_nobody(home_of_many: House) -> None:
    """Six places, twenty-four agents that all have something to do, one of them with a mailbox that is replaced."""
    terminals = [await home_of_many.agent(f"many{number}") for number in range(23)]
    terminals.append(await home_of_many.agent("random"))
    answers = await asyncio.gather(*(terminal.ask("hello", 60) for terminal in terminals))
    assert answers == [[f"{SAYS}hello"]] * 24
    assert [notice for terminal in terminals[:-1] for notice in terminal.notices] == []
    status = await home_of_many.call("status")
    assert status["sandbox"]["live"] <= 6
