"""Sessions that go wrong beside one that does not, in a whole host with real sandboxes, of either kind."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from host.runtime.cage import LOGS_KEPT
from tests.fire.scene import QUICK, SAYS, House, house
from tests.whole.harness import Forge, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")

BAD = ("burning", "ringing", "connecting", "speaking", "shared", "random", "leaving-always")
"""All of the processor; rings, connections and rows without end; a lock on the host's file; a spoiled mailbox; an end
at each start (tests/fire/inside.py)."""


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["process", pytest.param("docker", marks=pytest.mark.docker)]
)
async def bad_company(request: pytest.FixtureRequest, forge: Forge) -> AsyncIterator[House]:
    """One host in which all of them are at it at the same time, beside the calm agent."""
    if request.param == "docker":
        request.getfixturevalue("agent_image")
    async with house(forge, request.param) as made:
        for attack in BAD:
            await (await made.agent(attack)).send("hello")
            await made.neighbour_answers()
        holding = await made.folder("shared") / "state" / "holding"
        await wait_until(holding.exists)
        await (await made.agent("shared")).send("this the host has to write")
        yield made


@pytest.mark.req("R155")
@pytest.mark.fault(84, 88, 110)
async def test_no_bad_session_delays_a_neighbour(bad_company: House) -> None:
    for _ in range(5):
        await bad_company.neighbour_answers()
    await bad_company.neighbour_was_never_touched()


@pytest.mark.req("R155")
async def test_a_bad_session_does_its_own_work_all_the_same(bad_company: House) -> None:
    for attack in ("burning", "ringing", "connecting", "speaking", "shared", "random"):
        terminal = await bad_company.agent(attack)
        await terminal.until(lambda terminal=terminal: f"{SAYS}hello" in terminal.texts)  # type: ignore[misc]
    await bad_company.neighbour_was_never_touched()


@pytest.mark.req("R153", "R155")
@pytest.mark.fault(1)
async def test_a_sandbox_that_ends_at_each_start_is_told_of_once_in_its_chat_and_in_status(bad_company: House) -> None:
    terminal = await bad_company.agent("leaving-always")
    await terminal.until(lambda: len(terminal.settled) == 1)
    assert list(terminal.settled.values()) == [True]
    [notice] = terminal.notices
    assert "I could not answer: The sandbox ended with code 3." in notice
    assert "5 times" in notice
    [said] = await bad_company.said("leaving-always")
    assert "its sandbox broke 5 times in a row" in said
    assert len(await bad_company.log("leaving-always", "a session breaks its sandbox again and again")) == 1


@pytest.mark.fault(138)
async def test_what_a_sandbox_said_before_it_ended_is_kept_for_some_of_its_ends(bad_company: House) -> None:
    terminal = await bad_company.agent("leaving-always")
    await terminal.until(lambda: len(terminal.settled) == 1)
    ends = await bad_company.log("leaving-always", "a sandbox has ended")
    assert [end["code"] for end in ends] == [3] * 5
    kept = sorted((bad_company.home.logs / await bad_company.session("leaving-always")).iterdir())
    assert 1 <= len(kept) <= LOGS_KEPT
    assert "these are my last words" in kept[-1].read_text()


@pytest.mark.req("R080", "R111", "R220")
@pytest.mark.parametrize("runtime", ["process", pytest.param("docker", marks=pytest.mark.docker)])
async def test_a_long_turn_gives_way_to_one_that_waits_and_is_answered_later(
    forge: Forge, runtime: str, request: pytest.FixtureRequest
) -> None:
    if runtime == "docker":
        request.getfixturevalue("agent_image")
    seams = {**QUICK, "host.places:PATIENCE_SECONDS": 1.0}
    async with house(forge, runtime, seams, INNKEEPER_MAX_SANDBOXES="1") as made:
        long, short = await made.agent("long"), await made.agent("short")
        slow = await long.send("/rehearse slow 4")
        await made.works_on("long")
        assert await short.ask("quick") == [f"{SAYS}quick"]
        assert slow not in long.settled
        await long.until(lambda: slow in long.settled)
        assert long.texts == [f"{SAYS}that took 4 seconds."]
        assert long.notices == short.notices == []
        assert {row["tries"] for row in await made.rows("long", "SELECT tries FROM messages_in")} == {0}
        assert await made.log("long", "a session gives way to one that waits")


@pytest.mark.req("R220", "R242")
async def test_status_names_who_waits_for_a_place_and_what_to_do_about_it(forge: Forge) -> None:
    seams = {"host.places:PATIENCE_SECONDS": 0.5, "host.facts:PATIENCE_SECONDS": 0.5}
    async with house(forge, seams=seams, INNKEEPER_MAX_SANDBOXES="1") as made:
        # Each has to go once before a turn of its gets done, so that somebody waits for longer than half a second.
        agents = [await made.agent(name) for name in ("one", "two", "three")]
        keys = [await agent.send("/rehearse slow 1") for agent in agents]
        said: list[str] = []

        async def look() -> None:
            while not said:
                lines = (await made.call("status"))["warnings"]
                said.extend(line["what"] for line in lines if "waited for a place" in line["what"])
                assert all(line["next"] for line in lines)
                await asyncio.sleep(0.05)  # `status` tells of a moment

        async with asyncio.timeout(20):
            await look()
        assert "all 1 are taken" in said[0]
        for agent, key in zip(agents, keys, strict=True):
            await agent.until(lambda agent=agent, key=key: key in agent.settled)  # type: ignore[misc]
        await wait_until(lambda: made.host.events("a session gives way to one that waits"))
