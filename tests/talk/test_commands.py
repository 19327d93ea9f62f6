"""Commands of a chat: answered by the host without the agent, by whoever may."""

import pytest
from sqlalchemy import Connection

from host.channels.base import InboundEvent, Sender
from host.db import ingest_spool, user_roles, users
from mailboxes.clock import to_text
from mailboxes.commands import COMMANDS
from tests.fleet.house import ADA, Machine, until
from tests.talk.conftest import HERE, RICH, Talk

BOB = Sender("2", "Bob")


async def make_owner(talk: Talk) -> None:
    """Ada owns the host, and Bob administers another agent of it."""
    now = to_text(talk.house.clock.now())
    await talk.house.add_chats(["other/44"])
    other = talk.house.keys["other/44"].agent_group_id

    def make(connection: Connection) -> None:
        for user_id in ("telegram:1", "telegram:2"):
            users.create_user(connection, user_id, now)
        user_roles.grant_role(connection, "telegram:1", "owner", None, now)
        user_roles.grant_role(connection, "telegram:2", "admin", other, now)

    await talk.house.host.database.run(make)
    await talk.house.host.routing.refresh()


@pytest.mark.req("R104")
@pytest.mark.parametrize("word", sorted(word for word, one in COMMANDS.items() if one.admin))
async def test_an_administrative_command_of_somebody_else_is_refused_and_never_reaches_the_agent(
    talk: Talk, word: str
) -> None:
    await make_owner(talk)
    sandbox = await talk.house.turn()
    await talk.write(word, BOB)
    await until(talk.channel.notices)
    assert talk.channel.notices() == [f"{word} needs an owner or an admin of main. Ask one of them."]
    assert talk.heard() == ["hello"]
    assert not [name for name in sandbox.spec.environment if "ADMIN" in name or "OWNER" in name]


@pytest.mark.req("R104")
async def test_an_owners_clear_goes_on_to_the_agent(talk: Talk) -> None:
    await make_owner(talk)
    await talk.write("/clear")
    assert talk.heard() == ["/clear"]
    assert talk.channel.notices() == []


@pytest.mark.parametrize("word", sorted(word for word, one in COMMANDS.items() if one.by_host))
async def test_what_the_host_answers_is_answered_once_and_never_reaches_the_agent(talk: Talk, word: str) -> None:
    await make_owner(talk)
    event = InboundEvent("m:1", HERE, ADA, f"{word}@my_bot please")
    await talk.take(event)
    await talk.take(event)
    assert len(talk.channel.notices()) == 1
    assert talk.heard() == []
    assert await talk.house.host.database.run(ingest_spool.every) == []


async def test_a_command_that_an_earlier_host_took_and_did_not_carry_out_is_carried_out(machine: Machine) -> None:
    async with machine.host(("42",)) as house:
        house.host.reception.intake._commanded = lambda _commands: None
        assert house.channel.accept is not None
        await house.channel.accept([InboundEvent("m:1", HERE, ADA, "/status")], None)
        assert len(await house.host.database.run(ingest_spool.every)) == 1
        await house.die()
    async with machine.host(("42",)) as house:
        talk = Talk(house)
        await until(talk.channel.notices)
        assert talk.channel.notices() == ["main has nothing to do just now."]
        await talk.write("/status")
        assert len(talk.channel.notices()) == 2
        assert talk.heard() == []


async def test_help_names_what_the_one_who_asks_may_use(talk: Talk) -> None:
    await make_owner(talk)
    await talk.write("/help", BOB)
    await talk.write("/help", ADA)
    for_bob, for_ada = talk.channel.notices()
    assert "/stop" in for_bob
    assert "/new" not in for_bob
    assert "/new" in for_ada
    assert "/rehearse" not in for_ada


async def test_new_begins_another_session_and_the_next_message_goes_there(talk: Talk) -> None:
    await make_owner(talk)
    await talk.house.answered()
    await talk.write("/new")
    await talk.write("who are you?")
    assert talk.heard() == ["hello"]  # in the session that was
    assert any("new conversation" in text for text in talk.channel.notices())


async def test_why_tells_of_the_message_that_it_replies_to(talk: Talk) -> None:
    talk.channel.capabilities = RICH
    await talk.house.answered()
    [(_, said)] = [one for one in talk.channel.taken if one[1].text == "done"]
    await talk.write("/why", replied_to=f"p-{said.delivery_id}-0")
    [told] = talk.channel.notices()
    assert told.startswith("That message was delivered")
    assert "It answers a message, “hello”" in told
    await talk.write("/why", replied_to="nothing we sent")
    assert talk.channel.notices()[-1].startswith("That message is not known.")
