import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from host.db.engine import url_for
from host.db.migrate import migrate
from host.home import Home
from tests.fakes.clock import FakeClock
from tests.fakes.runner_hand import Hand
from tests.fleet.house import House, Machine


@pytest.fixture(scope="session")
def hand() -> Iterator[Hand]:
    """Writes for every runner of this run."""
    with Hand() as started:
        yield started


@pytest.fixture(scope="session")
def fresh_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The central database of a new home, migrated once."""
    folder = tmp_path_factory.mktemp("fresh")
    made = Home(folder / "home", folder / "run")
    made.prepare()
    migrate(made, url_for(made, {}))
    return made.database


@pytest.fixture
def machine(home: Home, clock: FakeClock, hand: Hand, fresh_database: Path) -> Machine:
    """A machine without a host."""
    shutil.copy(fresh_database, home.database)
    return Machine(home, clock, hand)


@pytest.fixture
async def house(machine: Machine) -> AsyncIterator[House]:
    """A host with one chat, called 42, and no sandbox yet."""
    async with machine.host() as running:
        yield running
