"""Failures that a person asks for at the terminal, through a whole host: nothing is lost, and the numbers say so."""

import pytest

from host.control import AsyncControlClient
from host.home import Home
from tests.whole.harness import Forge, running


@pytest.mark.req("R243", "R139")
async def test_what_fails_on_purpose_is_pending_and_comes_later(home: Home, forge: Forge) -> None:
    async with running(home, {"INNKEEPER_RUNTIME": "process"}, forge) as (host, terminal):
        await terminal.ask("hello")
        async with await AsyncControlClient.connect(home.control_socket) as client:
            begun = await client.call("chat.simulate_failure", rate=1)
            assert isinstance(begun, dict)
            assert (begun["rate"], begun["failed"], begun["pending"]) == (1.0, 0, 0)
            key = await terminal.send("are you there?")
            while not host.events("not sent, trying again"):
                await client.call("chat.simulate_failure", rate=1)
            failing = await client.call("chat.simulate_failure")
            assert isinstance(failing, dict)
            assert (failing["rate"], failing["failed"], failing["pending"]) == (0.0, 1, 1)
            assert key not in terminal.settled
            await terminal.until(lambda: key in terminal.settled)
            done = await client.call("chat.simulate_failure", rate=0)
            assert isinstance(done, dict)
            assert (done["failed"], done["pending"]) == (1, 0)
            assert done["attempted"] == done["succeeded"] + done["failed"]
        assert len(terminal.texts) == 2
