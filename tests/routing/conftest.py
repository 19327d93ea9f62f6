from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection

from host.db import schema
from host.db.engine import make_engine


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection to a fresh database, in a transaction."""
    engine = make_engine(f"sqlite:///{tmp_path / 'routing.db'}")
    schema.metadata.create_all(engine)
    with engine.connect() as opened:
        yield opened
    engine.dispose()
