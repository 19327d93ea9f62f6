import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_runner.providers.base import Event, Failure, Result, TurnInput
from agent_runner.providers.claude import ClaudeProvider, make
from agent_runner.tools.registry import Toolbox, ToolContext, build_toolbox
from agent_runner.transcript import Transcript, Transcripts
from mailboxes.layout import BROKER_SOCKET, Workspace
from tests.fakes.doors import broker_to
from tests.fakes.messages_api import MessagesApi

KEY = "sk-canary-5f2b9c"


class InstantClock:
    """A clock whose sleeps are over at once, and remembered."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Desk:
    """A session's claude provider, its tools and its transcript."""

    def __init__(self, provider: ClaudeProvider, toolbox: Toolbox, state: Path, clock: InstantClock) -> None:
        self.provider = provider
        self.toolbox = toolbox
        self.clock = clock
        self._transcripts = Transcripts(state, clock.now)
        self.transcript: Transcript = self._transcripts.open_latest()

    def reopen(self) -> None:
        """What a restart of the runner does to the transcript."""
        self.transcript = self._transcripts.open_latest()

    def turn(self, prompt: str, model: str = "", system: str = "You are an agent.") -> TurnInput:
        return TurnInput("turn-1", prompt, system, self.transcript, self.toolbox, model, Path("/"))

    async def run(self, prompt: str, model: str = "", system: str = "You are an agent.") -> list[Event]:
        """A whole turn's events, with the loop's part of the transcript: a failed turn is taken back."""
        self.transcript.begin("turn-1")
        events = [event async for event in self.provider.query(self.turn(prompt, model, system)).events()]
        if isinstance(events[-1], Failure):
            self.transcript.roll_back()
        else:
            self.transcript.end_turn("turn-1")
        return events

    async def say(self, prompt: str, model: str = "") -> str:
        """The text of a turn with one result."""
        result = (await self.run(prompt, model))[-1]
        assert isinstance(result, Result), result
        return result.text

    async def fail(self, prompt: str, model: str = "") -> Failure:
        failure = (await self.run(prompt, model))[-1]
        assert isinstance(failure, Failure), failure
        return failure


@pytest.fixture
def run_folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="ik-", dir="/tmp")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    path.write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    return path


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi(KEY) as api:
        yield api


@pytest.fixture
async def desk(api: MessagesApi, env_file: Path, run_folder: Path, tmp_path: Path) -> AsyncIterator[Desk]:
    workspace = Workspace.below(tmp_path / "workspace")
    for folder in (workspace.home, workspace.state):
        folder.mkdir(parents=True)
    broker, gateway = broker_to(api, env_file)
    await broker.open("s1", run_folder / BROKER_SOCKET)
    clock = InstantClock()
    provider = make(run_folder, clock)
    toolbox = build_toolbox(ToolContext(workspace.home, workspace))
    yield Desk(provider, toolbox, workspace.state, clock)
    await toolbox.close()
    await provider.close()
    await broker.close()
    await gateway.close()
