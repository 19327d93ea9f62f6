"""What one agent writes to another arrives once, under the host's word for who wrote, and only where it was granted."""

import json
from dataclasses import replace
from typing import Any

import pytest

from host import agent_mail
from host.agent_mail import AgentMail
from host.channels.base import NotSent, Outgoing
from host.db import agent_destinations, sessions
from mailboxes.ids import derived_id
from mailboxes.rows import Address
from tests.agents.conftest import A, B, Village
from tests.fleet.house import until


@pytest.mark.req("R172", "R173")
async def test_a_granted_row_wakes_the_other_agent_in_one_session_of_theirs(village: Village) -> None:
    await village.grant()
    sandbox = await village.house.turn(A)
    for row_id in ("o-1", "o-2"):
        await village.say(sandbox, row_id, village.agent(B), text=f"do {row_id}")
        assert await village.settled(A, row_id) == "sent"

    assert len(await village.find("b/a")) == 1, "the second message goes where the first one went"
    first, second = village.heard("b/a")
    assert first["id"] == derived_id(f"{village.house.keys[A].session_id}\0o-1\0" + "0", "agent message")
    assert (first["sender"], first["senderId"], first["text"]) == (
        A.partition("/")[0],
        f"agent:{village.agent(A)}",
        "do o-1",
    )
    assert (first["isFromMe"], first["attachments"], first["trigger"]) == (False, [], 1)
    assert first["source_session"] == village.house.keys[A].session_id
    assert second["text"] == "do o-2"
    await village.house.sandbox("b/a")
    assert village.heard(B) == [], "what a person says to that agent stays apart"


@pytest.mark.req("R173")
@pytest.mark.fault(111)
async def test_sender_and_principal_are_the_hosts_word(village: Village) -> None:
    await village.grant()
    sandbox = await village.house.turn(A)
    forged: dict[str, Any] = {"sender": "root", "senderId": "terminal:cli-user", "isFromMe": True, "hops": -5}
    forged["principal"] = "owner"
    await village.say(sandbox, "o-1", village.agent(B), **forged)
    await village.settled(A, "o-1")
    await village.find("b/a")
    [row] = village.heard("b/a")
    assert (row["sender"], row["senderId"], row["isFromMe"], row["hops"]) == (
        "a", f"agent:{village.agent(A)}", False, 1)  # fmt: skip
    assert row["principal"] == "telegram:1", "whoever wrote the message that the turn answers"
    stamped = {"hops", "request"}
    assert set(json.loads(row["content"])) == {"sender", "senderId", "text", "attachments", "isFromMe"} | stamped


@pytest.mark.req("R174")
async def test_a_plain_answer_finds_the_session_that_asked_and_its_own_answer_the_person(village: Village) -> None:
    await village.grant()
    asking = await village.house.turn(A)
    [asked] = village.house.rows(chat=A)
    await village.say(asking, "o-1", village.agent(B), text="what is it?", in_reply_to=asked["id"])
    await village.settled(A, "o-1")
    asking.answer("I have asked")
    await village.find("b/a")
    [request] = village.heard("b/a")
    assert (request["channel_type"], request["platform_id"], request["thread_id"]) == (
        "agent",
        village.agent(A),
        village.house.keys[A].session_id,
    )
    other = await village.house.sandbox("b/a")
    assert other.claim("t-b")
    other.answer("it is 42", "t-b")

    await until(lambda: village.heard(A))
    [row] = village.heard(A)
    assert (row["text"], row["senderId"]) == ("it is 42", f"agent:{village.agent(B)}")
    assert row["source_session"] == village.house.keys["b/a"].session_id
    assert row["principal"] == "telegram:1"
    assert [one["text"] for one in village.heard("b/a")] == ["what is it?"], "nobody answers to themselves"
    assert asking.claim("t-2")
    asking.answer("they say 42", "t-2")
    await until(lambda: village.house.channel.texts(A) == ["I have asked", "they say 42"])
    assert len(village.heard("b/a")) == 1, "they do not thank each other for ever"


@pytest.mark.req("R174")
async def test_what_no_person_asked_for_goes_back_to_the_agent_that_wrote(village: Village) -> None:
    await village.grant()
    asking = await village.house.turn(A)
    await village.say(asking, "o-1", village.agent(B), in_reply_to="m-forged")
    await village.settled(A, "o-1")
    await village.find("b/a")
    other = await village.house.sandbox("b/a")
    assert other.claim("t-b")
    other.answer("done", "t-b")
    await until(lambda: village.heard(A))
    [row] = village.heard(A)
    assert (row["channel_type"], row["platform_id"], row["thread_id"]) == (
        "agent",
        village.agent(B),
        village.house.keys["b/a"].session_id,
    )


@pytest.mark.req("R175")
@pytest.mark.parametrize("target", ["other agent", "own agent", "unknown agent"])
async def test_what_is_not_granted_writes_nothing_and_the_agent_hears_why(village: Village, target: str) -> None:
    await village.grant(B, A)  # the other way round gives no right
    sandbox = await village.house.turn(A)
    to = {"other agent": village.agent(B), "own agent": village.agent(A), "unknown agent": "a-nobody"}[target]
    await village.say(sandbox, "o-1", to)

    assert await village.settled(A, "o-1") == "failed"
    await until(lambda: village.told(A))
    [told] = village.told(A)
    assert (told["action"], told["status"]) == ("delivery_failed", "error")
    assert "may not write to that agent" in told["result"]["error"]
    assert await village.find("b/a") == []
    assert village.heard(B) == []
    assert village.house.channel.notices() == [], "no chat missed anything"


@pytest.mark.req("R175")
async def test_a_grant_that_was_taken_back_counts_no_more(village: Village) -> None:
    await village.grant()
    sandbox = await village.house.turn(A)
    await village.say(sandbox, "o-1", village.agent(B))
    assert await village.settled(A, "o-1") == "sent"
    await village.house.host.database.run(lambda c: agent_destinations.forbid(c, village.agent(A), B))
    await village.say(sandbox, "o-2", village.agent(B))
    assert await village.settled(A, "o-2") == "failed"


@pytest.mark.req("R172")
async def test_a_session_is_named_by_its_id_if_it_is_open_and_of_that_agent(village: Village) -> None:
    await village.grant()
    sandbox = await village.house.turn(A)
    theirs = village.house.keys[B].session_id
    await village.say(sandbox, "o-1", village.agent(B), thread=theirs, text="here")
    assert await village.settled(A, "o-1") == "sent"
    assert [row["text"] for row in village.heard(B)] == ["here"]

    await village.say(sandbox, "o-2", village.agent(B), thread=village.house.keys[A].session_id)
    await village.say(sandbox, "o-3", village.agent(B), thread="s-nowhere")
    await village.house.host.database.run(lambda c: sessions.close(c, theirs))
    await village.say(sandbox, "o-4", village.agent(B), thread=theirs)
    for row_id in ("o-2", "o-3", "o-4"):
        assert await village.settled(A, row_id) == "failed"
    await until(lambda: len(village.told(A)) == 3)
    assert all("has no open session" in told["result"]["error"] for told in village.told(A))
    assert len(village.heard(B)) == 1


@pytest.mark.req("R172")
async def test_a_session_cannot_write_to_itself(village: Village) -> None:
    await village.grant(A, A)
    sandbox = await village.house.turn(A)
    await village.say(sandbox, "o-1", village.agent(A), thread=village.house.keys[A].session_id)
    assert await village.settled(A, "o-1") == "failed"
    assert village.heard(A) == []


@pytest.mark.req("R172")
async def test_a_host_that_died_between_writing_and_recording_writes_once(village: Village) -> None:
    await village.grant()
    house, mail = village.house, village.house.host.agent_mail
    await house.turn(A)
    to = Address("agent", "", village.agent(B))
    word = Outgoing("o-1", 0, "hello", session=house.keys[A].session_id)
    assert await mail.was_sent(to, word) is False
    ids = await mail.deliver(to, word)
    assert await mail.was_sent(to, word) is True
    assert await mail.deliver(to, word) == ids
    await village.find("b/a")
    assert len(village.heard("b/a")) == 1
    with pytest.raises(NotSent) as refused:
        await mail.deliver(to, replace(word, session="s-gone"))
    assert refused.value.permanent


@pytest.mark.req("R172")
async def test_an_id_that_two_sandboxes_choose_keeps_nobodys_message_away(village: Village) -> None:
    await village.grant()
    await village.grant(B, B)
    theirs = village.house.keys[B].session_id
    for name, thread in ((A, theirs), (B, None)):
        sandbox = await village.house.turn(name)
        await village.say(sandbox, "o-1", village.agent(B), thread=thread, text=f"from {name}")
        assert await village.settled(name, "o-1") == "sent"
    await village.find("b/b", sender=B)
    assert [row["text"] for row in (*village.heard(B), *village.heard("b/b"))] == [f"from {A}", f"from {B}"]


@pytest.mark.req("R175")
async def test_the_right_to_answer_ends_after_a_week(village: Village) -> None:
    await village.grant()
    mail, house = village.house.host.agent_mail, village.house
    await mail.deliver(
        Address("agent", "", village.agent(B)), Outgoing("o-1", 0, "hi", session=house.keys[A].session_id)
    )
    await village.find("b/a")
    back = Address("agent", "", village.agent(A), house.keys[A].session_id)
    answer = Outgoing("o-2", 0, "hello", session=house.keys["b/a"].session_id)
    await house.clock.advance(6 * 24 * 3600)
    await mail.deliver(back, answer)
    await house.clock.advance(2 * 24 * 3600)
    with pytest.raises(NotSent, match="may not write"):
        await mail.deliver(back, replace(answer, delivery_id="o-3"))
    assert [row["text"] for row in village.heard(A)] == ["hello"]


@pytest.mark.req("R175")
async def test_an_account_of_that_way_is_refused_and_holds_up_nothing(village: Village) -> None:
    await village.grant()
    sandbox = await village.house.turn(A)
    await village.say(sandbox, "o-1", village.agent(B))
    sandbox.write("UPDATE runner_state SET next_seq = next_seq + 2")
    sandbox.write(
        "INSERT INTO messages_out SELECT 'o-2', seq + 2, turn_id, NULL, timestamp, NULL, NULL, kind, channel_type, "
        "'x', platform_id, NULL, content FROM messages_out WHERE id = 'o-1'"
    )
    assert await village.settled(A, "o-2") == "failed"
    assert village.house.host.delivery.waiting() == {}


@pytest.mark.req("R172", "R130")
@pytest.mark.fault(110)
async def test_files_go_along_as_copies_that_the_other_agent_alone_can_read(village: Village) -> None:
    await village.grant()
    sandbox = await village.house.turn(A)
    folder = sandbox.spec.outbound / "files" / "o-1"
    folder.mkdir()
    (folder / "report $(x).pdf").write_bytes(b"%PDF-1.7 hello")
    await village.say(sandbox, "o-1", village.agent(B), text="read this", files=["report $(x).pdf"])
    (folder / "link.pdf").symlink_to("/etc/passwd")
    assert await village.settled(A, "o-1") == "sent"
    await village.find("b/a")
    [row] = village.heard("b/a")
    [entry] = row["attachments"]
    assert entry == {
        "name": "report $(x).pdf", "type": "application/pdf", "size": 14, "file": "1-report_x.pdf"}  # fmt: skip
    copy = village.house.folder("b/a") / "inbound" / "files" / row["id"] / entry["file"]
    assert copy.read_bytes() == b"%PDF-1.7 hello"
    assert copy.stat().st_mode & 0o007 == 0
    assert copy.stat().st_ino != (folder / "report $(x).pdf").stat().st_ino

    folder.rename(folder.with_name("o-2"))
    await village.say(sandbox, "o-2", village.agent(B), files=["link.pdf"])
    assert await village.settled(A, "o-2") == "failed"
    assert len(village.heard("b/a")) == 1


@pytest.mark.req("R176")
@pytest.mark.fault(53)
async def test_two_agents_that_always_answer_come_to_an_end_and_people_do_not(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_mail, "MAX_HOPS", 6)
    await village.grant()
    sandbox = await village.house.turn(A)
    asked, number = village.house.rows(chat=A)[-1]["id"], 0
    while number < 30:
        row_id = f"o-{number}"
        await village.say(sandbox, row_id, village.agent(B), text="ping", in_reply_to=asked, turn=f"t-{number or 1}")
        if await village.settled(A, row_id) == "failed":
            break
        sandbox.answer("I have asked", f"t-{number or 1}")
        await village.find("b/a")
        other = await village.house.sandbox("b/a")
        await until(lambda: village.house.rows("pending", "b/a"))
        assert other.claim(f"t-b{number}")
        other.answer("pong", f"t-b{number}")
        number += 2
        await until(lambda: village.house.rows("pending", A))
        assert sandbox.claim(f"t-{number}")
        asked = village.heard(A)[-1]["id"]

    assert number == 6
    await until(village.house.channel.notices)
    [notice] = village.house.channel.notices()
    assert "answered each other 6 times" in notice
    await until(lambda: [told["action"] for told in village.told(A)] == ["delivery_failed"])

    sandbox.answer("I was stopped", "t-6")
    await village.house.send("go on", A)
    await until(lambda: [row for row in village.house.rows("pending", A) if row["trigger"]])
    assert sandbox.claim("t-p")
    await village.say(sandbox, "o-p", village.agent(B), in_reply_to=village.house.rows(chat=A)[-1]["id"], turn="t-p")
    assert await village.settled(A, "o-p") == "sent", "a person began anew"
    sandbox.answer("yes", "t-p")
    await until(lambda: "yes" in village.house.channel.texts(A))


@pytest.mark.req("R176")
@pytest.mark.fault(53)
async def test_a_sandbox_that_hides_what_it_answers_is_held_by_the_rate(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_mail, "MAX_BETWEEN_SESSIONS", 3)
    await village.grant()
    sandbox = await village.house.turn(A)
    for number in range(5):
        await village.say(sandbox, f"o-{number}", village.agent(B), in_reply_to="m-forged")
    states = [await village.settled(A, f"o-{number}") for number in range(5)]
    assert states == ["sent", "sent", "sent", "failed", "failed"]
    await until(village.house.channel.notices)
    await village.house.settle()
    assert len(village.house.channel.notices()) == 1, "one notice, however often it tries"

    await village.house.clock.advance(601)
    await village.say(sandbox, "o-9", village.agent(B))
    assert await village.settled(A, "o-9") == "sent"


@pytest.mark.req("R174")
async def test_an_agent_whose_question_failed_hears_so_and_may_go_on(village: Village) -> None:
    await village.grant()
    sandbox = await village.house.turn(A)
    await village.say(sandbox, "o-1", village.agent(B), text="what is it?")
    await village.settled(A, "o-1")
    sandbox.answer("I have asked")
    await village.find("b/a")
    other = await village.house.sandbox("b/a")
    assert other.claim("t-b")
    other.release("the model refuses this", retryable=False)

    await until(lambda: village.heard(A))
    [row] = village.heard(A)
    assert (row["kind"], row["action"], row["status"], row["trigger"]) == ("system", "message_from_agent", "error", 1)
    assert row["result"]["agent"] == "b"
    assert "the model refuses this" in row["result"]["text"]


def test_agents_are_no_platform_with_an_edge_of_its_own() -> None:
    assert AgentMail.capabilities.files
    assert not AgentMail.capabilities.typing
    assert not AgentMail.capabilities.edit
