"""The same fire in real containers, and an engine that goes away."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from host.runtime.docker import SESSION_LABEL
from tests.fire.engine import Engine, kill_containers
from tests.fire.scene import QUICK, SAYS, House, house
from tests.whole.harness import Forge, wait_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.docker]

STORM_SEEDS = 3
STORM_MESSAGES = 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home_of_many(forge: Forge, agent_image: str) -> AsyncIterator[House]:
    """One host with containers; in the end the neighbour has had no trouble from any attack."""
    del agent_image
    async with house(forge, "docker") as made:
        yield made
        await made.neighbour_was_never_touched()


@pytest.mark.req("R026", "R155")
@pytest.mark.fault(110)
@pytest.mark.parametrize("attack", ["random", "huge", "fifo", "device", "hardlink"])
async def test_a_container_that_spoils_its_mailbox_harms_nobody_else(home_of_many: House, attack: str) -> None:
    terminal = await home_of_many.agent(attack)
    assert await terminal.ask("hello") == [f"{SAYS}hello"]
    assert len(terminal.notices) == 1
    assert len(await home_of_many.log(attack, "an outbound mailbox was damaged and set aside")) == 1
    await home_of_many.neighbour_answers()


@pytest.mark.req("R026", "R155")
@pytest.mark.fault(88)
async def test_a_container_that_locks_the_hosts_file_is_killed(home_of_many: House) -> None:
    terminal = await home_of_many.agent("shared")
    first = await terminal.send("hello")
    state = await home_of_many.folder("shared") / "state"
    await wait_until((state / "holding").exists)
    second = await terminal.send("again")
    await home_of_many.neighbour_answers()
    await terminal.until(lambda: {first, second} <= terminal.settled.keys())
    assert sorted(terminal.texts) == [f"{SAYS}again", f"{SAYS}hello"]
    [said] = await home_of_many.said("shared")
    assert "held up the host's own file" in said


@pytest.mark.req("R026", "R156")
async def test_a_commit_that_was_killed_in_a_container_is_rolled_back_by_another(home_of_many: House) -> None:
    terminal = await home_of_many.agent("torn")
    await terminal.ask("hello")
    assert terminal.texts == ["said-before", f"{SAYS}I was interrupted, and go on."]
    assert len(await home_of_many.log("torn", "a commit that was killed in the middle is rolled back")) == 1


@pytest.mark.req("R024", "R088", "R274")
@pytest.mark.parametrize("seed", range(STORM_SEEDS))
async def test_a_storm_of_kills_over_containers_loses_and_doubles_nothing(
    forge: Forge, agent_image: str, seed: int
) -> None:
    del agent_image
    dice = random.Random(seed)
    async with house(forge, "docker", {"host.judging:RETRY_SECONDS": [0.1] * 8}) as made:
        terminal = await made.agent("honest")
        keys = [await terminal.send("message 0")]
        session = await made.session("honest")
        for number in range(1, STORM_MESSAGES):
            keys.append(await terminal.send(f"message {number}"))
            await asyncio.sleep(dice.uniform(0, 0.2))  # the storm's own weather: kills fall at any moment of the path
            strike = dice.random()
            if strike < 0.2:
                await made.host.kill()
                await made.host.start()
            elif strike < 0.5:
                await kill_containers(f"{SESSION_LABEL}={session}")
        await terminal.until(lambda: all(key in terminal.settled for key in keys), 60)
        said = [text for text in terminal.texts if "message" in text]
        assert sorted(said) == [f"{SAYS}message {number}" for number in range(STORM_MESSAGES)]
        assert terminal.notices == []


@pytest.fixture(scope="module")
def engine(agent_image: str) -> Iterator[Engine]:
    """An engine of the tests' own that has the agent's image."""
    if os.geteuid() != 0:
        pytest.skip("only root can start an engine")
    made = Engine()
    try:
        made.start()
        made.load(agent_image)
        yield made
    finally:
        made.close()


@pytest.mark.req("R155")
@pytest.mark.fault(82)
@pytest.mark.parametrize("containers", ["go", "stay"])
async def test_an_engine_that_is_killed_and_comes_back_loses_and_doubles_nothing(
    forge: Forge, engine: Engine, containers: str
) -> None:
    engine.live_restore = containers == "stay"
    await asyncio.to_thread(engine.kill)
    await asyncio.to_thread(engine.start)
    async with house(forge, "docker", QUICK, DOCKER_HOST=engine.url) as made:
        terminal, late = await made.agent("honest"), await made.agent("late")
        await terminal.ask("hello")
        slow = await terminal.send("/rehearse slow 2")
        await made.works_on("honest")
        await asyncio.to_thread(engine.kill)
        away = await terminal.send("while it is away")
        other = await late.send("start me")
        await wait_until(lambda: made.host.events("a sandbox did not start"))
        [said] = await made.said("late", "problems")
        assert f"No container engine answers at {engine.url}" in said
        await asyncio.to_thread(engine.start)
        await terminal.until(lambda: {slow, away} <= terminal.settled.keys(), 60)
        await late.until(lambda: other in late.settled, 60)
        assert sorted(terminal.texts) == sorted(
            [f"{SAYS}hello", f"{SAYS}that took 2 seconds.", f"{SAYS}while it is away"]
        )
        assert late.texts == [f"{SAYS}start me"]
        assert not [notice for notice in terminal.notices + late.notices if "cannot start" not in notice]
        async with asyncio.timeout(10):
            while await made.said("late", "problems"):
                await asyncio.sleep(0.1)  # `status` looks at what the last tick of the host saw
