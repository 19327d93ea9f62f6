"""The wheel works as well as the clone: built, installed into an empty venv, away from the clone, it answers.

Alone: `make dev && .venv/bin/python -m pytest tests/tooling/test_wheel.py`.
"""

import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("wheel")]


def run(*words: str | Path) -> str:
    """Runs a program away from the clone, fails with what it said, and returns its standard output."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        words, cwd="/", env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("innkeeper-*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an empty venv that got the locked dependencies and the wheel, and nothing else."""
    venv = tmp_path_factory.mktemp("empty") / "venv"
    run(sys.executable, "-m", "venv", venv)
    pip = (venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile")
    run(*pip, "--require-hashes", "--requirement", ROOT / "requirements.lock")
    run(*pip, "--no-deps", "--no-index", wheel)
    run(venv / "bin" / "python", "-m", "pip", "check")
    return venv / "bin"


@pytest.mark.req("R271")
def test_the_wheel_carries_the_three_packages_and_what_they_read(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"host", "agent_runner", "mailboxes"}
    for needed in ("Dockerfile", "requirements-runner.lock", "groups/template/AGENTS.md"):
        assert f"host/_data/{needed}" in names
    assert any(name.startswith("host/_data/migrations/versions/") for name in names)
    assert [name for name in names if name.endswith(".db")] == ["mailboxes/outbound-1.db"]  # the template, no run time
    assert not [name for name in names if name.endswith((".log", ".pyc", ".env"))]


@pytest.mark.req("R271")
def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(path).decode())
    named = {line.partition(";")[0].strip() for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bare = {"".join(sorted(dependency)) for dependency in project["dependencies"]}  # hatchling reorders the bounds
    assert {"".join(sorted(dependency)) for dependency in named} == bare
    assert metadata["Requires-Python"] == ">=3.11"


@pytest.mark.req("R271")
def test_both_commands_are_there_and_help(installed: Path) -> None:
    assert "chat" in run(installed / "host", "--help")
    assert "chat" in run(installed / "innkeeper", "--help")


@pytest.mark.usefixtures("home")
def test_it_answers_away_from_the_clone(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INNKEEPER_RUNTIME", "process")
    answer = run(installed / "innkeeper", "chat", "--once", "hello")
    assert "hello" in answer
