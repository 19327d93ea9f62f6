"""The three ways of talking: once, line by line from a pipe, and at a prompt."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Self, TypeVar

from host.channels.terminal import chat_of
from host.cli.conversation import PATIENCE_SECONDS, Conversation, Shown
from host.cli.hosted import hosted
from host.cli.invocation import Invocation
from host.cli.output import Output
from host.control_client import ControlClient, HostAbsent
from host.failure import Code, Failure
from host.home import Home
from host.lock import holder

Result = TypeVar("Result")

_LOOK_AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Talk:
    """What the command line asked for; `timeout` in seconds for one message; `files` by absolute paths."""

    text: str | None
    agent: str | None
    once: bool
    timeout: float
    files: tuple[str, ...] = ()


def talk(invocation: Invocation, wish: Talk) -> int:
    """Talks until the end of it; the exit code is 1 when a message failed. Raises Failure."""
    home, output = invocation.home, invocation.output
    with contextlib.ExitStack() as stack:
        if not _runs(home, output):
            stack.enter_context(hosted(home, output.progress))
        chat = chat_of(_folder_of(home, wish.agent))
        if wish.once:
            return asyncio.run(_once(home, chat, wish, output))
        if sys.stdin.isatty():
            return asyncio.run(_at_prompt(home, chat, wish))
        return asyncio.run(_from_pipe(home, chat, wish, output))


def _runs(home: Home, output: Output) -> bool:
    """Whether a host serves this home; one that holds it and does not serve yet (it starts) is waited for."""
    if _serves(home):
        return True
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    with output.progress("Waiting for the host that is starting"):
        while holder(home.lock_file) is not None and time.monotonic() < give_up_at:
            if _serves(home):
                return True
            time.sleep(_LOOK_AGAIN_SECONDS)
    return False


def _serves(home: Home) -> bool:
    try:
        ControlClient(home.control_socket).close()
    except HostAbsent:
        return False
    return True


def _folder_of(home: Home, agent: str | None) -> str | None:
    if agent is None:
        return None
    from host.cli.finding import find, rows_of

    with ControlClient(home.control_socket) as client:
        return str(find(rows_of(client.call("agents.list")), agent, "agent")["folder"])


async def _beside(conversation: Conversation, work: Coroutine[object, object, Result]) -> Result:
    """Runs `work` while the conversation is attached; the conversation's failure ends it."""
    attached = asyncio.ensure_future(conversation.run())
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({attached, working}, return_when=asyncio.FIRST_COMPLETED)
        if attached.done() and not working.done():
            attached.result()
        return await working
    finally:
        for task in (attached, working):
            task.cancel()
        await asyncio.gather(attached, working, return_exceptions=True)


async def _say(conversation: Conversation, text: str, timeout_seconds: float, files: tuple[str, ...] = ()) -> bool:
    """One message and all that it brings about; True when it failed. Raises Failure when its turn takes too long."""
    said = await conversation.send(text, files)
    await _until_ended([said], timeout_seconds)
    return said.result()


async def _until_ended(
    said: list[asyncio.Future[bool]], timeout_seconds: float, asked: asyncio.Event | None = None
) -> None:
    """Returns when all that was said is settled, or a question waits for the next line. Raises Failure."""
    waits: list[asyncio.Future[object]] = [asyncio.ensure_future(asyncio.wait(said))] if said else []
    waits += [asyncio.ensure_future(asked.wait())] if asked is not None else []
    if not waits:
        return
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        raise Failure(
            Code.FAILED,
            f"The turn has not ended within {timeout_seconds:g} s; it goes on without you.",
            "Give more time with --timeout, or look with `host status`.",
        ) from None
    finally:
        for wait in waits:
            wait.cancel()


async def _once(home: Home, chat: str, wish: Talk, output: Output) -> int:
    given = "" if wish.files and sys.stdin.isatty() else None
    text = wish.text if wish.text is not None else given
    if text is None:
        text = await asyncio.to_thread(_all_of_input)
    came: list[Shown] = []
    show = came.append if output.as_json else _printer(output)
    with _SignOfLife(output, show) as sign:
        conversation = Conversation(home.control_socket, chat, sign.show, lambda _active: None)
        failed = await _beside(conversation, _say(conversation, text, wish.timeout, wish.files))
    if output.as_json:
        messages = [{"text": c.text, "notice": c.notice, "files": list(c.files)} for c in came]
        output.document({"failed": failed, "messages": messages})
    return 1 if failed else 0


class _SignOfLife:
    """Tells a person at a terminal that an answer is waited for, and makes room for each chunk that comes."""

    def __init__(self, output: Output, show: Callable[[Shown], None]) -> None:
        self._output = output
        self._show = show
        self._shown = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def show(self, chunk: Shown) -> None:
        """Shows one chunk."""
        self._shown.close()
        self._show(chunk)
        self._begin()

    def _begin(self) -> None:
        if sys.stderr.isatty():
            self._shown.enter_context(self._output.progress("Waiting for the answer"))


def _all_of_input() -> str:
    if sys.stdin.isatty():
        raise Failure(Code.USAGE, "There is nothing to send.", "Write `host chat --once 'your message'`.")
    return sys.stdin.buffer.read().decode(errors="replace")


async def _from_pipe(home: Home, chat: str, wish: Talk, output: Output) -> int:
    sign = _SignOfLife(output, _printer(output))
    conversation = Conversation(home.control_socket, chat, sign.show)

    async def lines() -> int:
        said: list[asyncio.Future[bool]] = []
        async for line in _lines_of_input():
            with sign:
                conversation.asked.clear()
                said.append(await conversation.send(line))
                await _until_ended(said, wish.timeout, conversation.asked)
        await _until_ended(said, wish.timeout)
        return 1 if any(one.result() for one in said) else 0

    return await _beside(conversation, lines())


def _printer(output: Output) -> Callable[[Shown], None]:
    def show(shown: Shown) -> None:
        output.line(shown.lines(), newlines=True)

    return show


async def _lines_of_input() -> AsyncIterator[str]:
    """The lines of standard input that are not blank, read by a thread one line ahead: a read of a pipe cannot be
    cancelled, and a daemon thread that waits in one holds up nobody."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)

    def put(line: str | None) -> None:
        asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    def read() -> None:
        rest = b""
        while chunk := os.read(0, 65536):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                put(line.decode(errors="replace"))
        if rest:
            put(rest.decode(errors="replace"))
        put(None)

    threading.Thread(target=read, name="standard input", daemon=True).start()
    while (line := await lines.get()) is not None:
        if line.strip():
            yield line.rstrip("\r")


async def _at_prompt(home: Home, chat: str, wish: Talk) -> int:
    from host.cli.prompt import Prompt

    prompt = Prompt(wish.agent or "agent")
    conversation = Conversation(
        home.control_socket, chat, prompt.show, prompt.busy, progress=prompt.progress, remark=prompt.remark
    )
    return await _beside(conversation, prompt.run(conversation, wish.text, wish.files))
