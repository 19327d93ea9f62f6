from collections.abc import Iterator
from pathlib import Path

import pytest

from host.mailbox import Mailbox
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, make_session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_session(tmp_path / "session")


@pytest.fixture
def mailbox(folder: Path, clock: FakeClock) -> Iterator[Mailbox]:
    opened = Mailbox(KEY, folder, clock.now, lambda: "Europe/Berlin")
    yield opened
    opened.close()
