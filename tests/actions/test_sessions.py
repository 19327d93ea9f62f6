"""What agents have done to sessions: begun anew, worked through once more, read, and known of."""

import asyncio
import json
from typing import Any, cast

import pytest

from host.db import sessions
from host.db.user_roles import Role
from host.items import SessionRef
from mailboxes.rows import Address, Kind
from tests.actions.conftest import FOREIGN, OTHER, OWN, Office
from tests.fleet.house import Machine, until
from tests.mailbox.made import message, table

CHAT = Address("telegram", "bot", OWN)


async def put(office: Office, chat: str, *rows: Any) -> None:
    await office.house.host.postmaster._pool.call(office.house.keys[chat], lambda mailbox: mailbox.put(rows))


async def next_session(office: Office, chat: str = OWN) -> SessionRef:
    """The session that took the place of a chat's; it goes by the chat's name from now on, the old one by "old"."""
    old = office.house.keys[chat]
    place = None

    async def look() -> SessionRef | None:
        found = await office.house.host.database.run(lambda c: sessions.in_place_of(c, old.session_id))
        return None if found is None or found.id == old.session_id else SessionRef(found.agent_group_id, found.id)

    while (place := await look()) is None:
        await office.house.settle()
    office.house.keys["old"], office.house.keys[chat] = old, place
    return place


def told(office: Office, chat: str = OWN) -> list[dict[str, Any]]:
    """The answers to actions in a session."""
    if not (office.house.folder(chat) / "inbound" / "inbound.db").exists():
        return []
    rows = [{**row, **json.loads(row["content"])} for row in table(office.house.folder(chat), "messages_in")]
    return [row for row in rows if row["kind"] == "system"]


@pytest.mark.req("R181")
async def test_an_agent_begins_its_own_conversation_anew_and_what_waits_goes_along(office: Office) -> None:
    sandbox = await office.house.turn(OWN)
    [asked] = office.house.rows(chat=OWN)
    await put(office, OWN, message("m-later", address=CHAT, process_after="2027-01-01T00:00:00.000Z"))
    office.write(sandbox, "o-1", "reset_session", asked["id"])
    fresh = await next_session(office)
    await until(lambda: told(office))
    [answer] = told(office)
    assert (answer["action"], answer["status"], answer["trigger"]) == ("reset_session", "success", 0)
    assert answer["result"] == {
        "session_id": office.house.keys["old"].session_id,
        "new_session_id": fresh.session_id,
    }
    assert [row["id"] for row in office.house.rows(chat=OWN) if row["kind"] == "chat"] == ["m-later"]
    assert office.house.row(asked["id"], "old")["status"] == "completed", "else the next session would ask for the same"
    await until(lambda: not sandbox.alive and office.house.is_gone("old"))
    await until(lambda: office.open("old") == [])
    await office.house.settle()
    assert office.house.is_gone(OWN), "nothing wakes the next session before somebody writes"

    await office.house.send("and now?", OWN)
    assert [json.loads(row["content"])["text"] for row in office.house.rows("pending", OWN) if row["kind"] == "chat"][
        -1
    ] == "and now?"


@pytest.mark.req("R181", "R179")
async def test_an_owner_has_another_conversation_of_the_agent_begun_anew(office: Office) -> None:
    await office.become(Role.OWNER)
    other = await office.house.turn(OTHER)
    [row] = office.house.rows(chat=OTHER)
    await office.house.turn(OWN)
    answer = await office.ask("reset_session", session_id=office.house.keys[OTHER].session_id)
    fresh = await next_session(office, OTHER)
    assert answer["result"]["new_session_id"] == fresh.session_id
    assert not other.alive
    assert office.house.row(row["id"], OTHER)["status"] == "pending", "what it worked on goes on in the next one"


@pytest.mark.req("R181")
async def test_beginning_anew_what_is_over_changes_nothing(office: Office) -> None:
    await office.become(Role.OWNER)
    await office.house.turn(OWN)
    target = office.house.keys[OTHER].session_id
    first = await office.ask("reset_session", "o-1", session_id=target)
    again = await office.ask("reset_session", "o-2", session_id=target)
    assert first["result"] == again["result"]


@pytest.mark.req("R177", "R181")
async def test_a_host_that_died_before_it_answered_a_reset_has_the_next_one_answer_it(machine: Machine) -> None:
    async with machine.host(chats=[OWN]) as house:
        office = Office(house)
        died = asyncio.Event()

        async def die(_key: SessionRef) -> SessionRef:
            died.set()
            raise asyncio.CancelledError  # the task ends here, as it does with its host

        cast("Any", house.host.postmaster.act).__self__._in_place_of = die
        sandbox = await house.turn(OWN)
        [asked] = house.rows(chat=OWN)
        office.write(sandbox, "o-1", "reset_session", asked["id"])
        await died.wait()
        fresh = await next_session(office)
        old = house.keys["old"]
        assert (office.open("old"), told(office)) == (["o-1"], [])

    async with machine.host(chats=[OWN]) as house:
        office = Office(house)
        house.keys["old"] = old
        assert (house.keys[OWN], told(office)) == (fresh, [])
        await house.host.finish_moves()
        [answer] = told(office)
        assert (answer["action"], answer["status"]) == ("reset_session", "success")
        assert answer["result"] == {"session_id": old.session_id, "new_session_id": fresh.session_id}
        assert office.open("old") == []
        assert await house.host.database.run(lambda c: len(sessions.active(c))) == 1, "no second reset"


@pytest.mark.req("R182")
async def test_old_messages_are_worked_on_again_in_order_and_nothing_else_is(office: Office) -> None:
    await office.become(Role.OWNER)
    files = office.house.folder(OTHER) / "inbound" / "files" / "m-2"
    files.mkdir()
    (files / "1-a.txt").write_text("a")
    done = {"status": "completed", "address": Address("telegram", "bot", OTHER), "principal": "telegram:1"}
    await put(
        office,
        OTHER,
        *(message(f"m-{n}", content=json.dumps({"text": f"text {n}"}), **done) for n in (1, 2, 3)),
        message("m-system", kind=Kind.SYSTEM, content='{"questionId": "q"}', **done),
        message("m-agent", content='{"text": "from b", "hops": 1}', source_session="s-b", **done),
        message("m-task", kind=Kind.TASK, content='{"prompt": "x"}', series_id="task-1", **done),
        message(
            "m-open",
            content='{"text": "still open"}',
            address=done["address"],
            process_after="2027-01-01T00:00:00.000Z",
        ),
    )
    before = len(table(office.house.folder(OTHER), "deliveries"))
    await office.house.turn(OWN)
    target = office.house.keys[OTHER].session_id
    reset = await office.ask("reset_session", "o-1", session_id=target)
    answer = await office.ask("replay_session", "o-2", session_id=target)
    fresh = await next_session(office, OTHER)
    assert answer["result"] == {"session_id": fresh.session_id, "messages": 3}
    assert reset["result"]["new_session_id"] == fresh.session_id
    rows = [row for row in office.house.rows("pending", OTHER) if row["process_after"] is None]
    assert [json.loads(row["content"])["text"] for row in rows] == ["text 1", "text 2", "text 3"]
    assert {row["source_session"] for row in rows} == {target}
    copied = office.house.folder(OTHER) / "inbound" / "files" / rows[1]["id"] / "1-a.txt"
    assert copied.read_text() == "a"
    sandbox = await office.house.sandbox(OTHER)
    assert sandbox.claim("t-r") == [row["id"] for row in rows], "one batch"
    assert len(table(office.house.folder("old"), "deliveries")) == before, "nothing is said again"


@pytest.mark.req("R182")
async def test_the_message_that_asked_for_a_replay_is_not_replayed(office: Office) -> None:
    sandbox = await office.house.turn(OWN)
    [asked] = office.house.rows(chat=OWN)
    await put(office, OWN, message("m-old", address=CHAT, status="completed"))
    answer = await office.ask("replay_session")
    assert answer["result"]["messages"] == 1
    sandbox.answer("replayed")
    await until(lambda: office.house.row(asked["id"], OWN)["status"] == "completed")
    sandbox.claim("t-2")
    await until(lambda: office.house.rows("processing", OWN))
    answer = await office.ask("replay_session", "o-2")
    assert answer["result"]["messages"] == 1, "neither the request nor the copy"


@pytest.mark.req("R183")
async def test_a_manager_reads_what_was_said_in_the_agents_other_sessions(office: Office) -> None:
    await office.become(Role.OWNER)
    other = await office.house.turn(OTHER)
    other.answer("PR 7 is reviewed")
    await until(lambda: office.house.channel.texts(OTHER))
    await put(office, OTHER, message("m-old", address=CHAT, status="completed", timestamp="2020-01-01T00:00:00.000Z"))
    await office.house.turn(OWN)

    listed = (await office.ask("read_session", "o-1"))["result"]["sessions"]
    own, theirs = office.house.keys[OWN].session_id, office.house.keys[OTHER].session_id
    assert {one["id"] for one in listed} == {own, theirs}
    whole = table(office.house.folder(OTHER), "messages_in")
    read = (await office.ask("read_session", "o-2", session_id=theirs))["result"]
    assert [(one["direction"], one["text"]) for one in read["messages"]] == [
        ("in", "hi"),
        ("in", "hello"),
        ("out", "PR 7 is reviewed"),
    ]
    assert read["more"] is False
    since = (await office.ask("read_session", "o-3", session_id=theirs, since="2025-01-01T00:00:00Z"))["result"]
    assert [one["text"] for one in since["messages"]] == ["hello", "PR 7 is reviewed"]
    last = (await office.ask("read_session", "o-4", session_id=theirs, limit=1))["result"]
    assert ([one["text"] for one in last["messages"]], last["more"]) == (["PR 7 is reviewed"], True)
    assert table(office.house.folder(OTHER), "messages_in") == whole, "reading changes nothing"


@pytest.mark.req("R183")
@pytest.mark.parametrize("about", [OTHER, FOREIGN])
async def test_whoever_may_not_sees_nothing_of_other_sessions(office: Office, about: str) -> None:
    await put(office, about, message("m-secret", content='{"text": "secret"}', status="completed"))
    await office.house.turn(OWN)
    listed = (await office.ask("read_session", "o-1"))["result"]["sessions"]
    assert [one["id"] for one in listed] == [office.house.keys[OWN].session_id]
    for row_id, action in (("o-2", "read_session"), ("o-3", "copy_context"), ("o-4", "replay_session")):
        answer = await office.ask(action, row_id, session_id=office.house.keys[about].session_id)
        assert answer["status"] == "error"
        assert "secret" not in json.dumps(answer)


@pytest.mark.req("R184")
async def test_a_supervisor_knows_what_was_said_and_the_worker_knows_nothing_of_it(office: Office) -> None:
    await office.become(Role.ADMIN, OWN)
    other = await office.house.turn(OTHER)
    other.answer("I would merge it")
    await until(lambda: office.house.channel.texts(OTHER))
    await office.house.turn(OWN)
    before = table(office.house.folder(OTHER), "messages_in")
    theirs = office.house.keys[OTHER].session_id
    answer = await office.ask("copy_context", session_id=theirs)
    assert answer["result"] == {"session_id": theirs, "messages": 2}
    copies = [row for row in office.house.rows(chat=OWN) if row["source_session"] == theirs]
    said = [json.loads(row["content"]) for row in copies]
    assert [(one["sender"], one["text"]) for one in said] == [("Ada", "hello"), ("main", "I would merge it")]
    assert {(row["trigger"], row["platform_id"]) for row in copies} == {(0, OWN)}
    assert table(office.house.folder(OTHER), "messages_in") == before


@pytest.mark.req("R177")
@pytest.mark.parametrize(
    ("action", "payload", "sentence"),
    [
        ("read_session", {"session_id": 7}, "session_id is the text that read_session gives."),
        ("read_session", {"session_id": "../x"}, "This agent has no session ../x."),
        ("read_session", {"session_id": OWN, "limit": 10**9}, "limit is a number from 1 to 200."),
        ("read_session", {"session_id": OWN, "since": "yesterday"}, "since is a time such as"),
        ("replay_session", {"last": 0}, "last is a number from 1 to 200."),
        ("copy_context", {}, "Say which other session"),
    ],
)
async def test_what_cannot_be_done_is_a_sentence(
    office: Office, action: str, payload: dict[str, object], sentence: str
) -> None:
    await office.house.turn(OWN)
    if payload.get("session_id") == OWN:
        payload = {**payload, "session_id": office.house.keys[OWN].session_id}
    answer = await office.ask(action, **payload)
    assert answer["status"] == "error"
    assert answer["result"].startswith(sentence)
