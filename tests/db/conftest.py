from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from host.db import agent_groups, messaging_groups, users
from host.db.engine import make_engine
from host.db.schema import metadata

NOW = "2026-01-01T00:00:00.000Z"


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection to a fresh database, in a transaction."""
    engine = make_engine(f"sqlite:///{tmp_path / 'host.db'}")
    metadata.create_all(engine)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


@pytest.fixture
def people(connection: Connection) -> Connection:
    """Two agents, a chat and two people."""
    agent_groups.create(connection, "a1", "luna", "luna", NOW)
    agent_groups.create(connection, "a2", "sage", "sage", NOW)
    messaging_groups.create(connection, "c1", "telegram", "bot", "7", NOW)
    users.create_user(connection, "telegram:1", NOW, "Ada")
    users.create_user(connection, "telegram:2", NOW, "Bob")
    return connection
