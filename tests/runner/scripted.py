"""A provider for tests, `scripted`: does what the first word of the first message says, and notes what it was given."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

from agent_runner.providers.base import Event, Failure, Progress, Result, TurnInput
from agent_runner.providers.registry import provider

SEEN = "prompts.jsonl"
"""In the state folder: one JSON line {prompt, system, raw, history, tools} a query."""


class Scripted:
    name = "scripted"

    def query(self, turn: TurnInput) -> "Script":
        return Script(turn)

    async def close(self) -> None:
        return None


@provider("scripted")
def make(run_folder: Path) -> Scripted:
    del run_folder
    return Scripted()


class Script:
    def __init__(self, turn: TurnInput) -> None:
        self.turn = turn
        self.pushed: list[str] = []
        seen = {
            "prompt": turn.prompt,
            "system": turn.system,
            "raw": turn.raw,
            "history": turn.transcript.messages(),
            "tools": turn.toolbox.schemas(),
        }
        with (turn.transcript.path.parent.parent / SEEN).open("a") as file:
            file.write(json.dumps(seen) + "\n")

    def push(self, text: str) -> bool:
        self.pushed.append(text)
        return True

    def abort(self) -> None:
        return None

    async def events(self) -> AsyncIterator[Event]:
        found = re.search(r'">(\w+)', self.turn.prompt)
        word = found[1] if found else ""
        transcript = self.turn.transcript
        transcript.append_user(self.turn.prompt)
        if word == "deltas":
            for _ in range(100):
                yield Progress("text")
            yield Result("one answer of a hundred parts", 1)
        elif word == "raise":
            raise RuntimeError("SECRET-TEXT of a provider")
        elif word == "silent":
            yield Progress("nothing comes of it")
        elif word == "toolfail":
            transcript.append_assistant(
                [{"type": "tool_use", "id": "tu-1", "name": "bash", "input": {"command": "ls"}}]
            )
            transcript.append_tool_results([{"type": "tool_result", "tool_use_id": "tu-1", "content": "SOME-FILES"}])
            yield Progress("second call")
            yield Failure("The model's service answered 500.", retryable=True)
        elif word == "twice":
            yield Result("first", 0)
            yield Progress("more")
            yield Result("second", 1)
        elif word == "blank":
            yield Result(" \n", 1)
        elif word == "flood":
            for number in range(8):
                assert self.turn.send is not None
                await self.turn.send(f"{number} " + "x" * 60_000)
            yield Result("that was all", 1)
        else:
            text = f"answer to {word or 'this'}"
            transcript.append_assistant([{"type": "text", "text": text}])
            yield Result(text, 1)
