"""A host that is told to stop while three agents are in the middle of their turns."""

import asyncio
import signal

import pytest

from host.home import Home
from tests.fire.scene import House
from tests.whole.harness import Forge, HostProcess, Terminal, rows

SAYS = "(rehearsal, no model) "
AGENTS = ("ann", "bob", "cid")


@pytest.mark.req("R274")
async def test_a_stop_during_three_turns_loses_nothing_and_says_nothing_twice(ready_home: Home, forge: Forge) -> None:
    host = HostProcess(ready_home, {"INNKEEPER_RUNTIME": "process"}, forge)
    house = House(host)
    try:
        await host.start()
        terminals = {name: await house.agent(name) for name in AGENTS}
        keys: dict[str, set[str]] = {}
        for name, terminal in terminals.items():
            keys[name] = {await terminal.send(line) for line in ("/rehearse slow 1", f"{name} one", f"{name} two")}
        for name in AGENTS:
            await house.works_on(name)
        assert not any(terminal.settled for terminal in terminals.values())
        # Nobody is there for what cid says: the next host has to bring it.
        await terminals["cid"].close()

        host.signal(signal.SIGTERM)
        late = {name: asyncio.create_task(terminal.send(f"{name} late")) for name, terminal in terminals.items()}
        assert await host.wait() == 0, host.output()
        assert terminals["cid"].texts == []
        assert rows(ready_home, "SELECT 1 FROM deliveries WHERE state = 'queued'")
        await host.start()
        await terminals["cid"].attach()

        for name, terminal in terminals.items():
            expected = keys[name] | {await late[name]}
            await _settled(terminal, expected)
            lines = [text for text in terminal.texts if name in text]
            assert lines == [f"{SAYS}{name} {word}" for word in ("one", "two", "late")]
            assert len(terminal.texts) == 4
            assert terminal.notices == []
            assert not any(terminal.settled.values())
        assert await host.stop() == 0, host.output()
    finally:
        await house.close()
        await host.kill()
    told = rows(ready_home, "SELECT status, tries FROM messages_in")
    assert [(row["status"], row["tries"]) for row in told] == [("completed", 0)] * 12
    assert [row["state"] for row in rows(ready_home, "SELECT state FROM deliveries")] == ["sent"] * 12


async def _settled(terminal: Terminal, keys: set[str]) -> None:
    await terminal.until(lambda: keys <= terminal.settled.keys())
