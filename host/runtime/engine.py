"""The door to the container engine: how it is reached, and what a person can do when it does not answer."""

import os
import socket

import docker
from docker.errors import DockerException
from docker.utils import kwargs_from_env
from requests.exceptions import RequestException

ENGINE_ERRORS = (DockerException, RequestException)
"""All that the client raises when the engine fails or is away."""


def connect(base_url: str | None, timeout: float) -> docker.APIClient:
    """A client of the engine at `base_url`, else where DOCKER_HOST says. Blocks; raises ENGINE_ERRORS."""
    path = address(base_url).removeprefix("unix://")
    if path.startswith("/"):
        # The client hides why it could not connect in a text, and leaves its socket open.
        try:
            with socket.socket(socket.AF_UNIX) as door:
                door.connect(path)
        except OSError as error:
            raise DockerException(f"{path}: {error.strerror}") from error
    where = {"base_url": base_url} if base_url else kwargs_from_env()
    return docker.APIClient(timeout=int(timeout), **where)


def address(base_url: str | None) -> str:
    """Where the engine is looked for."""
    return base_url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def why_away(error: Exception, base_url: str | None) -> str:
    """The sentence for somebody whose engine does not answer."""
    where = address(base_url)
    if isinstance(error.__cause__, PermissionError) or "PermissionError" in str(error):
        return (
            f"The container engine at {where} is there, but you may not use it. Run: sudo usermod -aG docker $USER\n"
            "It takes effect at your next login, or at once in a shell started by: newgrp docker"
        )
    return (
        f"No container engine answers at {where}. Start it (sudo systemctl start docker) or install it "
        "(sudo apt-get install docker.io)."
    )
