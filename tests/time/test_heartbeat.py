"""A heartbeat costs nothing where nothing has changed, says nothing twice, and gives way to people."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_runner.batching import Waiting, candidates
from agent_runner.heartbeat import Decisions, Memory, news, refusal
from mailboxes.clock import to_text
from mailboxes.rows import Kind
from tests.runner.conftest import Start, host, start
from tests.runner.harness import HostSide, RunnerProcess, Snapshot
from tests.runner.scripted import SEEN

__all__ = ["host", "start"]

BEATING = {"preload": "tests.time.beating", "AGENT_PROVIDER": "beating"}
DECISIONS: dict[str, Any] = {"every_seconds": 0, "hours": None, "zone": "UTC", "per_day": None}
TEMPLATE = Path(__file__).parents[2] / "groups/template/HEARTBEAT.md"
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def beat(host: HostSide, script: str | None = None, **decisions: Any) -> str:
    content: dict[str, Any] = {"prompt": "HEARTBEAT.md", "heartbeat": {**DECISIONS, **decisions}}
    if script is not None:
        content["script"] = script
    return host.put(content, kind=Kind.TASK, series_id="heartbeat-s-1")


def words(host: HostSide, text: str | None, answer: str = "The oven is on.") -> None:
    if text is not None:
        (host.workspace.agent / "HEARTBEAT.md").write_text(text)
    (host.workspace.state / "answer.txt").write_text(answer)


def prompts(host: HostSide) -> list[str]:
    path = host.workspace.state / SEEN
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()] if path.exists() else []


async def after(runner: RunnerProcess, message: str) -> Snapshot:
    return await runner.answered(message)


@pytest.mark.req("R234")
@pytest.mark.parametrize(
    ("text", "memory", "hours", "per_day", "why"),
    [
        (None, Memory(), (9, 11), None, "there is no HEARTBEAT.md"),
        ("# Look\n\n<!-- nothing\nyet -->\n", Memory(), (9, 11), None, "HEARTBEAT.md is empty"),
        ("look", Memory(last=to_text(NOW - timedelta(minutes=10))), (9, 11), None, "the interval has not passed"),
        ("look", Memory(last=to_text(NOW - timedelta(minutes=20))), (9, 11), None, "it is outside its hours"),
        ("look", Memory(day="2026-06-01", asked=3), (22, 13), 3, "as often as it may today"),
        ("look", Memory(day="2026-05-31", asked=3), (22, 13), 3, None),
        ("look", Memory(), (12, 12), None, None),
        ("<!-- a --> look", Memory(), None, None, None),
    ],
)
def test_each_reason_against_a_beat_has_its_words_and_they_are_looked_at_in_order(
    text: str | None, memory: Memory, hours: tuple[int, int] | None, per_day: int | None, why: str | None
) -> None:
    found = refusal(text, Decisions(timedelta(minutes=30), hours, "UTC", per_day), memory, NOW)
    assert found == why or (why is not None and found is not None and why in found)


@pytest.mark.req("R236")
@pytest.mark.parametrize(
    ("text", "said", "kept"),
    [
        ("HEARTBEAT_OK", "", None),
        ("HEARTBEAT_OK.", "", None),
        ("**HEARTBEAT_OK**", "", None),
        ("HEARTBEAT_OK but the oven is on", "", "but the oven is on"),
        ("The oven is on.", "", "The oven is on."),
        ("The oven is on.", "The oven is on.", None),
        ("  ", "", None),
    ],
)
def test_only_news_is_said(text: str, said: str, kept: str | None) -> None:
    assert news(text, said) == kept


@pytest.mark.req("R235")
def test_a_beat_waits_for_everybody_else_and_joins_nobodys_turn() -> None:
    chat, beats = ("address", "t", "b", "4", ""), ("address", "t", "b", "4", "")
    waiting = [Waiting("beat", 2, beats, addressed=True, starts=True, yields=True), Waiting("m", 4, chat, True, True)]
    first = candidates(waiting)
    assert first is not None
    assert first.ids == ("m",)
    assert candidates(waiting[:1], beats) is None
    alone = candidates(waiting[:1])
    assert alone is not None
    assert alone.ids == ("beat",)


@pytest.mark.req("R236", "R240")
async def test_a_beat_asks_once_and_then_not_again_until_something_changes(host: HostSide, start: Start) -> None:
    words(host, "Is the oven on?", "write The oven is on.")
    runner = await start(**BEATING)
    (said,) = (await after(runner, beat(host))).messages
    assert (said.kind, json.loads(said.content)["text"]) == (Kind.CHAT, "write The oven is on.")
    assert "Is the oven on?" in prompts(host)[0]
    for _ in range(3):
        await after(runner, beat(host))
    assert len(prompts(host)) == 1
    (host.workspace.home / "list.md").write_text("new")
    await after(runner, beat(host))
    assert len(prompts(host)) == 2
    words(host, "Is the oven on? And the light?", "write The oven is on.")
    snapshot = await after(runner, beat(host))
    assert len(prompts(host)) == 3
    assert len(snapshot.messages) == 1


@pytest.mark.req("R236")
async def test_an_answer_that_is_no_news_is_not_said_and_not_remembered(host: HostSide, start: Start) -> None:
    words(host, "Is the oven on?", "HEARTBEAT_OK.")
    runner = await start(**BEATING)
    snapshot = await after(runner, beat(host))
    assert snapshot.messages == []
    words(host, None, "hello")
    await after(runner, host.chat("hi"))
    (_, history) = [json.loads(line)["history"] for line in (host.workspace.state / SEEN).read_text().splitlines()]
    assert history == []


@pytest.mark.req("R234", "R240")
@pytest.mark.parametrize("text", [None, "", "# Heartbeat\n", TEMPLATE.read_text()])
async def test_without_words_no_model_is_asked(host: HostSide, start: Start, text: str | None) -> None:
    words(host, text)
    snapshot = await after(await start(**BEATING), beat(host))
    assert (snapshot.messages, prompts(host)) == ([], [])


@pytest.mark.req("R234")
async def test_a_check_script_decides_without_a_model_call(host: HostSide, start: Start) -> None:
    words(host, "Is the oven on?")
    runner = await start(**BEATING)
    await after(runner, beat(host, script="""echo '{"wakeAgent": false}'"""))
    assert prompts(host) == []
    for _ in range(2):
        await after(runner, beat(host, script="""echo '{"wakeAgent": true, "data": "250 degrees"}'"""))
    assert ["250 degrees" in prompt for prompt in prompts(host)] == [True, True]


@pytest.mark.req("R236")
async def test_a_check_script_that_fails_in_the_same_way_asks_once(host: HostSide, start: Start) -> None:
    words(host, "Is the oven on?")
    runner = await start(**BEATING)
    for _ in range(3):
        await after(runner, beat(host, script="exit 3"))
    (prompt,) = prompts(host)
    assert "exit code 3" in prompt


@pytest.mark.req("R240")
async def test_a_day_has_no_more_beats_that_ask_than_were_granted(host: HostSide, start: Start) -> None:
    runner = await start(**BEATING)
    for number in range(4):
        words(host, f"Look at number {number}.", f"seen {number}")
        await after(runner, beat(host, per_day=2))
    assert len(prompts(host)) == 2


@pytest.mark.req("R236")
async def test_a_beat_that_failed_is_given_back_and_said_by_nobody(host: HostSide, start: Start) -> None:
    words(host, "Look.", "fail")
    message = beat(host)
    runner = await start(**BEATING)
    snapshot = await runner.until(lambda s: (s.claim(message) or {}).get("state") == "released")
    assert snapshot.messages == []


@pytest.mark.req("R235")
async def test_a_person_who_writes_meanwhile_is_answered_before_the_beat(host: HostSide, start: Start) -> None:
    words(host, "Is the oven on?")
    first, second = beat(host), host.chat("hi")
    runner = await start(**BEATING)
    await runner.answered(first, second)
    assert ["[HEARTBEAT]" in prompt for prompt in prompts(host)] == [False, True]


async def test_a_beat_without_the_hosts_decisions_is_set_aside(host: HostSide, start: Start) -> None:
    message = host.put({"prompt": "x"}, kind=Kind.TASK, series_id="heartbeat-s-1")
    runner = await start(**BEATING)
    snapshot = await runner.until(lambda s: s.claim(message) is not None)
    assert "decisions" in (snapshot.claim(message) or {})["reason"]
