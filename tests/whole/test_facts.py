"""What a running host tells and does over its control socket, asked as a command asks."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from host.control import AsyncControlClient
from host.failure import EXIT_CODES, Code, Failure
from host.home import Home
from host.looking import stopped_status
from tests.cli.test_commands import run
from tests.whole.harness import Forge, HostProcess, Terminal, rows, running

SAYS = "(rehearsal, no model) "
PROCESS = {"INNKEEPER_RUNTIME": "process"}


class Asker:
    """Asks one host; what comes back is taken for what it should be."""

    def __init__(self, client: AsyncControlClient) -> None:
        self._client = client

    async def row(self, method: str, **params: object) -> dict[str, Any]:
        return cast("dict[str, Any]", await self._client.call(method, **params))

    async def list(self, method: str, **params: object) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", await self._client.call(method, **params))

    async def failure(self, method: str, **params: object) -> Failure:
        with pytest.raises(Failure) as raised:
            await self._client.call(method, **params)
        return raised.value

    async def setting(self, name: str) -> tuple[str, str]:
        """Its value and where that is from."""
        [found] = [row for row in await self.list("settings.list") if row["name"] == name]
        return found["value"], found["source"]


@contextlib.asynccontextmanager
async def asking(home: Home, forge: Forge, **environment: str) -> AsyncIterator[tuple[HostProcess, Terminal, Asker]]:
    """A host, a terminal at its first chat, and a control connection."""
    async with running(home, PROCESS | environment, forge) as (host, terminal):
        await terminal.ask("hello")
        async with await AsyncControlClient.connect(home.control_socket) as client:
            yield host, terminal, Asker(client)


def change(home: Home, statement: str) -> None:
    """Writes into the only mailbox of a home whose host has ended."""
    [path] = home.sessions.glob("*/*/inbound/inbound.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


# -- status


@pytest.mark.req("R274")
async def test_status_of_a_live_session_has_the_shape_of_a_stopped_one(ready_home: Home, forge: Forge) -> None:
    stopped = stopped_status(ready_home)
    async with asking(ready_home, forge) as (host, _, ask):
        told = await ask.row("status")
        assert told.keys() == stopped.keys()
        assert told["host"].keys() == cast("dict[str, object]", stopped["host"]).keys()
        assert (told["host"]["state"], told["host"]["pid"]) == ("running", host.pid)
        assert told["model"] == {"provider": "rehearsal", "model": None}
        sandbox = told["sandbox"]
        assert (sandbox["kind"], sandbox["live"], sandbox["limit"], sandbox["waiting"]) == ("process", 1, 8, 0)
        assert sandbox.keys() == {"kind", "live", "busy", "limit", "waiting", "detail"}
        assert told["channels"] == [{"name": "terminal", "account": "local", "healthy": True, "detail": ""}]
        assert told["agents"] == 1
        assert told["sessions"] in ({"running": 1}, {"idle": 1})  # as soon as its runner has said that it is idle
        assert told["messages"] == {"arriving": 0, "undelivered": 0}
        assert told["problems"] == []


@pytest.mark.req("R274")
async def test_status_counts_a_session_that_works_as_busy(ready_home: Home, forge: Forge) -> None:
    async with asking(ready_home, forge) as (_, terminal, ask):
        key = await terminal.send("/rehearse slow 3")
        await until_busy(ask, 1)
        await terminal.until(lambda: key in terminal.settled)
        await until_busy(ask, 0)


async def until_busy(ask: Asker, number: int) -> None:
    async with asyncio.timeout(20):
        while (await ask.row("status"))["sandbox"]["busy"] != number:
            await asyncio.sleep(0.02)  # the host learns from a snapshot what a runner does


# -- messages


@pytest.mark.req("R242")
async def test_a_failed_message_is_tried_again_and_fails_or_not_by_itself(ready_home: Home, forge: Forge) -> None:
    async with asking(ready_home, forge) as (_, terminal, ask):
        key = await terminal.send("/rehearse refuse")
        await terminal.until(lambda: key in terminal.settled)
        assert terminal.settled[key]
        [failed] = [row for row in await ask.list("messages.list") if row["state"] == "failed"]
        again = await ask.row("messages.retry", id=failed["id"])
        assert (again["id"], again["direction"]) == (failed["id"], "in")
        async with asyncio.timeout(20):
            while (now := await ask.row("messages.show", id=failed["id"]))["attempts"] == failed["attempts"]:
                await asyncio.sleep(0.02)  # no event tells of an attempt
        assert now["attempts"] == failed["attempts"] + 1


async def test_a_failed_message_is_answered_once_what_kept_it_is_gone(ready_home: Home, forge: Forge) -> None:
    async with asking(ready_home, forge):
        pass
    change(ready_home, "UPDATE messages_in SET status='failed', tries=5")
    async with running(ready_home, PROCESS, forge) as (_, terminal):
        await terminal.ask("and now")
        async with await AsyncControlClient.connect(ready_home.control_socket) as client:
            ask = Asker(client)
            [failed] = [row for row in await ask.list("messages.list") if row["state"] == "failed"]
            await ask.row("messages.retry", id=failed["id"])
            await terminal.until(lambda: f"{SAYS}hello" in terminal.texts)
            refused = await ask.failure("messages.retry", id=failed["id"])
    assert refused.code == Code.REFUSED
    assert "has not failed" in refused.message


@pytest.mark.req("R242")
async def test_a_dead_letter_is_delivered_when_it_is_tried_again(ready_home: Home, forge: Forge) -> None:
    async with asking(ready_home, forge):
        pass
    change(
        ready_home,
        "UPDATE deliveries SET state='failed', attempts=5, chunks_done=0, platform_ids='[]', last_error='500'",
    )
    async with running(ready_home, PROCESS, forge) as (_, terminal):
        await terminal.ask("and now")
        async with await AsyncControlClient.connect(ready_home.control_socket) as client:
            ask = Asker(client)
            assert (await ask.row("status"))["messages"]["undelivered"] == 1
            [dead] = await ask.list("messages.list", undelivered=True)
            assert (dead["state"], dead["last_error"], dead["text"]) == ("failed", "500", f"{SAYS}hello")
            queued = await ask.row("messages.retry", id=dead["id"])
            assert queued["attempts"] == 0
            await terminal.until(lambda: f"{SAYS}hello" in terminal.texts)
    [row] = rows(ready_home, f"SELECT state FROM deliveries WHERE id = '{dead['id']}'")
    assert row["state"] == "sent"


async def test_what_is_not_there_is_not_found_and_the_next_step_said(ready_home: Home, forge: Forge) -> None:
    async with asking(ready_home, forge) as (_, _, ask):
        missing = await ask.failure("messages.retry", id="nope")
        assert (missing.code, missing.next) == (Code.NOT_FOUND, "See: host messages list")
        assert "nope" in missing.message
        for view in ("agents.show", "sessions.show", "messages.show"):
            assert await ask.row(view, id="nope") is None
        for words in (["agents", "show"], ["sessions", "show"], ["messages", "show"], ["messages", "retry", "-y"]):
            code, out, err = await run(*words, "nope")
            assert (code, out) == (EXIT_CODES[Code.NOT_FOUND], "")
            assert "nope" in err
            assert f"host {words[0]} list" in err


# -- settings


async def test_a_setting_is_in_force_from_the_next_sandbox_on_until_it_is_unset(ready_home: Home, forge: Forge) -> None:
    async with running(ready_home, PROCESS, forge) as (host, terminal):
        await terminal.until(lambda: terminal._client is not None)
        async with await AsyncControlClient.connect(ready_home.control_socket) as client:
            ask = Asker(client)
            await ask.row("settings.set", name="time_zone", value="Asia/Tokyo")
            await ask.row("settings.set", name="max_sandboxes", value="3")
            await ask.row("settings.set", name="model", value="some-model")
            told = await ask.row("status")
            assert (told["sandbox"]["limit"], told["model"]["model"]) == (3, "some-model")
            [said] = await terminal.ask("/rehearse tool")
            assert "(Asia/Tokyo)" in said
            assert await ask.setting("max_sandboxes") == ("3", "database")
            await ask.row("settings.set", name="max_sandboxes", value=None)
            assert await ask.setting("max_sandboxes") == ("8", "default")
            assert (await ask.row("status"))["sandbox"]["limit"] == 8
        assert {event["setting"] for event in host.events("setting changed")} == {"time_zone", "max_sandboxes", "model"}


async def test_a_setting_outlives_the_host_and_gives_way_to_a_variable(ready_home: Home, forge: Forge) -> None:
    async with asking(ready_home, forge) as (_, _, ask):
        await ask.row("settings.set", name="max_sandboxes", value="3")
    async with asking(ready_home, forge) as (_, _, ask):
        assert (await ask.row("status"))["sandbox"]["limit"] == 3
    async with asking(ready_home, forge, INNKEEPER_MAX_SANDBOXES="5") as (_, _, ask):
        await ask.row("settings.set", name="max_sandboxes", value="4")
        assert await ask.setting("max_sandboxes") == ("5", "variable INNKEEPER_MAX_SANDBOXES")
        assert (await ask.row("status"))["sandbox"]["limit"] == 5


async def test_a_setting_that_cannot_be_is_refused_and_changes_nothing(ready_home: Home, forge: Forge) -> None:
    async with asking(ready_home, forge) as (_, _, ask):
        before = await ask.list("settings.list")
        for name, value, sentence in (
            ("no_such", "1", "There is no setting no_such"),
            ("max_sandboxes", "-1", "it takes a number above 0"),
            ("max_sandboxes", 3, "A setting's value is text"),
            ("time_zone", "Mars/Olympus", "it takes a zone such as"),
        ):
            refused = await ask.failure("settings.set", name=name, value=value)
            assert refused.code == Code.USAGE
            assert sentence in refused.message
        assert await ask.list("settings.list") == before


# -- agents


async def test_an_agent_that_was_added_answers_at_once_in_a_chat_of_its_own(ready_home: Home, forge: Forge) -> None:
    async with asking(ready_home, forge) as (_, first, ask):
        made = await ask.row("agents.add", name="Zoe", folder="zoe")
        assert (made["name"], made["folder"]) == ("Zoe", "zoe")
        assert [chat["platform_id"] for chat in made["answers_in"]] == ["cli-zoe"]
        assert (ready_home.groups / "zoe" / "AGENTS.md").is_file()
        terminal = Terminal(ready_home, "cli-zoe")
        await terminal.attach()
        try:
            assert await terminal.ask("/rehearse history") == [f"{SAYS}I remember 0 earlier messages."]
        finally:
            await terminal.close()
        assert first.texts == [f"{SAYS}hello"]
        assert {row["agent"] for row in await ask.list("sessions.list")} == {"Zoe", (await first_agent(ask))["name"]}
        again = await ask.failure("agents.add", name="Another", folder="zoe")
        assert again.code == Code.REFUSED
        assert "zoe" in again.message


async def first_agent(ask: Asker) -> dict[str, Any]:
    return await ask.row("agents.show", id="main")
