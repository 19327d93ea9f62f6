"""The house is laid out as docs/architecture.md says, and its shared files stay free of what belongs elsewhere."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mailboxes.rows import Kind
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = ("host", "agent_runner", "mailboxes")


def modules_of(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """The top-level packages that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.req("R271")
@pytest.mark.parametrize(
    "entry",
    [
        "pyproject.toml", "up", "Makefile", "Dockerfile", "LICENSE", "README.md", "CHANGELOG.md", ".ci/run",
        "host/__init__.py", "agent_runner/__init__.py", "mailboxes/__init__.py", "migrations", "groups/template",
        "sessions/.gitkeep", "tests", "benchmarks/__init__.py", "docs/architecture.md",
    ],
)  # fmt: skip
def test_every_top_level_entry_is_in_its_place(entry: str) -> None:
    assert (ROOT / entry).exists()


@pytest.mark.req("R271")
def test_the_distribution_names_what_it_rests_on() -> None:
    named = {re.split(r"[<>=\[ ]", dependency)[0] for dependency in PROJECT["project"]["dependencies"]}
    promised = {"anthropic", "docker", "croniter", "python-telegram-bot", "slack-bolt", "httpx", "mcp", "python-dotenv"}
    assert promised <= named
    assert PROJECT["project"]["requires-python"] == ">=3.11"


@pytest.mark.req("R188")
@pytest.mark.parametrize(
    "module",
    [
        "host/app.py", "host/router.py", "host/delivery.py", "host/sessions.py", "host/sweep.py", "host/fleet.py",
        "agent_runner/loop.py", "agent_runner/formatting.py", "agent_runner/providers/base.py",
        "agent_runner/tools/registry.py",
    ],
)  # fmt: skip
def test_each_part_is_a_module_of_its_own(module: str) -> None:
    assert (ROOT / module).is_file()


@pytest.mark.req("R188")
def test_entry_files_are_thin() -> None:
    starting = [path for package in OURS for path in modules_of(package) if path.name == "__main__.py"]
    for entry in [ROOT / "host" / "app.py", *starting]:
        statements = [node for node in ast.walk(ast.parse(entry.read_text())) if isinstance(node, ast.stmt)]
        assert len(statements) <= 100, entry


@pytest.mark.req("R188")
def test_the_composition_root_decides_nothing() -> None:
    text = (ROOT / "host" / "assembly.py").read_text()
    assert not re.search(r"\b(SELECT|INSERT|UPDATE|DELETE)\b|\.select\(|Kind\.", text)


@pytest.mark.req("R189")
def test_a_kind_of_message_is_known_to_two_core_files_at_most() -> None:
    naming = re.compile(rf"\bKind\.{Kind.WEBHOOK.name}\b")  # a kind that nothing but its content sets apart
    knowing = [
        path for package in ("host", "agent_runner") for path in modules_of(package) if naming.search(path.read_text())
    ]
    assert ROOT / "agent_runner" / "formatting.py" in knowing
    assert len(knowing) <= 2, knowing


@pytest.mark.req("R190")
def test_shared_settings_know_no_channels_and_no_providers_secrets() -> None:
    text = (ROOT / "host" / "settings.py").read_text()
    foreign = r"TELEGRAM|SLACK|FEISHU|LARK|DISCORD|ANTHROPIC|OPENAI|_TOKEN|_SECRET|API_KEY"
    assert not re.search(foreign, text, re.IGNORECASE)


@pytest.mark.req("R190")
def test_no_file_names_the_secrets_of_two_channels() -> None:
    of_a_platform = re.compile(r"[\"'](TELEGRAM|SLACK|FEISHU|DISCORD)_[A-Z_]+")
    for path in modules_of("host"):
        assert len(set(of_a_platform.findall(path.read_text()))) <= 1, f"{path} looks like a registry of every variable"


@pytest.mark.req("R191")
def test_the_line_width_is_120_everywhere() -> None:
    assert PROJECT["tool"]["ruff"]["line-length"] == 120
    assert PROJECT["tool"]["ruff"]["lint"]["pycodestyle"]["max-line-length"] == 120
    assert "E501" not in PROJECT["tool"]["ruff"]["lint"]["ignore"]


@pytest.mark.parametrize("path", modules_of("mailboxes"), ids=lambda path: path.name)
def test_the_mailbox_rests_on_the_standard_library_alone(path: Path) -> None:
    assert imports_of(path) <= {*sys.stdlib_module_names, "mailboxes"}


@pytest.mark.parametrize("package", OURS)
def test_a_file_is_one_noun_and_a_screenful_of_screenfuls(package: str) -> None:
    long = {str(path): len(path.read_text().splitlines()) for path in modules_of(package)}
    assert not {path: lines for path, lines in long.items() if lines > 500}


def test_a_command_starts_without_the_heavy_packages() -> None:
    heavy = ["alembic", "anthropic", "croniter", "docker", "httpx", "httpx2", "mcp", "prompt_toolkit", "slack_bolt",
             "sqlalchemy", "telegram"]  # fmt: skip
    script = f"import sys, host.cli.main; print(*[name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd="/")
    assert loaded.stdout.strip() == ""


def test_the_import_contracts_hold() -> None:
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    checked = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert checked.returncode == 0, checked.stdout
