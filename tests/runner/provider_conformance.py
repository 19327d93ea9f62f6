"""What every provider has to do, as tests: subclass it and give `provider`. What is answered is the provider's own."""

import asyncio
from datetime import UTC
from pathlib import Path

import pytest

from agent_runner.formatting import Context, format_rows
from agent_runner.providers.base import Event, Failure, Provider, Query, Result, TurnInput
from agent_runner.tools.registry import ToolContext, build_toolbox
from agent_runner.transcript import Transcript, Transcripts
from mailboxes.clock import SystemClock
from mailboxes.layout import Workspace
from mailboxes.rows import MessageIn

CLOCK = SystemClock()


def prompt_of(*texts: str) -> str:
    """Formatted messages, as the loop makes them."""
    rows = [
        MessageIn(f"m-{n}", "chat", "2026-01-01T00:00:00.000Z", f'{{"sender": "Ann", "text": "{text}"}}', seq=2 * n)
        for n, text in enumerate(texts, start=1)
    ]
    return format_rows(rows, Context(CLOCK.now(), UTC, lambda _ids: [], lambda _turn: []))


@pytest.mark.req("R123")
class ProviderConformance:
    """The suite. A subclass defines the fixture `provider`."""

    @pytest.fixture
    def workspace(self, tmp_path: Path) -> Workspace:
        made = Workspace.below(tmp_path)
        made.home.mkdir(parents=True)
        return made

    @pytest.fixture
    def transcript(self, workspace: Workspace) -> Transcript:
        return Transcripts(workspace.state, CLOCK.now).start_new()

    @pytest.fixture
    def turn(self, workspace: Workspace, transcript: Transcript) -> TurnInput:
        transcript.begin("t-1")
        toolbox = build_toolbox(ToolContext(workspace.home, workspace, enabled=True))
        return TurnInput(
            turn_id="t-1",
            prompt=prompt_of("hello"),
            system="You are an agent.",
            transcript=transcript,
            toolbox=toolbox,
            model="a-model",
        )

    async def test_a_turn_ends_with_a_result_that_answers_the_prompt(self, provider: Provider, turn: TurnInput) -> None:
        events = [event async for event in provider.query(turn).events()]
        results = [event for event in events if isinstance(event, Result)]
        assert results[-1].answered == 1
        assert results[-1].text.strip()
        assert not any(isinstance(event, Failure) for event in events)

    async def test_it_keeps_prompt_and_answer_in_the_transcript(
        self, provider: Provider, turn: TurnInput, transcript: Transcript
    ) -> None:
        async for _ in provider.query(turn).events():
            pass
        history = transcript.messages()
        assert history[0]["role"] == "user"
        assert "hello" in str(history[0]["content"])
        assert history[-1]["role"] == "assistant"

    async def test_every_accepted_push_is_answered_before_the_end(self, provider: Provider, turn: TurnInput) -> None:
        query = provider.query(turn)
        events = query.events()
        heard: list[Event] = [await anext(events)]
        accepted = 1 + sum(query.push(prompt_of(text)) for text in ("one", "two"))
        heard += [event async for event in events]
        results = [event for event in heard if isinstance(event, Result)]
        assert results[-1].answered == accepted
        assert [r.answered for r in results] == sorted(r.answered for r in results)

    async def test_a_push_after_the_end_is_refused(self, provider: Provider, turn: TurnInput) -> None:
        query = provider.query(turn)
        async for _ in query.events():
            pass
        assert query.push(prompt_of("too late")) is False

    async def test_abort_ends_the_events(self, provider: Provider, turn: TurnInput) -> None:
        query: Query = provider.query(turn)
        events = query.events()
        await anext(events)
        query.abort()
        async with asyncio.timeout(5):
            rest = [event async for event in events]
        assert not any(isinstance(event, Failure) for event in rest)
        assert query.push(prompt_of("too late")) is False

    async def test_a_second_turn_remembers_the_first(
        self, provider: Provider, turn: TurnInput, transcript: Transcript
    ) -> None:
        for _ in range(2):
            async for _event in provider.query(turn).events():
                pass
        roles = [message["role"] for message in transcript.messages()]
        assert roles == ["user", "assistant", "user", "assistant"]
