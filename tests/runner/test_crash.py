"""Killed at a named point and restarted by a host that judges by the protocol: one answer, or a continuation."""

import json
import signal
from pathlib import Path

import pytest

from agent_runner.providers.rehearsal import PREFIX
from tests.runner.conftest import Start
from tests.runner.harness import HostSide


def judge(host: HostSide, message: str) -> None:
    """A host's judgement of a dead runner, for a turn of which nothing was taken over."""
    host.take_over()
    status = host.query("SELECT status FROM messages_in WHERE id = ?", [message])[0]["status"]
    if status != "completed":
        host.retry(message)


@pytest.mark.req("R026", "R095", "R157")
@pytest.mark.parametrize("point", ["after_claim", "mid_turn", "before_commit", "after_commit", "after_transcript"])
async def test_killed_at_a_point_of_a_turn_there_is_one_answer_in_the_end(
    host: HostSide, start: Start, point: str
) -> None:
    message = host.chat("hello")
    first = await start(INNKEEPER_CRASH_AT=point)
    assert await first.ended() == -signal.SIGKILL
    judge(host, message)
    runner = await start()
    last = host.chat("/rehearse history")
    snapshot = await runner.answered(last)
    host.take_over()
    said = [json.loads(row["content"])["text"] for row in host.query("SELECT content FROM deliveries ORDER BY seq")]
    assert said == [f"{PREFIX} hello", f"{PREFIX} I remember 1 earlier messages."]
    assert [row.turn_id for row in snapshot.messages]


@pytest.mark.req("R156", "R158")
async def test_killed_after_a_tool_sent_a_row_the_agent_goes_on_from_there(
    host: HostSide, start: Start, tmp_path: Path
) -> None:
    message = host.chat("/rehearse send half")
    first = await start(INNKEEPER_CRASH_AT="after_send")
    assert await first.ended() == -signal.SIGKILL
    (sent,) = host.take_over()
    host.execute("UPDATE messages_in SET status = 'completed'")
    result = {"turn_id": sent.turn_id, "message_ids": [message], "sent": [{"seq": sent.seq, "text": "half"}]}
    going_on = host.put({"action": "continue_turn", "status": "interrupted", "result": result}, kind="system", tries=1)
    runner = await start()
    snapshot = await runner.answered(going_on)
    assert snapshot.texts()[-1] == f"{PREFIX} I was interrupted, and go on."
    assert snapshot.messages[-1].address == sent.address
    assert (host.workspace.state / "cut" / f"{sent.turn_id}.json").exists()
    (transcript,) = (host.workspace.state / "transcripts").glob("*.jsonl")
    prompt = json.loads(transcript.read_text().splitlines()[0])["content"]
    assert "/rehearse send half</message>" in prompt
    assert f'<sent id="{sent.seq}">half</sent>' in prompt


@pytest.mark.req("R111")
async def test_an_agent_that_kills_its_own_process_tells_of_it_on_the_next_try(host: HostSide, start: Start) -> None:
    message = host.chat("/rehearse crash")
    assert await (await start()).ended() == -signal.SIGKILL
    assert [tuple(r) for r in host.query("SELECT status, tries FROM messages_in")] == [("pending", 0)]
    host.retry(message)
    snapshot = await (await start()).answered(message)
    assert snapshot.texts() == [f"{PREFIX} I had crashed, and am back."]


async def test_killed_in_a_turn_with_a_pushed_row_both_run_again(host: HostSide, start: Start) -> None:
    slow = host.chat("/rehearse slow 600")
    runner = await start()
    await runner.until(lambda s: s.claim(slow) is not None)
    pushed = host.chat("pushed")
    await runner.until(lambda s: s.claim(pushed) is not None)
    await runner.stop(signal.SIGKILL)
    host.execute("UPDATE messages_in SET tries = 1")
    host.execute("UPDATE messages_in SET content = ? WHERE id = ?", [json.dumps({"text": "quick"}), slow])
    snapshot = await (await start()).answered(slow, pushed)
    assert snapshot.texts() == [f"{PREFIX} quick", f"{PREFIX} pushed"]


async def test_a_part_of_a_turn_that_was_answered_is_not_run_again(host: HostSide, start: Start) -> None:
    slow = host.chat("/rehearse slow 1.5")
    runner = await start(INNKEEPER_CRASH_AT="after_commit")
    await runner.until(lambda s: s.claim(slow) is not None)
    pushed = host.chat("pushed")
    assert await runner.ended() == -signal.SIGKILL
    host.take_over()
    states = {row["id"]: row["status"] for row in host.query("SELECT id, status FROM messages_in")}
    assert states[slow] == "completed"
    host.retry(pushed)
    await (await start()).answered(pushed)
    host.take_over()
    said = [json.loads(row["content"])["text"] for row in host.query("SELECT content FROM deliveries ORDER BY seq")]
    assert said == [f"{PREFIX} that took 1.5 seconds.", f"{PREFIX} pushed"]
