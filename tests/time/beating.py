"""A provider for tests, `beating`: answers with what stands in `answer.txt` of the state folder, and notes calls."""

from collections.abc import AsyncIterator

from agent_runner.providers.base import Event, Failure, Result, TurnInput
from agent_runner.providers.registry import provider
from tests.runner.scripted import Script, Scripted


class Beating(Scripted):
    name = "beating"

    def query(self, turn: TurnInput) -> "Beat":
        return Beat(turn)


@provider("beating")
def make(run_folder: object) -> Beating:
    del run_folder
    return Beating()


class Beat(Script):
    async def events(self) -> AsyncIterator[Event]:
        state = self.turn.transcript.path.parent.parent
        text = (state / "answer.txt").read_text()
        self.turn.transcript.append_user(self.turn.prompt)
        if text == "fail":
            yield Failure("The model is away.", retryable=True)
            return
        if text.startswith("write "):
            (self.turn.transcript.path.parents[2] / "agent" / "home" / "notes.md").write_text(text)
        self.turn.transcript.append_assistant([{"type": "text", "text": text}])
        yield Result(text, 1)
        while self.pushed:
            self.pushed.pop()
            yield Result("and to you", 2)
