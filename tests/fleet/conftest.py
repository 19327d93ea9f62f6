from collections.abc import AsyncIterator, Iterator

import pytest

from host.home import Home
from tests.fakes.clock import FakeClock
from tests.fakes.runner_hand import Hand
from tests.fleet.house import House, Machine


@pytest.fixture(scope="session")
def hand() -> Iterator[Hand]:
    """Writes for every runner of this run."""
    with Hand() as started:
        yield started


@pytest.fixture
def machine(home: Home, clock: FakeClock, hand: Hand) -> Machine:
    """A machine without a host."""
    return Machine(home, clock, hand)


@pytest.fixture
async def house(machine: Machine) -> AsyncIterator[House]:
    """A host with one chat, called 42, and no sandbox yet."""
    async with machine.host() as running:
        yield running
