from collections.abc import Iterator
from pathlib import Path

import pytest

from host.reader import Reader
from host.untrusted import provision_outbound


@pytest.fixture
def outbound(tmp_path: Path) -> Path:
    return provision_outbound(tmp_path, None, None)


@pytest.fixture(scope="session")
def reader() -> Iterator[Reader]:
    with Reader() as made:
        yield made
