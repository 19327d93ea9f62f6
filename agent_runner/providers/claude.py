"""The claude provider: an own tool loop on `stop_reason` over the Messages API, through the host's broker.

Invariants: a tool call is in the transcript before it runs and its result right after, so that a cut turn tells what
had run (the transcript repairs a call that was interrupted: fault 96); a push that was accepted is in this turn's next
model call. No key is in here: the broker adds it.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from agent_runner.providers.base import Event, Failure, Progress, Query, Result, TurnInput, Usage
from agent_runner.providers.claude_failures import TRUNCATED, Trouble, explain_status, unreachable
from agent_runner.providers.media import Media, Shown, refusal, suspects
from agent_runner.providers.models import DEFAULT_MODEL, MAX_TOKENS
from mailboxes.clock import Clock, SystemClock
from mailboxes.layout import BROKER_SOCKET

PLACEHOLDER_KEY = "none-in-here"
QUIET_RETRIES = 2
RETRY_SECONDS = (0.25, 1.5)
"""The overload policy: a jittered wait between these before a model call is tried again; tools are never run again."""

READ_SECONDS = 300.0

_EPHEMERAL = {"cache_control": {"type": "ephemeral"}}
_T = TypeVar("_T")
Block = dict[str, Any]


def tool_round_cap(profiles: int = 1) -> int:
    """How many rounds of tool calls one answer may take (ledger R248, R199)."""
    return min(max(24 + 8 * profiles, 32), 160)


def make(run_folder: Path, clock: Clock | None = None) -> "ClaudeProvider":
    """The provider's factory. Costs nothing until the first turn: `anthropic` is imported then, in a thread."""
    return ClaudeProvider(run_folder / BROKER_SOCKET, clock or SystemClock())


class _Aborted(Exception):
    """The turn was ended from outside."""


class _Failed(Exception):
    """A model call failed for good."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class ClaudeProvider:
    """Implements providers.base.Provider."""

    name = "claude"

    def __init__(self, socket: Path, clock: Clock) -> None:
        self._socket = socket
        self.clock = clock
        self.media = Media()
        self._client: Any = None
        self._making = asyncio.Lock()

    def query(self, turn: TurnInput) -> Query:
        """Starts a turn; nothing is sent before its events are read."""
        return ClaudeQuery(self, turn)

    async def client(self) -> Any:
        """The one AsyncAnthropic of this provider. The import takes about a second, so a thread does it."""
        async with self._making:
            if self._client is None:
                anthropic, httpx2 = await asyncio.to_thread(_load)
                # No TLS on a Unix socket, so no certificates to load.
                transport = httpx2.AsyncHTTPTransport(uds=str(self._socket), verify=False)
                timeout = httpx2.Timeout(10.0, read=READ_SECONDS, write=60.0)
                http = httpx2.AsyncClient(transport=transport, trust_env=False, timeout=timeout)
                # Retries are ours (`ClaudeQuery.answer`): the SDK's do not cover a stream that breaks off.
                self._client = anthropic.AsyncAnthropic(
                    api_key=PLACEHOLDER_KEY, base_url="http://broker", http_client=http, max_retries=0, timeout=timeout
                )
            return self._client

    async def close(self) -> None:
        """Lets go of connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None


def _load() -> tuple[ModuleType, ModuleType]:
    return import_module("anthropic"), import_module("httpx2")


class ClaudeQuery:
    """Implements providers.base.Query. Everything happens inside of `events`; `push` and `abort` only leave word."""

    def __init__(self, provider: ClaudeProvider, turn: TurnInput) -> None:
        self._provider = provider
        self._turn = turn
        self._model = turn.model or DEFAULT_MODEL
        self._pushed: list[str] = []
        self._answered = 0
        self._usage = Usage()
        self._spoke = False
        self._rounds = 0
        self._ended = False
        self._current: asyncio.Future[Any] | None = None
        self._turn_begins_at = 0
        self._old_thinking = True
        self._shown: list[Shown] = []

    def push(self, text: str) -> bool:
        """Adds a message to the turn; the next model call includes it. False when the turn has ended."""
        if self._ended:
            return False
        self._pushed.append(text)
        return True

    def abort(self) -> None:
        """Ends the turn at once, and the model call or tool that runs."""
        self._ended = True
        if self._current is not None:
            self._current.cancel()

    async def events(self) -> AsyncIterator[Event]:
        """The turn's events. Whatever goes wrong with the model is an event, not an exception."""
        self._turn_begins_at = len(self._turn.transcript.messages())
        self._turn.transcript.append_user(_text_blocks([self._turn.prompt]))
        self._answered = 1
        try:
            while not self._ended:
                async with aclosing(self._step()) as step:
                    async for event in step:
                        yield event
        except _Aborted:
            return
        except _Failed as failed:
            self._ended = True
            yield failed.failure
        finally:
            self._ended = True

    async def _step(self) -> AsyncGenerator[Event, None]:
        """One model call and what follows from it."""
        transcript = self._turn.transcript
        yield Progress("model")
        if pushed := self._pushed:
            self._pushed = []
            self._answered += len(pushed)
            transcript.append_user(_text_blocks(pushed))
        message = await self._interruptible(self._answer())
        self._usage = _sum(self._usage, message.usage)
        blocks = [block for block in map(_kept, message.content) if block]
        calls = [block for block in blocks if block["type"] == "tool_use"]
        if message.stop_reason == "tool_use" and calls and self._rounds < tool_round_cap():
            self._rounds += 1
            transcript.append_assistant(blocks)
            for call in calls:
                yield Progress(call["name"])
                transcript.append_tool_results([await self._interruptible(self._run_tool(call))])
            return
        capped = bool(calls) and message.stop_reason == "tool_use"
        said = "\n\n".join(block["text"].strip() for block in blocks if block["type"] == "text")
        note = _note(message.stop_reason, capped=capped, silent=not said and not self._spoke)
        transcript.append_assistant(_closing_blocks(blocks, note))
        text = "\n\n".join(part for part in (said, note) if part)
        # No await between this look and the flag: a push either is seen here or is refused from now on.
        self._ended = not self._pushed
        yield Result(text, self._answered, self._usage)
        self._usage, self._spoke, self._rounds = Usage(), False, 0

    async def _run_tool(self, call: Block) -> Block:
        self._spoke = self._spoke or self._turn.toolbox.speaks(call["name"])
        text = await self._turn.toolbox.call(call["name"], call["input"])
        result: Block = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        return {**result, "is_error": True} if text.startswith("Error:") else result

    async def _interruptible(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Awaits what `abort` may cancel."""
        if self._ended:
            work.close()
            raise _Aborted
        self._current = task = asyncio.ensure_future(work)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise _Aborted from None
        finally:
            self._current = None

    async def _answer(self) -> Any:
        """One whole message of the model, with the quiet retries. Raises _Failed."""
        tries = 0
        while True:
            message, trouble = await self._call()
            if trouble is None:
                return message
            if trouble.thinking and self._old_thinking:
                self._old_thinking = False
                continue
            if trouble.refused and self._withhold(trouble):
                continue
            if not trouble.again or tries == QUIET_RETRIES:
                raise _Failed(trouble.failure)
            tries += 1
            await self._provider.clock.sleep(random.uniform(*RETRY_SECONDS))  # noqa: S311  jitter is no secret

    def _withhold(self, trouble: Trouble) -> bool:
        """Takes the files that a request may have been refused for out of this conversation, each with a note in their
        place. False where none is left. (Was it not for them, then the turn fails, and its notes go with it.)"""
        paths = suspects(trouble.refused, self._shown, self._turn_begins_at, too_long=trouble.too_long)
        if paths:
            self._turn.transcript.append_user(_text_blocks([refusal(path, trouble.refused) for path in paths]))
        return bool(paths)

    async def _call(self) -> tuple[Any, Trouble | None]:
        client = await self._provider.client()
        anthropic, httpx2 = _load()
        final = None
        request = await self._request()
        try:
            async with client.messages.stream(**request) as stream:
                async for event in stream:
                    if event.type == "message_stop":
                        final = event.message
        except anthropic.APIStatusError as error:
            return None, explain_status(error, self._model)
        except anthropic.APIConnectionError:
            return None, unreachable()
        # What the SDK lets through: a connection that drops within the stream, and events that make no message.
        except (httpx2.HTTPError, anthropic.AnthropicError, ValueError, RuntimeError, IndexError):
            return None, Trouble(TRUNCATED, again=True)
        if final is None or final.stop_reason is None:
            return None, Trouble(TRUNCATED, again=True)
        return final, None

    async def _request(self) -> dict[str, Any]:
        """The request. Its prefix has the same bytes at every call, but for the marks of the cache (lesson 29)."""
        messages, self._shown = await self._provider.media.expand(self._turn.transcript.messages())
        if not self._old_thinking:
            begin = self._turn_begins_at
            messages = [*map(_without_thinking, messages[:begin]), *messages[begin:]]
        messages[-1] = {**messages[-1], "content": _marked(_as_blocks(messages[-1]["content"]))}
        request: dict[str, Any] = {"model": self._model, "max_tokens": MAX_TOKENS, "messages": messages}
        if self._turn.system.strip():
            request["system"] = _marked(_text_blocks([self._turn.system]))
        if tools := self._turn.toolbox.schemas():
            request["tools"] = _marked(tools)
        return request


def _text_blocks(texts: list[str]) -> list[Block]:
    """Text blocks; the API refuses blank ones."""
    return [{"type": "text", "text": text if text.strip() else "(empty message)"} for text in texts]


def _as_blocks(content: str | list[Block]) -> list[Block]:
    return _text_blocks([content]) if isinstance(content, str) else content


def _marked(blocks: list[Block]) -> list[Block]:
    """The blocks with a cache mark on the last one."""
    return [*blocks[:-1], {**blocks[-1], **_EPHEMERAL}]


def _without_thinking(message: dict[str, Any]) -> dict[str, Any]:
    kept = [b for b in _as_blocks(message["content"]) if b["type"] not in ("thinking", "redacted_thinking")]
    return {**message, "content": kept or _text_blocks([""])}


def _kept(block: Any) -> Block | None:
    """A block of the answer as it goes into the transcript: the fields that go back to the API and no others."""
    if block.type == "text":
        return {"type": "text", "text": block.text} if block.text.strip() else None
    if block.type == "tool_use":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
    # A thinking block that was cut off has no signature, and the API would refuse it.
    if block.type == "thinking" and block.signature:
        return {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
    if block.type == "redacted_thinking":
        return {"type": "redacted_thinking", "data": block.data}
    return None


def _closing_blocks(blocks: list[Block], note: str) -> list[Block]:
    """The last message of an answer for the transcript: no tool call that nobody runs, and text at its end."""
    kept = [block for block in blocks if block["type"] != "tool_use"]
    if note or not kept or kept[-1]["type"] != "text":
        kept += _text_blocks([note or "(no text)"])
    return kept


def _note(stop_reason: str, *, capped: bool, silent: bool) -> str:
    """A sentence where there would be a silent stop or no answer at all (fault 22); else nothing."""
    if capped:
        return f"I stopped after {tool_round_cap()} rounds of tool calls without being done; say “go on” to continue."
    if stop_reason == "refusal":
        return "The model declined to answer this; please ask in another way."
    if not silent:
        return ""
    if stop_reason == "max_tokens":
        return f"The answer reached the limit of {MAX_TOKENS} tokens before any text came; please ask in smaller steps."
    if stop_reason == "model_context_window_exceeded":
        return "The conversation has become too long for the model; send /clear to start a new one."
    return "The model ended without a word of answer; please ask again."


def _sum(total: Usage, more: Any) -> Usage:
    return Usage(
        total.input_tokens + (more.input_tokens or 0),
        total.output_tokens + (more.output_tokens or 0),
        total.cache_read_tokens + (more.cache_read_input_tokens or 0),
        total.cache_write_tokens + (more.cache_creation_input_tokens or 0),
    )
