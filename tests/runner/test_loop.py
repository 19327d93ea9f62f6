"""A real runner over a real mailbox: what it claims, says and completes."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from agent_runner.providers.rehearsal import HELP, PREFIX
from mailboxes import bell
from mailboxes.clock import SystemClock, later
from mailboxes.limits import MAX_OUTBOUND_BYTES
from mailboxes.rows import Address
from tests.runner.conftest import Start
from tests.runner.harness import HOME_CHAT, Bell, HostSide
from tests.runner.scripted import SEEN

DIE_IN_A_COMMIT = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size=1")
db.execute("BEGIN IMMEDIATE")
for n in range(200):
    db.execute("INSERT INTO destinations VALUES (?, 'x', ?)", (str(n), "x" * 3000))
os.kill(os.getpid(), signal.SIGKILL)
"""

OTHER_CHAT = Address("slack", "acme", "C99", "171.5")
SCRIPTED = {"preload": "tests.runner.scripted", "AGENT_PROVIDER": "scripted"}


def seen(host: HostSide) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (host.workspace.state / SEEN).read_text().splitlines()]


def echo(text: str) -> str:
    return f"{PREFIX} {text}"


@pytest.mark.req("R022", "R092", "R107")
async def test_a_message_is_claimed_answered_to_its_address_and_completed(host: HostSide, start: Start) -> None:
    message = host.chat("hello", address=OTHER_CHAT)
    runner = await start()
    snapshot = await runner.answered(message)
    (row,) = snapshot.messages
    assert row.address == OTHER_CHAT
    assert (row.kind, row.in_reply_to, json.loads(row.content)) == ("chat", message, {"text": echo("hello")})
    claim = snapshot.claim(message)
    assert claim is not None
    assert claim["turn_id"] == row.turn_id
    assert [tuple(r) for r in host.query("SELECT status, tries FROM messages_in")] == [("pending", 0)]
    assert snapshot.state is not None
    assert snapshot.state["state"] == "idle"


@pytest.mark.req("R127")
async def test_a_file_is_named_where_it_lies_also_where_no_cage_gives_it_another_place(
    host: HostSide, start: Start
) -> None:
    path = host.workspace.inbound / "files" / "m-2" / "1-a.txt"
    path.parent.mkdir(parents=True)
    path.write_text("x")
    entry = {"name": "a.txt", "type": "text/plain", "size": 1, "file": "1-a.txt"}
    message = host.put({"sender": "Ann", "text": "look", "attachments": [entry]}, id="m-2")
    runner = await start(**SCRIPTED)
    await runner.answered(message)
    assert f'path="{path}"' in seen(host)[0]["prompt"]


@pytest.mark.req("R092")
async def test_while_a_turn_runs_its_row_is_claimed_and_the_runner_busy(host: HostSide, start: Start) -> None:
    message = host.chat("/rehearse slow 600")
    runner = await start()
    snapshot = await runner.until(lambda s: s.claim(message) is not None)
    claim = snapshot.claim(message)
    assert claim is not None
    assert snapshot.state is not None
    assert (claim["state"], snapshot.state["state"], snapshot.state["turn_id"]) == (
        "processing",
        "busy",
        claim["turn_id"],
    )
    assert snapshot.messages == []


@pytest.mark.req("R094")
async def test_what_came_while_it_was_stopped_is_one_batch(host: HostSide, start: Start) -> None:
    messages = [host.chat(text) for text in ("one", "two", "three")]
    await (await start(**SCRIPTED)).answered(*messages)
    (query,) = seen(host)
    assert query["prompt"].count("<messages>") == 1
    assert query["prompt"].count("<message ") == 3
    assert query["prompt"].index("one") < query["prompt"].index("two") < query["prompt"].index("three")


@pytest.mark.req("R094")
async def test_origins_do_not_mix_and_go_in_the_order_of_their_oldest_row(host: HostSide, start: Start) -> None:
    a, b, c = host.chat("aa"), host.chat("bb", address=OTHER_CHAT), host.chat("cc")
    snapshot = await (await start()).answered(a, b, c)
    assert snapshot.texts() == [echo("aa"), echo("cc"), echo("bb")]
    assert [row.address for row in snapshot.messages] == [HOME_CHAT, HOME_CHAT, OTHER_CHAT]


@pytest.mark.req("R101")
async def test_a_message_that_comes_during_a_turn_is_pushed_into_it(host: HostSide, start: Start) -> None:
    slow = host.chat("/rehearse slow 2")
    runner = await start()
    await runner.until(lambda s: s.claim(slow) is not None)
    pushed, elsewhere = host.chat("meanwhile"), host.chat("not here", address=OTHER_CHAT)
    snapshot = await runner.until(lambda s: s.claim(pushed) is not None)
    assert (snapshot.claim(slow) or {})["turn_id"] == (snapshot.claim(pushed) or {})["turn_id"]
    assert snapshot.claim(elsewhere) is None
    snapshot = await runner.answered(slow, pushed, elsewhere)
    assert snapshot.texts() == [echo("that took 2 seconds."), echo("meanwhile"), echo("not here")]
    assert [row.in_reply_to for row in snapshot.messages] == [slow, pushed, elsewhere]
    assert (snapshot.claim(slow) or {})["turn_id"] != (snapshot.claim(pushed) or {})["turn_id"]


@pytest.mark.fault(13)
async def test_a_message_that_is_to_wait_goes_into_no_running_turn(host: HostSide, start: Start) -> None:
    slow = host.chat("/rehearse slow 2")
    runner = await start()
    await runner.until(lambda s: s.claim(slow) is not None)
    waits = host.put({"sender": "Ann", "senderId": "telegram:99", "text": "later", "attachments": [], "busy": "queue"})
    snapshot = await runner.until(lambda s: s.claim(waits) is not None)
    assert (snapshot.claim(slow) or {})["state"] == "completed"
    assert (await runner.answered(slow, waits)).texts() == [echo("that took 2 seconds."), echo("later")]


@pytest.mark.fault(12)
async def test_a_turn_ends_when_its_message_is_stopped_and_the_next_message_is_answered(
    host: HostSide, start: Start
) -> None:
    slow = host.chat("/rehearse slow 600")
    runner = await start()
    await runner.until(lambda s: s.claim(slow) is not None)
    host.execute("UPDATE messages_in SET status = 'cancelled' WHERE id = ?", [slow])
    following = host.chat("and now?")
    assert (await runner.answered(following)).texts() == [echo("and now?")]
    remembers = host.chat("/rehearse history")
    assert (await runner.answered(following, remembers)).texts()[-1] == echo("I remember 1 earlier messages.")


@pytest.mark.req("R102")
async def test_a_passed_command_reaches_the_provider_raw_and_alone(host: HostSide, start: Start) -> None:
    rows = [host.chat(text) for text in ("before", "/help", "after")]
    await (await start(**SCRIPTED)).answered(*rows)
    assert [(query["raw"], query["prompt"]) for query in seen(host)][1] == (True, "/help")
    assert [query["raw"] for query in seen(host)] == [False, True, False]


@pytest.mark.req("R103")
async def test_a_filtered_command_completes_without_a_turn_or_an_answer(host: HostSide, start: Start) -> None:
    filtered = host.chat("/start")
    snapshot = await (await start(**SCRIPTED)).answered(filtered)
    assert snapshot.messages == []
    assert not (host.workspace.state / SEEN).exists()


@pytest.mark.req("R105")
async def test_clear_starts_a_new_conversation_and_keeps_the_old_one(host: HostSide, start: Start) -> None:
    rows = [host.chat(text) for text in ("hello", "/clear", "/rehearse history")]
    snapshot = await (await start()).answered(*rows)
    assert snapshot.texts()[1].startswith("This is a new conversation")
    assert snapshot.texts()[2] == echo("I remember 0 earlier messages.")
    assert len(list((host.workspace.state / "transcripts").glob("*.jsonl"))) == 2
    assert len(host.query("SELECT id FROM messages_in")) == 3


async def test_a_command_that_is_not_built_says_so(host: HostSide, start: Start) -> None:
    snapshot = await (await start()).answered(host.chat("/compact"))
    assert snapshot.texts() == ["/compact is not built yet: nothing was changed."]


async def test_context_tells_how_much_it_remembers(host: HostSide, start: Start) -> None:
    runner = await start()
    first, hello, then = (host.chat(text) for text in ("/context", "hello", "/context"))
    texts = (await runner.answered(first, hello, then)).texts()
    assert texts[0] == "I remember nothing of this conversation: it has just begun."
    assert texts[2] == "I remember 2 messages of this conversation (1 kB). /clear makes me forget them."


@pytest.mark.req("R019")
async def test_rows_that_cannot_be_read_are_set_aside_and_the_next_ones_go_on(host: HostSide, start: Start) -> None:
    unknown, broken, fine = host.put({}, kind="zzz"), host.put("{"), host.chat("fine")
    runner = await start()
    snapshot = await runner.answered(fine)
    for bad in (unknown, broken):
        claim = snapshot.claim(bad)
        assert claim is not None
        assert (claim["state"], claim["retryable"]) == ("released", 0)
        assert claim["reason"]
    await runner.stop()
    assert await runner.errors() != ""


@pytest.mark.req("R023")
async def test_no_routing_value_reaches_the_provider(host: HostSide, start: Start) -> None:
    address = Address("channel-ROUTE", "account-ROUTE", "platform-ROUTE", "thread-ROUTE")
    await (await start(**SCRIPTED)).answered(host.chat("hi", address=address, principal="person-ROUTE"))
    assert "ROUTE" not in (host.workspace.state / SEEN).read_text()


@pytest.mark.req("R107")
async def test_the_last_row_with_an_address_says_where_the_answer_goes(host: HostSide, start: Start) -> None:
    first, last = host.chat("one"), host.chat("two")
    await (await start(**SCRIPTED)).answered(first, last)
    (row,) = host.snapshot().messages
    assert row.in_reply_to == last


@pytest.mark.req("R030", "R108")
@pytest.mark.parametrize(
    ("kind", "content", "address", "expected"),
    [
        ("chat", {"text": "x"}, HOME_CHAT, ("chat", {"text": "answer to x"})),
        ("chat-sdk", {"text": "x"}, HOME_CHAT, ("chat-sdk", {"markdown": "answer to x"})),
        ("task", {"prompt": "x"}, HOME_CHAT, ("chat", {"text": "answer to this"})),
        ("task", {"prompt": "x"}, None, ("task", {"result": "answer to this", "status": "completed"})),
        (
            "webhook",
            {"source": "s", "event": "e", "payload": {}},
            None,
            ("webhook", {"response": {"status": 200, "body": "answer to this"}}),
        ),
        ("system", {"action": "a", "status": "s", "result": {}}, HOME_CHAT, ("chat", {"text": "answer to this"})),
        ("system", {"action": "a", "status": "s", "result": {}}, None, None),
    ],
)
async def test_every_kind_has_an_answer_that_can_be_delivered(
    host: HostSide, start: Start, kind: str, content: dict[str, Any], address: Address | None, expected: Any
) -> None:
    snapshot = await (await start(**SCRIPTED)).answered(host.put(content, kind=kind, address=address))
    rows = [(row.kind, json.loads(row.content)) for row in snapshot.messages]
    assert rows == ([expected] if expected else [])
    assert all(row.address == address for row in snapshot.messages)


@pytest.mark.req("R109")
async def test_the_system_prompt_is_read_from_the_agents_folder_at_each_turn(host: HostSide, start: Start) -> None:
    (host.workspace.agent / "CLAUDE.md").write_text("You are the older one.")
    runner = await start(**SCRIPTED, ASSISTANT_NAME="Ivy")
    await runner.answered(host.chat("one"))
    await runner.answered(host.chat("two"))
    (host.workspace.agent / "AGENTS.md").write_text("You are the newer one.")
    await runner.answered(host.chat("three"))
    first, second, third = (query["system"] for query in seen(host))
    assert first == second
    assert "Ivy" in first
    assert first.endswith("You are the older one.\n")
    assert third.endswith("You are the newer one.\n")


async def test_who_the_agent_is_comes_before_how_it_works_and_its_surroundings_after(
    host: HostSide, start: Start
) -> None:
    for name in ("TOOLS", "SOUL", "AGENTS"):
        (host.workspace.agent / f"{name}.md").write_text(f"words of {name}")
    await (await start(**SCRIPTED)).answered(host.chat("one"))
    [query] = seen(host)
    assert query["system"].endswith("words of SOUL\n\nwords of AGENTS\n\nwords of TOOLS\n")


@pytest.mark.req("R110")
async def test_a_hundred_deltas_are_one_row(host: HostSide, start: Start) -> None:
    snapshot = await (await start(**SCRIPTED)).answered(host.chat("deltas"))
    assert snapshot.texts() == ["one answer of a hundred parts"]


async def test_results_wait_for_their_input_to_be_answered_and_blank_ones_make_no_row(
    host: HostSide, start: Start
) -> None:
    runner = await start(**SCRIPTED)
    snapshot = await runner.answered(host.chat("twice"))
    assert snapshot.texts() == ["first", "second"]
    assert len({row.turn_id for row in snapshot.messages}) == 1
    snapshot = await runner.answered(host.chat("blank"))
    assert len(snapshot.messages) == 2


@pytest.mark.req("R096", "R198")
@pytest.mark.parametrize(
    ("text", "reason", "retryable"),
    [
        ("/rehearse fail", "The rehearsal failed, as it was asked to.", 1),
        ("/rehearse refuse", "The rehearsal refuses, as it was asked to.", 0),
    ],
)
async def test_a_failure_releases_the_claim_and_leaves_the_rest_to_the_host(
    host: HostSide, start: Start, text: str, reason: str, retryable: int
) -> None:
    message = host.chat(text)
    runner = await start()
    snapshot = await runner.until(lambda s: (s.claim(message) or {}).get("state") == "released")
    claim = snapshot.claim(message)
    assert claim is not None
    assert (claim["reason"], claim["retryable"]) == (reason, retryable)
    assert snapshot.messages == []
    assert snapshot.state is not None
    assert snapshot.state["state"] == "idle"
    assert [tuple(r) for r in host.query("SELECT status, tries FROM messages_in")] == [("pending", 0)]
    snapshot = await runner.answered(host.chat("/rehearse history"))
    assert snapshot.texts() == [echo("I remember 0 earlier messages.")]


@pytest.mark.req("R198")
async def test_a_failure_in_a_loop_of_tools_leaves_the_history_as_it_was(host: HostSide, start: Start) -> None:
    runner = await start(**SCRIPTED)
    await runner.answered(host.chat("first"))
    failing = host.chat("toolfail")
    await runner.until(lambda s: (s.claim(failing) or {}).get("state") == "released")
    await runner.answered(host.chat("third"))
    history = seen(host)[2]["history"]
    assert [message["role"] for message in history] == ["user", "assistant"]
    assert "first" in history[0]["content"]


@pytest.mark.req("R096")
@pytest.mark.parametrize("text", ["raise", "silent"])
async def test_a_provider_that_breaks_releases_the_claim_and_the_runner_goes_on(
    host: HostSide, start: Start, text: str
) -> None:
    message = host.chat(text)
    runner = await start(**SCRIPTED)
    snapshot = await runner.until(lambda s: (s.claim(message) or {}).get("state") == "released")
    assert (snapshot.claim(message) or {})["retryable"] == 1
    await runner.answered(host.chat("next"))
    await runner.stop()
    assert "SECRET-TEXT" not in await runner.errors()


@pytest.mark.req("R111")
async def test_a_row_is_claimed_once_for_each_attempt(host: HostSide, start: Start) -> None:
    message = host.chat("/rehearse fail")
    runner = await start()
    await runner.until(lambda s: (s.claim(message) or {}).get("state") == "released")
    other = host.chat("other")
    await runner.answered(other)
    host.retry(message)
    snapshot = await runner.until(lambda s: (s.claim(message, 1) or {}).get("state") == "released")
    assert {c["attempt"] for c in snapshot.claims if c["message_id"] == message} <= {0, 1}


@pytest.mark.req("R092")
async def test_a_row_waits_until_it_is_due(host: HostSide, start: Start) -> None:
    now = SystemClock().now()
    future, due = host.chat("later", process_after=later(now, 3600)), host.chat("now", process_after=later(now, -1))
    snapshot = await (await start()).answered(due)
    assert snapshot.claim(future) is None


async def test_rows_that_only_ride_along_wait_for_one_that_starts_a_turn(host: HostSide, start: Start) -> None:
    bystander = host.chat("overheard", trigger=0)
    notice = host.put(
        {"action": "undelivered", "status": "failed", "result": {}}, kind="system", address=None, on_wake=1
    )
    runner = await start(**SCRIPTED)
    elsewhere = host.chat("elsewhere", address=OTHER_CHAT)
    snapshot = await runner.answered(elsewhere)
    assert snapshot.claim(bystander) is None
    snapshot = await runner.answered(bystander, host.chat("now you"))
    assert snapshot.claim(notice) is not None
    assert len(snapshot.messages) == 2


@pytest.mark.req("R111")
async def test_a_stop_gives_the_claim_back_and_the_row_runs_again_once(host: HostSide, start: Start) -> None:
    slow = host.chat("/rehearse slow 600")
    runner = await start()
    await runner.until(lambda s: s.claim(slow) is not None)
    assert await runner.stop() == 0
    snapshot = host.snapshot()
    claim = snapshot.claim(slow)
    assert claim is not None
    assert (claim["state"], claim["reason"], claim["retryable"]) == ("released", "stopped", 1)
    assert snapshot.state is not None
    assert snapshot.state["state"] == "idle"
    host.execute("UPDATE messages_in SET content = ?", [json.dumps({"text": "/rehearse history"})])
    snapshot = await (await start()).answered(slow)
    assert snapshot.texts() == [echo("I remember 0 earlier messages.")]


async def test_the_conversation_survives_a_restart(host: HostSide, start: Start) -> None:
    runner = await start()
    await runner.answered(host.chat("hello"))
    await runner.stop(signal.SIGKILL)
    snapshot = await (await start()).answered(host.chat("/rehearse history"))
    assert snapshot.texts()[-1] == echo("I remember 1 earlier messages.")


async def test_numbers_are_odd_and_go_on_above_all_that_was_ever_said(host: HostSide, start: Start) -> None:
    host.execute("INSERT INTO deliveries (id, seq, kind, timestamp, content) VALUES ('o-old', 41, 'chat', '', '{}')")
    runner = await start()
    snapshot = await runner.answered(host.chat("a"), host.chat("b"))
    assert [row.seq for row in snapshot.messages] == [43, 45]
    await runner.stop()
    host.take_over()
    host.fresh_outbound()
    snapshot = await (await start()).answered(host.chat("c"))
    assert [row.seq for row in snapshot.messages] == [47]


async def test_what_the_host_has_taken_over_and_judged_is_deleted_with_the_next_commit(
    host: HostSide, start: Start
) -> None:
    runner = await start()
    first = host.chat("first")
    await runner.answered(first)
    host.take_over()
    snapshot = await runner.answered(host.chat("second"))
    assert snapshot.texts() == [echo("second")]
    assert snapshot.claim(first) is None


async def test_what_the_host_has_not_taken_over_stays(host: HostSide, start: Start) -> None:
    runner = await start()
    first = host.chat("first")
    await runner.answered(first)
    host.execute("UPDATE messages_in SET status = 'completed' WHERE id = ?", [first])
    snapshot = await runner.answered(host.chat("second"))
    assert snapshot.texts() == [echo("first"), echo("second")]


async def test_a_longer_text_goes_as_a_file_and_the_row_names_it(host: HostSide, start: Start) -> None:
    snapshot = await (await start()).answered(host.chat("/rehearse long 300000"))
    (row,) = snapshot.messages
    content = json.loads(row.content)
    assert content["files"] == ["answer.md"]
    assert "300,000 characters" in content["text"]
    assert len((host.workspace.outbound / "files" / row.id / "answer.md").read_text()) == 300_000


async def test_a_full_file_waits_for_the_host_and_never_grows_past_its_limit(host: HostSide, start: Start) -> None:
    ringing = Bell(host)
    runner = await start()
    await ringing.accept()
    rows = [host.chat("/rehearse long 200000") for _ in range(8)]
    await runner.until(lambda s: len(s.messages) == 5 and (s.claim(rows[5]) or {}).get("state") == "processing")
    while not ringing.heard.empty():
        ringing.heard.get_nowait()
    for _ in range(2):  # it asks again with each poll
        await ringing.hear(bell.RING)
    assert len(host.snapshot().messages) == 5
    host.take_over()
    await runner.answered(*rows[5:])
    host.take_over()
    assert len(host.query("SELECT id FROM deliveries")) == 8
    assert (host.workspace.outbound / "outbound.db").stat().st_size <= MAX_OUTBOUND_BYTES
    ringing.close()


async def test_a_runner_that_waits_for_the_host_can_be_stopped(host: HostSide, start: Start) -> None:
    runner = await start()
    rows = [host.chat("/rehearse long 200000") for _ in range(6)]
    await runner.until(lambda s: len(s.messages) == 5 and (s.claim(rows[5]) or {}).get("state") == "processing")
    assert await runner.stop() == 0
    assert (host.snapshot().claim(rows[5]) or {})["reason"] == "stopped"


async def test_a_turn_may_send_half_a_mailbox_and_is_told_when_it_is_full(host: HostSide, start: Start) -> None:
    snapshot = await (await start(**SCRIPTED)).answered(host.chat("flood"))
    assert snapshot.texts()[-1] == "that was all"
    assert len(snapshot.messages) == 9


async def test_the_bell_carries_rings_and_beats_both_ways(host: HostSide, start: Start) -> None:
    ringing = Bell(host)
    runner = await start()
    try:
        line = await ringing.accept()
        await ringing.hear(bell.BEAT)
        message = host.chat("hello")
        line.ring()
        await ringing.hear(bell.RING)
        assert (host.snapshot().claim(message) or {})["state"] == "completed"
        assert runner.process.returncode is None
    finally:
        ringing.close()


async def test_a_runner_whose_bell_is_gone_polls_and_connects_again(host: HostSide, start: Start) -> None:
    ringing = Bell(host)
    runner = await start()
    await ringing.accept()
    ringing.close()
    await runner.answered(host.chat("without a bell"))
    again = Bell(host)
    try:
        await again.accept()
        await again.hear(bell.BEAT)
    finally:
        again.close()


async def test_help_lists_what_can_be_rehearsed(host: HostSide, start: Start) -> None:
    snapshot = await (await start()).answered(host.chat("/help"), host.chat("/rehearse nonsense"))
    assert snapshot.texts() == [HELP, HELP]


async def test_a_hot_journal_of_a_host_that_died_is_waited_out(host: HostSide, start: Start) -> None:
    runner = await start(LOG_LEVEL="debug")
    await runner.answered(host.chat("first"))
    subprocess.run([sys.executable, "-c", DIE_IN_A_COMMIT, host.workspace.inbound / "inbound.db"], check=False)
    assert (host.workspace.inbound / "inbound.db-journal").read_bytes()[:1] == b"\xd9"
    await runner.logged("host_away")
    await runner.answered(host.chat("second"))
