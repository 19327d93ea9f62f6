"""What the control socket serves besides the terminal: status, views, and the few changes that a person may ask for.

The composition root gives a `HostFacts`; nothing here knows a part of the host.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from host.control import Call, ControlServer
from host.failure import Code, Failure
from host.looking import VIEWS
from host.settings import SettingRefused, parse

RESTART = -1
"""What `run_host` returns when it stopped in order to begin again."""

Row = dict[str, object]


class HostFacts(Protocol):
    """What the methods need of the running host. Failures a person should read are raised as host.failure.Failure."""

    async def status(self) -> Row:
        """Local facts, at once, in the shape of `host.looking.stopped_status` (docs/cli.md)."""
        ...

    async def view(self, name: str, params: Mapping[str, object]) -> object:
        """`host.looking.look`, run where it blocks nothing (a thread, with a query of its own over the database)."""
        ...

    async def add_agent(self, name: str, folder: str, actor: str) -> Row:
        """Makes an agent with its folder from the template, and its chat in the terminal; answers with the row that
        `agents.show` gives."""
        ...

    async def retry_message(self, message_id: str, actor: str) -> Row:
        """Gives a failed message, or an undelivered one, a fresh set of attempts; answers with its row."""
        ...

    async def set_setting(self, name: str, value: str | None, actor: str) -> None:
        """Stores a setting (checked already), or with None takes it back to its default."""
        ...

    async def build_image(self, progress: Callable[[object], Awaitable[None]]) -> Row:
        """Builds today's image; answers with its `tag` and whether it was `built` now."""
        ...

    def request_stop(self, *, restart: bool) -> None:
        """Begins an orderly stop and returns at once; `run_host` ends with 0, or with RESTART."""
        ...


def register(server: ControlServer, facts: HostFacts) -> None:
    """Adds every method to the server."""

    async def status(_call: Call) -> object:
        return await facts.status()

    async def add_agent(call: Call) -> object:
        return await facts.add_agent(call.text("name"), call.text("folder"), call.actor.name)

    async def retry(call: Call) -> object:
        return await facts.retry_message(call.text("id"), call.actor.name)

    async def set_setting(call: Call) -> object:
        name, value = call.text("name"), call.params.get("value")
        if value is not None:
            _check_setting(name, value)
        await facts.set_setting(name, value if isinstance(value, str) else None, call.actor.name)
        return {}

    async def build(call: Call) -> object:
        return await facts.build_image(call.emit)

    async def stop(call: Call) -> object:
        facts.request_stop(restart=call.flag("restart"))
        return {}

    server.register("status", status)
    server.register("agents.add", add_agent)
    server.register("messages.retry", retry)
    server.register("settings.set", set_setting)
    server.register("build", build, stream=True)
    server.register("stop", stop)
    for name in VIEWS:
        server.register(name, _viewer(name, facts))


def _check_setting(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise Failure(Code.USAGE, "A setting's value is text.")
    try:
        parse(name, value)
    except SettingRefused as refused:
        raise Failure(Code.USAGE, str(refused)) from None


def _viewer(name: str, facts: HostFacts) -> Callable[[Call], Awaitable[object]]:
    async def view(call: Call) -> object:
        return await facts.view(name, call.params)

    return view
