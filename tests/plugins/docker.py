"""Tests marked `docker` need an engine: without one they are skipped.

Where CI=true or INNKEEPER_REQUIRE_DOCKER=1 they fail, so that no green run has left them out unnoticed.
"""

import functools
import os

import pytest

from host.runtime.engine import ENGINE_ERRORS, connect


@functools.cache
def why_no_engine() -> str | None:
    """None where a Docker engine answers this user, its error where not; asked once per process."""
    try:
        with connect(None, 10) as client:
            client.ping()
    except ENGINE_ERRORS as error:
        return str(error)
    return None


def engine_required() -> bool:
    """True where a missing engine is a failure and no reason to skip."""
    return os.environ.get("CI") == "true" or os.environ.get("INNKEEPER_REQUIRE_DOCKER") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips or fails before any fixture asks the engine for something."""
    if item.get_closest_marker("docker") is None or (reason := why_no_engine()) is None:
        return
    if engine_required():
        pytest.fail(f"No Docker engine answers, and this run requires one: {reason}", pytrace=False)
    pytest.skip(f"no Docker engine answers: {reason}")
