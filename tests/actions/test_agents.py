"""A new agent at an agent's request: by an owner's own word, once, and only with a folder that can be one."""

from typing import Any

import pytest

from host.db import agent_groups
from host.db.user_roles import Role
from mailboxes.rows import Address
from tests.actions.conftest import OWN, Office


async def folders(office: Office) -> list[str]:
    return [group.folder for group in await office.house.host.database.run(agent_groups.every)]


@pytest.mark.req("R118", "R180")
async def test_an_owner_has_an_agent_made_and_routing_knows_it_at_once(office: Office) -> None:
    await office.become(Role.OWNER)
    await office.house.turn(OWN)
    answer = await office.ask("register_agent_group", name="Reviewer", folder="reviewer")
    assert answer["status"] == "success"
    agent_id = answer["result"]["agent_group_id"]
    assert answer["result"] == {"agent_group_id": agent_id, "name": "Reviewer", "folder": "reviewer"}
    home, routing = office.house.machine.home, office.house.host.routing
    assert (home.groups / "reviewer" / "AGENTS.md").is_file()
    assert routing.snapshot.agent_groups[agent_id].folder == "reviewer"
    assert routing.is_wired(agent_id, Address("terminal", "local", "cli-reviewer"))


@pytest.mark.req("R118", "R180")
async def test_it_answers_in_a_chat_that_the_host_knows(office: Office) -> None:
    await office.become(Role.OWNER)
    await office.house.turn(OWN)
    wanted: dict[str, Any] = {"name": "R", "folder": "r", "channelType": "telegram"}
    wanted |= {"triggerRules": {"mentionOnly": True}, "sessionMode": "per-thread"}
    unknown = await office.ask("register_agent_group", "o-1", **wanted, platformId="999")
    assert (unknown["status"], "knows no chats 999" in unknown["result"]) == ("error", True)
    assert "r" not in await folders(office), "all or nothing"
    known = await office.ask("register_agent_group", "o-2", **wanted, platformId=OWN)
    snapshot = office.house.host.routing.snapshot
    [wiring] = [
        one
        for one in snapshot.wirings[snapshot.chats["telegram", "bot", OWN].id]
        if one.agent_group_id == known["result"]["agent_group_id"]
    ]
    assert (wiring.rules.mention_only, wiring.mode) == (True, "per-thread")


@pytest.mark.req("R118", "R177")
async def test_asking_twice_with_one_row_makes_one_agent(office: Office) -> None:
    await office.become(Role.OWNER)
    await office.house.turn(OWN)
    first = await office.ask("register_agent_group", name="R", folder="r")
    pool, key = office.house.host.postmaster._pool, office.house.keys[OWN]
    forget = "UPDATE deliveries SET state='queued' WHERE id='o-1'"
    await pool.call(key, lambda box: box.write(lambda db: db.execute(forget) and None))
    await office.house.host.postmaster.act(key)  # as after a kill before the answer
    assert (await folders(office)).count("r") == 1
    assert await office.answer() == first
    assert office.open() == []


@pytest.mark.req("R118", "R179")
@pytest.mark.fault(111)
@pytest.mark.parametrize("role", [None, Role.ADMIN])
async def test_nobody_else_has_an_agent_made_and_hears_how_the_owner_does_it(office: Office, role: Role | None) -> None:
    await office.become(role)
    await office.house.turn(OWN)
    before = await folders(office)
    answer = await office.ask("register_agent_group", name="R", folder="r", approved=True, principal="owner")
    assert answer["status"] == "error"
    assert answer["result"].endswith("The owner writes it to this agent, or runs: host agents add NAME")
    assert await folders(office) == before


@pytest.mark.req("R118", "R180", "R177")
@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ({"folder": "../x"}, "'../x' cannot name an agent's folder."),
        ({"folder": ".."}, "'..' cannot name"),
        ({"folder": "/etc"}, "'/etc' cannot name"),
        ({"folder": "a\0b"}, "'a\\x00b' cannot name"),
        ({"folder": "main"}, "There is an agent in the folder main already."),
        ({"folder": 7}, "folder is a text"),
        ({"name": ""}, "name is a text"),
        ({"name": "a\nb"}, "name is a text"),
        ({"triggerRules": {"pattern": "("}}, "The agent cannot be wired so"),
        ({"sessionMode": "each"}, "The agent cannot be wired so"),
        ({"channelType": "telegram"}, "channelType and platformId belong together"),
    ],
)
async def test_what_cannot_be_an_agent_is_refused_with_a_sentence(
    office: Office, payload: dict[str, object], sentence: str
) -> None:
    await office.become(Role.OWNER)
    await office.house.turn(OWN)
    before = await folders(office)
    answer = await office.ask("register_agent_group", **{"name": "R", "folder": "r", **payload})
    assert (answer["status"], answer["result"][: len(sentence)]) == ("error", sentence)
    assert await folders(office) == before
    assert sorted(path.name for path in office.house.machine.home.groups.iterdir() if path.is_dir()) == sorted(before)
