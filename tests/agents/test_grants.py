"""`host agents connect` and `disconnect`: who may write to whom is the owner's decision, and in force at once."""

import json
from collections.abc import AsyncIterator

import pytest

from host.control import AsyncControlClient
from host.failure import Code, Failure
from host.methods import register
from tests.agents.conftest import A, B, Village
from tests.fleet.house import until
from tests.mailbox.made import table
from tests.terminal.conftest import command


@pytest.fixture
async def served(village: Village) -> AsyncIterator[Village]:
    """The village with its control socket."""
    host = village.house.host
    register(host.control, host.facts)
    host.agent_grants.register(host.control)
    await host.control.start()
    yield village
    await host.control.stop()


def seen(village: Village, name: str = A) -> list[tuple[str, str]]:
    """What the agent's tools see of its grants."""
    rows = table(village.house.folder(name), "destinations")
    return [(row["name"], row["target_id"]) for row in rows]


async def run(*words: str) -> tuple[int, str, str]:
    async with command(*words) as process:
        return await process.end()


@pytest.mark.req("R172", "R175")
async def test_an_owner_connects_two_agents_and_parts_them_again(served: Village) -> None:
    sandbox = await served.house.turn(A)
    await served.say(sandbox, "o-1", served.agent(B))
    assert await served.settled(A, "o-1") == "failed"

    assert await run("-y", "agents", "connect", "a", "b") == (0, "a may write to b, which may answer.\n", "")
    assert seen(served) == [("b", served.agent(B))]
    await served.say(sandbox, "o-2", served.agent(B))
    assert await served.settled(A, "o-2") == "sent"
    code, out, _ = await run("--json", "agents", "show", "a")
    assert code == 0
    assert json.loads(out)["writes_to"] == [{"agent": "b", "agent_group_id": served.agent(B), "called": "b"}]
    code, out, _ = await run("agents", "show", "b")
    assert "no other agent" in out

    code, out, _ = await run("-y", "--json", "agents", "disconnect", "a", "b")
    assert (code, json.loads(out)) == (
        0,
        {"agent": served.agent(A), "other": served.agent(B), "name": "b", "connected": False},
    )
    assert seen(served) == []
    await served.say(sandbox, "o-3", served.agent(B))
    assert await served.settled(A, "o-3") == "failed"


@pytest.mark.req("R175")
async def test_a_change_without_a_terminal_needs_a_yes_and_a_dry_run_changes_nothing(served: Village) -> None:
    code, _, err = await run("agents", "connect", "a", "b")
    assert (code, "needs -y" in err) == (4, True)
    code, out, _ = await run("--dry-run", "agents", "connect", "a", "b")
    assert (code, out) == (3, "Would do: Let a write to b.\n")
    assert (await run("-y", "agents", "connect", "a", "nobody"))[0] == 5
    assert (await run("-y", "agents", "disconnect", "a", "b"))[0] == 5
    assert served.house.host.agent_grants.of(served.agent(A)) == ()


@pytest.mark.req("R172")
async def test_a_name_means_one_agent(served: Village) -> None:
    a, b = served.agent(A), served.agent(B)
    async with await AsyncControlClient.connect(served.house.machine.home.control_socket) as client:
        await client.call("agents.connect", agent=a, other=b, name="helper")
        with pytest.raises(Failure, match="somebody else 'helper'") as refused:
            await client.call("agents.connect", agent=a, other=a, name="helper")
        assert refused.value.code is Code.USAGE
        again = await client.call("agents.connect", agent=a, other=b, name="friend")
        assert isinstance(again, dict)
        assert again["name"] == "friend"
        with pytest.raises(Failure) as missing:
            await client.call("agents.connect", agent=a, other="a-nobody")
        assert missing.value.code is Code.NOT_FOUND
    assert seen(served) == [("friend", b)]


@pytest.mark.req("R172")
async def test_a_new_session_sees_the_grants_with_its_first_message(served: Village) -> None:
    assert (await run("-y", "agents", "connect", "b", "a"))[0] == 0
    assert (await run("-y", "agents", "connect", "a", "b"))[0] == 0
    sandbox = await served.house.turn(A)
    await served.say(sandbox, "o-1", served.agent(B))
    await served.settled(A, "o-1")
    await served.find("b/a")
    await until(lambda: served.heard("b/a"))
    assert seen(served, "b/a") == [("a", served.agent(A))]
