"""The agent image: named by what is in it, small, nobody's, and without a secret."""

import asyncio
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from host.runtime import image
from host.runtime.base import SandboxSpec
from tests.runtime.conftest import CagedDocker, ask, base_image


@pytest.fixture
def engine() -> Any:
    client = docker.APIClient()
    yield client
    client.close()


@pytest.mark.docker
@pytest.mark.req("R273")
def test_the_image_is_nobodys_and_adds_little_to_its_base(engine: Any, agent_image: str) -> None:
    ours = engine.inspect_image(agent_image)
    base = engine.inspect_image(base_image() or "python:3.13-slim")
    layers = ours["Size"] - base["Size"]
    assert 0 < layers <= 250 * 1024**2
    assert layers <= 60 * 1024**2
    assert ours["Config"]["User"] == "65532:65532"
    assert ours["Config"]["WorkingDir"] == "/"
    assert ours["Config"]["Entrypoint"] == ["/opt/innkeeper/bin/python", "-I", "-m", "agent_runner"]
    assert ours["Config"]["Labels"][image.SOURCE_LABEL] == agent_image.partition(":")[2]


@pytest.mark.docker
@pytest.mark.req("R273", "R089")
def test_a_build_that_is_repeated_takes_all_from_the_cache_and_no_secret_with_it(
    engine: Any, agent_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-9")
    lines: list[str] = []
    tag = image.build(lines.append, base_image())
    assert image.image_exists(tag)
    assert "sk-canary-9" not in json.dumps(engine.history(tag)) + "\n".join(lines)
    image.build(again := _Lines(), base_image())
    steps = [line.partition(" : ")[2] for line in again if line.startswith("Step ")]
    cached = [step for step in steps if not step.startswith(("ARG", "FROM"))]
    assert sum("Using cache" in line for line in again) == len(cached) > 5


class _Lines(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


@pytest.mark.docker
@pytest.mark.req("R273")
async def test_the_image_holds_compiled_sources_and_no_installer(
    containers: Callable[..., CagedDocker], spec: SandboxSpec, logs: Path
) -> None:
    program = """
import importlib.util, pathlib
import agent_runner, mailboxes
answer = [
    [name for name in ("pip", "setuptools", "host", "docker") if importlib.util.find_spec(name)],
    all(pathlib.Path(module.__cached__).exists() for module in (agent_runner, mailboxes)),
]
"""
    assert await ask(containers(), spec, logs, program) == [[], True]


@pytest.mark.docker
def test_a_build_that_fails_shows_its_last_lines_and_the_next_step() -> None:
    with pytest.raises(image.BuildFailed, match="innkeeper-no-such-base"):
        image.build(lambda line: None, "innkeeper-no-such-base:none")


@pytest.mark.docker
def test_images_of_earlier_versions_are_removed_and_the_one_in_use_stays(
    engine: Any, agent_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A name of the test's own: on this machine others may be using images of the real one.
    monkeypatch.setattr(image, "REPOSITORY", "innkeeper-test-prune")
    for version in ("old", "new"):
        engine.tag(agent_image, "innkeeper-test-prune", version)
    assert image.prune_images("innkeeper-test-prune:new") == ["innkeeper-test-prune:old"]
    assert image.image_exists("innkeeper-test-prune:new")
    assert not image.image_exists("innkeeper-test-prune:old")
    engine.remove_image("innkeeper-test-prune:new")


@pytest.mark.fault(80)
def test_the_name_of_the_image_changes_with_its_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("agent_runner", "mailboxes"):
        (tmp_path / package / "__pycache__").mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("")
    for name in ("Dockerfile", "requirements-runner.lock"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(image, "resource", lambda name: tmp_path / name)
    monkeypatch.setattr(image, "source_of", lambda name: tmp_path / name)
    first = image.image_tag()
    (tmp_path / "mailboxes" / "__pycache__" / "x.pyc").write_text("compiled")
    assert image.image_tag() == first
    names = {first}
    for changed in ("Dockerfile", "requirements-runner.lock", "mailboxes/__init__.py", "agent_runner/new.py"):
        (tmp_path / changed).write_text("changed")
        names.add(image.image_tag())
    assert len(names) == 5
    assert first.startswith("innkeeper-agent:")


@pytest.mark.req("R273", "R084")
def test_the_build_is_given_the_runner_and_nothing_of_the_host() -> None:
    with tarfile.open(fileobj=image._context()) as context:
        names = context.getnames()
    assert {name.partition("/")[0] for name in names} == {
        "Dockerfile", "requirements-runner.lock", "agent_runner", "mailboxes",
    }  # fmt: skip
    assert "mailboxes/schema.py" in names
    assert not [name for name in names if "__pycache__" in name]


@pytest.mark.docker
async def test_the_build_runs_beside_the_event_loop(agent_image: str) -> None:
    assert (await asyncio.to_thread(image.build, lambda line: None, base_image())).startswith(image.REPOSITORY)
