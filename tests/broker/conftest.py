import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from host.broker.gateway import Gateway
from host.broker.server import Broker, Caps
from tests.fakes.doors import broker_to
from tests.fakes.messages_api import MessagesApi

KEY = "sk-canary-77aa01"


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi(KEY) as api:
        yield api


@pytest.fixture
def run_folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="ik-", dir="/tmp")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    path.write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    return path


@pytest.fixture
def caps() -> Caps:
    return Caps(body=64 * 1024, linger_seconds=0.1)


@pytest.fixture
async def pair(api: MessagesApi, env_file: Path, caps: Caps) -> AsyncIterator[tuple[Broker, Gateway]]:
    broker, gateway = broker_to(api, env_file, caps=caps)
    yield broker, gateway
    await broker.close()
    await gateway.close()


@pytest.fixture
async def door(pair: tuple[Broker, Gateway], run_folder: Path) -> Path:
    """The socket of session s1."""
    return (await pair[0].open("s1", run_folder / "broker.sock")).path
