"""The two runtimes that the whole is tried in."""

import pytest

from tests.runtime.conftest import agent_image  # noqa: F401


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def runtime(request: pytest.FixtureRequest) -> str:
    """The runtime's name; the image is built where it is needed."""
    name = str(request.param)
    if name == "docker":
        request.getfixturevalue("agent_image")
    return name
