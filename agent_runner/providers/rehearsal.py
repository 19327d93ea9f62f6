"""A provider without a model, for trying everything else out: deterministic, costs nothing, and says what it is.

It echoes each message, and does on `/rehearse WORD` what goes wrong or takes long with real models.
"""

import asyncio
import html
import json
import os
import re
import shlex
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from agent_runner.providers.base import Event, Failure, Progress, Result, TurnInput

PREFIX = "(rehearsal, no model)"
"""What each of its answers begins with."""

HELP = f"""{PREFIX} I am no model: I echo what you write. I also know:
/rehearse tool [WORDS]: runs a tool and reports
/rehearse call TOOL {{JSON}}: runs any tool
/rehearse slow N: answers after N seconds
/rehearse long N: answers with N characters
/rehearse send TEXT: sends TEXT at once, then the answer
/rehearse history: how many messages I remember
/rehearse fail: a failure that is tried again
/rehearse refuse: a failure that is not
/rehearse crash: kills my own sandbox's process once"""

_MESSAGE = re.compile(r"<message [^>]*>(.*?)</message>", re.DOTALL)
_ATTACHMENT = re.compile(r"\n<attachment [^>]*/>")
_SECTION = re.compile(r"^\[(SCHEDULED TASK|WEBHOOK|SYSTEM CONTEXT|CONTINUE)", re.MULTILINE)
_CRASHED = "rehearsal-crashed"
_MAX_LONG = 2_000_000


class Rehearsal:
    """Implements agent_runner.providers.base.Provider."""

    name = "rehearsal"

    def query(self, turn: TurnInput) -> "RehearsalQuery":
        """Starts a turn."""
        return RehearsalQuery(turn)

    async def close(self) -> None:
        """It holds nothing."""


def make(run_folder: Path) -> Rehearsal:
    """The factory of the registry; there is no socket that it needs."""
    del run_folder
    return Rehearsal()


class RehearsalQuery:
    """One turn: the prompt, then each push, answered one after the other."""

    def __init__(self, turn: TurnInput) -> None:
        self._turn = turn
        self._inputs = deque([turn.prompt])
        self._over = False
        self._aborted = asyncio.Event()

    def push(self, text: str) -> bool:
        """Queues a message behind those that wait."""
        if self._over:
            return False
        self._inputs.append(text)
        return True

    def abort(self) -> None:
        """Ends the turn."""
        self._over = True
        self._aborted.set()

    async def events(self) -> AsyncIterator[Event]:
        """Progress at the start of each input, then its answers; the last one of an input counts it as answered."""
        answered, raw = 0, self._turn.raw
        while self._inputs and not self._over:
            prompt = self._inputs.popleft()
            self._turn.transcript.append_user(prompt)
            yield Progress("rehearsing")
            answers = await self._command(prompt) if raw else echoes(prompt)
            raw = False
            if self._aborted.is_set():
                return
            if isinstance(answers, Failure):
                self._over = True
                yield answers
                return
            answered += 1
            for position, text in enumerate(answers, start=1):
                self._turn.transcript.append_assistant([{"type": "text", "text": text}])
                yield Result(text, answered if position == len(answers) else answered - 1)
        self._over = True

    async def _command(self, prompt: str) -> list[str] | Failure:
        words = prompt.split(maxsplit=2)
        word = words[1] if len(words) > 1 and words[0].startswith("/rehearse") else ""
        rest = words[2] if len(words) > 2 else ""
        commands: dict[str, Callable[[str], Awaitable[list[str] | Failure]]] = {
            "tool": self._tool,
            "call": self._call,
            "slow": self._slow,
            "long": self._long,
            "send": self._send,
            "history": self._history,
            "fail": self._fail,
            "refuse": self._refuse,
            "crash": self._crash,
        }
        return await commands[word](rest) if word in commands else [HELP]

    async def _tool(self, rest: str) -> list[str]:
        names = [schema["name"] for schema in self._turn.toolbox.schemas()]
        known: dict[str, dict[str, str]] = {"bash": {"command": f"echo {shlex.quote(rest)}"}, "get_current_time": {}}
        name = next((name for name in (["bash"] if rest else list(known)[::-1]) if name in names), None)
        if name is None:
            return [f"{PREFIX} there is no tool here that I can run."]
        tool_id = f"rehearsal-{self._turn.turn_id}"
        call = {"type": "tool_use", "id": tool_id, "name": name, "input": known[name]}
        self._turn.transcript.append_assistant([call])
        result = await self._turn.toolbox.call(name, known[name])
        outcome = {"tool_use_id": tool_id, "content": result, "is_error": result.startswith("Error:")}
        self._turn.transcript.append_tool_results([{"type": "tool_result", **outcome}])
        return [f"{PREFIX} {name} says: {result}"]

    async def _call(self, rest: str) -> list[str]:
        name, _, given = rest.partition(" ")
        try:
            arguments = json.loads(given or "{}")
        except ValueError:
            return [f"{PREFIX} what stands behind the tool's name is no JSON."]
        return [f"{PREFIX} {name} says: {await self._turn.toolbox.call(name, arguments)}"]

    async def _slow(self, rest: str) -> list[str]:
        seconds = float(rest) if re.fullmatch(r"\d{1,6}(\.\d{1,3})?", rest) else 1.0
        try:
            async with asyncio.timeout(seconds):
                await self._aborted.wait()
        except TimeoutError:
            return [f"{PREFIX} that took {seconds:g} seconds."]
        return []

    async def _long(self, rest: str) -> list[str]:
        length = min(int(rest), _MAX_LONG) if re.fullmatch(r"\d{1,9}", rest) else 5000
        line = f"{PREFIX} a long answer. "
        return [(line * (length // len(line) + 1))[:length]]

    async def _send(self, rest: str) -> list[str]:
        if self._turn.send is None:
            return [f"{PREFIX} there is no way to send from here."]
        seq = await self._turn.send(rest or "hello")
        return [f"{PREFIX} I sent message {seq}, and this is the answer."]

    async def _history(self, _rest: str) -> list[str]:
        said = [message for message in self._turn.transcript.messages() if _is_said(message)]
        return [f"{PREFIX} I remember {len(said) - 1} earlier messages."]

    async def _fail(self, _rest: str) -> Failure:
        return Failure("The rehearsal failed, as it was asked to.", retryable=True)

    async def _refuse(self, _rest: str) -> Failure:
        return Failure("The rehearsal refuses, as it was asked to.", retryable=False)

    async def _crash(self, _rest: str) -> list[str]:
        marker = self._turn.transcript.path.parent.parent / _CRASHED
        if marker.exists():
            marker.unlink()
            return [f"{PREFIX} I had crashed, and am back."]
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes on")


def _is_said(message: dict[str, object]) -> bool:
    """Whether a message of the history is a person's, and not the results of tools."""
    content = message["content"]
    blocks = content if isinstance(content, list) else [{"type": "text"}]
    return message["role"] == "user" and any(block["type"] != "tool_result" for block in blocks)


def echoes(prompt: str) -> list[str]:
    """One answer for each message of a formatted prompt, one for each other section."""
    if prompt.startswith("[CONTINUE]"):
        return [f"{PREFIX} I was interrupted, and go on."]
    said = [f"{PREFIX} {html.unescape(_ATTACHMENT.sub('', text)).strip()}" for text in _MESSAGE.findall(prompt)]
    sections = [f"{PREFIX} I got a {name.lower()}." for name in _SECTION.findall(_MESSAGE.sub("", prompt))]
    return said + sections or [f"{PREFIX} {prompt}"]
