"""The agent image: its name is a digest of what goes into it, so a runner and its host can never be of two versions."""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound

from host.resources import resource, source_of
from host.runtime.base import RuntimeUnavailable
from host.runtime.engine import ENGINE_ERRORS, connect, why_away

REPOSITORY = "innkeeper-agent"
SOURCE_LABEL = "innkeeper.source"
_PACKAGES = ("agent_runner", "mailboxes")
_BUILD_SECONDS = 900
_LAST_LINES = 15


class BuildFailed(Exception):
    """The image was not made; the text holds the last lines of the build and the next step."""


def image_tag() -> str:
    """The name of the image that this code needs: innkeeper-agent:<digest of Dockerfile, lock and sources>."""
    return f"{REPOSITORY}:{_source_hash()}"


def image_exists(tag: str, base_url: str | None = None) -> bool:
    """Whether the engine has the image. Blocks. Raises RuntimeUnavailable."""
    try:
        with connect(base_url, _BUILD_SECONDS) as engine:
            engine.inspect_image(tag)  # type: ignore[no-untyped-call]
    except ImageNotFound:
        return False
    except ENGINE_ERRORS as error:
        raise RuntimeUnavailable(why_away(error, base_url)) from error
    return True


def build(progress: Callable[[str], None], base: str | None = None, base_url: str | None = None) -> str:
    """Makes the image and returns its name; every line of the build goes to `progress`. Blocks, for minutes at first.

    `base` is the image to build on, else INNKEEPER_BASE_IMAGE, else the Dockerfile's. INNKEEPER_BUILD_NETWORK names the
    network; without it the engine's own is tried first and the host's where the engine has none.
    Raises BuildFailed, RuntimeUnavailable.
    """
    tag = image_tag()
    network = os.environ.get("INNKEEPER_BUILD_NETWORK")
    try:
        with connect(base_url, _BUILD_SECONDS) as engine:
            network = network or ("default" if engine.networks(filters={"driver": "bridge"}) else "host")
            _run_build(engine, tag, base or os.environ.get("INNKEEPER_BASE_IMAGE"), network, progress)
    except APIError as error:
        raise BuildFailed(f"The engine refused to build {tag}: {error.explanation or error}") from error
    except ENGINE_ERRORS as error:
        raise RuntimeUnavailable(why_away(error, base_url)) from error
    return tag


def prune_images(in_use: str, base_url: str | None = None) -> list[str]:
    """Removes our images but the one in use and those that a container still needs; returns the names. Blocks."""
    removed: list[str] = []
    try:
        with connect(base_url, _BUILD_SECONDS) as engine:
            for image in engine.images(name=REPOSITORY):
                tags = image.get("RepoTags") or []
                removed += [tag for tag in tags if tag != in_use and _remove(engine, tag)]
    except ENGINE_ERRORS as error:
        raise RuntimeUnavailable(why_away(error, base_url)) from error
    return removed


def _remove(engine: docker.APIClient, tag: str) -> bool:
    try:
        engine.remove_image(tag)
    except APIError as error:
        if error.status_code in {404, 409}:  # gone already, or a container stands on it: the next time then
            return False
        raise
    return True


def _run_build(
    engine: docker.APIClient, tag: str, base: str | None, network: str, progress: Callable[[str], None]
) -> None:
    lines = engine.build(
        fileobj=_context(),
        custom_context=True,
        tag=tag,
        rm=True,
        forcerm=True,
        decode=True,
        network_mode=network,
        buildargs={"BASE": base} if base else {},
        labels={SOURCE_LABEL: _source_hash()},
    )
    last: list[str] = []
    for line in lines:
        text = str(line.get("stream") or line.get("status") or line.get("error") or "").rstrip()
        if text:
            progress(text)
            last = [*last, text][-_LAST_LINES:]
        if "error" in line:
            shown = "\n".join(last)
            raise BuildFailed(
                f"The agent image could not be made on {base or 'its usual base'}. The build's last lines:\n{shown}\n"
                "Where a download failed, check the network (INNKEEPER_BUILD_NETWORK=host uses this machine's own) "
                "and run it again."
            )


def _files() -> Iterator[tuple[str, Path]]:
    """What goes into the image: name in the build context and file, in a fixed order."""
    for name in ("Dockerfile", "requirements-runner.lock"):
        yield name, resource(name)
    for package in _PACKAGES:
        folder = source_of(package)
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(folder)}", path


def _source_hash() -> str:
    digest = hashlib.sha256()
    for name, path in _files():
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _context() -> io.BytesIO:
    """The build context as a tar. Times and owners are fixed, so that equal sources are found in the engine's cache."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, path in _files():
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o644
            tar.addfile(entry, io.BytesIO(content))
    buffer.seek(0)
    return buffer
