"""A sandbox that spoils its own mailbox: its message is answered in the end or honestly failed once, and nobody else
notices."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fire.scene import SAYS, House, house
from tests.whole.harness import Forge, wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def home_of_many(forge: Forge) -> AsyncIterator[House]:
    """One host for every attack of this module; in the end the neighbour has had no trouble from any."""
    async with house(forge) as made:
        await asyncio.gather(*(_begin(made, attack) for attack in SPOILED))
        yield made
        await made.neighbour_was_never_touched()


async def _begin(made: House, attack: str) -> None:
    """All of these go on at the same time; each test waits for its own."""
    terminal = await made.agent(attack)
    await terminal.send("hello")


SPOILED = {
    "random": "schema or header",
    "truncated": "shorter than one page",
    "halfpage": "middle of a page",
    "huge": "larger than 2097152 bytes",
    "missing": "is missing",
    "fifo": "no regular file",
    "folder": "no regular file",
    "device": "is a link",
    "hardlink": "a hard link",
    "fifojournal": "no regular file",
}


@pytest.mark.req("R026", "R155")
@pytest.mark.fault(110)
@pytest.mark.parametrize("attack", SPOILED)
async def test_a_spoiled_mailbox_is_set_aside_and_its_message_answered(home_of_many: House, attack: str) -> None:
    terminal = await home_of_many.agent(attack)
    await home_of_many.neighbour_answers()
    await terminal.until(lambda: len(terminal.settled) == 1)
    assert terminal.texts == [f"{SAYS}hello"]
    assert len(terminal.notices) == 1
    assert "damaged" in terminal.notices[0]
    [line] = await home_of_many.log(attack, "an outbound mailbox was damaged and set aside")
    assert SPOILED[attack] in line["reason"]
    [said] = await home_of_many.said(attack)
    assert SPOILED[attack] in said


@pytest.mark.req("R026", "R155")
@pytest.mark.fault(84)
async def test_a_sandbox_that_always_spoils_its_mailbox_is_given_up_once(home_of_many: House) -> None:
    terminal = await home_of_many.agent("random-always")
    key = await terminal.send("hello")
    await terminal.until(lambda: key in terminal.settled, 60)
    assert terminal.settled[key]
    assert terminal.texts == []
    damaged, failed = terminal.notices
    assert "damaged" in damaged
    assert "spoiled its mailbox" in failed
    [row] = await home_of_many.rows("random-always", "SELECT status, tries FROM messages_in")
    assert (row["status"], row["tries"]) == ("failed", 5)
    await home_of_many.neighbour_answers()


@pytest.mark.req("R155")
@pytest.mark.fault(110)
async def test_a_link_to_a_file_of_the_hosts_is_neither_read_nor_harmed(home_of_many: House) -> None:
    terminal = await home_of_many.agent("hostlink")
    key = await terminal.send("hello")
    target = home_of_many.home.session_folder("x", "y").parent.parent.parent / "host.db"
    before = target.stat().st_ino
    state = await home_of_many.folder("hostlink") / "state"
    await wait_until(state.is_dir)
    (state / "target.new").write_text(str(target))
    (state / "target.new").chmod(0o644)
    os.rename(state / "target.new", state / "target")
    await terminal.until(lambda: key in terminal.settled)
    assert terminal.texts == [f"{SAYS}hello"]
    assert target.stat().st_ino == before
    [line] = await home_of_many.log("hostlink", "an outbound mailbox was damaged and set aside")
    assert "is a link" in line["reason"]
    await home_of_many.neighbour_answers()


@pytest.mark.req("R026")
async def test_a_mailbox_that_is_swapped_while_it_is_read_costs_nothing(home_of_many: House) -> None:
    terminal = await home_of_many.agent("swapped")
    assert await terminal.ask("hello") == [f"{SAYS}hello"]
    assert terminal.notices == []
    [row] = await home_of_many.rows("swapped", "SELECT tries FROM messages_in")
    assert row["tries"] == 0


@pytest.mark.req("R026", "R155")
@pytest.mark.fault(88)
@pytest.mark.parametrize("attack", ["shared", "reserved"])
async def test_a_lock_on_the_hosts_file_costs_its_holder_its_life(home_of_many: House, attack: str) -> None:
    terminal = await home_of_many.agent(attack)
    first = await terminal.send("hello")
    state = await home_of_many.folder(attack) / "state"
    await wait_until((state / "holding").exists)
    second = await terminal.send("again")
    await home_of_many.neighbour_answers()
    await terminal.until(lambda: {first, second} <= terminal.settled.keys())
    assert sorted(terminal.texts) == [f"{SAYS}again", f"{SAYS}hello"]
    assert terminal.notices == []
    assert len(await home_of_many.log(attack, "the sandbox holds a lock on its inbound mailbox and is stopped")) == 1
    [said] = await home_of_many.said(attack)
    assert said.endswith("had trouble and went on: The agent's sandbox held up the host's own file.")
    tries = {row["tries"] for row in await home_of_many.rows(attack, "SELECT tries FROM messages_in")}
    assert max(tries) == 1


@pytest.mark.req("R019", "R155")
@pytest.mark.fault(110)
async def test_odd_rows_are_set_aside_one_by_one_and_the_others_delivered(home_of_many: House) -> None:
    terminal = await home_of_many.agent("odd")
    await terminal.ask("hello")
    assert terminal.texts == ["good-1", "good-2", f"{SAYS}hello"]
    lines = await home_of_many.log("odd", "a row of a session was set aside")
    assert "kind is none of" in lines[0]["reason"]
    assert sum(1 + line["others"] for line in lines) == 6


@pytest.mark.req("R136")
async def test_what_goes_to_a_chat_that_is_not_the_agents_is_refused_and_the_agent_told(home_of_many: House) -> None:
    terminal = await home_of_many.agent("forged")
    calm = await home_of_many.agent("calm")
    await terminal.ask("hello")
    assert f"{SAYS}hello" in terminal.texts
    assert not [text for text in terminal.texts + calm.texts if "forged" in text]
    states = await home_of_many.rows("forged", "SELECT state, last_error FROM deliveries WHERE id LIKE 'forged%'")
    assert [row["state"] for row in states] == ["failed", "failed"]
    assert all("does not answer in that chat" in row["last_error"] for row in states)
    told = await home_of_many.rows("forged", "SELECT content FROM messages_in WHERE kind='system'")
    assert len(told) == 2


async def test_a_number_that_was_used_before_says_nothing_new(home_of_many: House) -> None:
    terminal = await home_of_many.agent("twice")
    await terminal.ask("hello")
    assert terminal.texts == ["first-use", "after-it", f"{SAYS}hello"]


@pytest.mark.req("R026", "R156", "R157", "R158")
async def test_a_commit_that_was_killed_in_the_middle_is_rolled_back_before_it_is_judged(home_of_many: House) -> None:
    terminal = await home_of_many.agent("torn")
    await terminal.ask("hello")
    assert terminal.texts == ["said-before", f"{SAYS}I was interrupted, and go on."]
    rolled = await home_of_many.log("torn", "a commit that was killed in the middle is rolled back")
    assert len(rolled) == 1
    assert terminal.notices == []
    said = await home_of_many.rows("torn", "SELECT id FROM deliveries WHERE id LIKE 'torn-%'")
    assert said == []
    [row] = await home_of_many.rows("torn", "SELECT tries FROM messages_in WHERE kind='system'")
    assert row["tries"] == 1


@pytest.mark.req("R155")
@pytest.mark.fault(84)
async def test_a_sandbox_that_always_leaves_at_once_is_given_up_with_one_notice(home_of_many: House) -> None:
    terminal = await home_of_many.agent("leaving-always")
    key = await terminal.send("hello")
    await terminal.until(lambda: key in terminal.settled)
    [notice] = terminal.notices
    assert "code 3" in notice
    await home_of_many.neighbour_answers()
