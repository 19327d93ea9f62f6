"""The two runtimes that the whole is tried in, and what makes a host start quickly."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.db import migrate
from host.db.engine import url_for
from host.home import Home
from tests.runtime.conftest import agent_image  # noqa: F401
from tests.whole.harness import Forge


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest) -> str:
    """The runtime's name; the image is built where it is needed."""
    name = str(request.param)
    if name == "docker":
        request.getfixturevalue("agent_image")
    return name


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    """Host processes in a tenth of the time."""
    made = Forge()
    yield made
    made.close()


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A central database with today's schema and nothing in it."""
    root = tmp_path_factory.mktemp("migrated")
    home = Home(root / "home", root / "run")
    home.prepare()
    migrate.migrate(home, url_for(home, {}))
    return home.database


@pytest.fixture
def ready_home(home: Home, migrated_database: Path) -> Home:
    """A home whose database needs no migration any more."""
    shutil.copy(migrated_database, home.database)
    return home
