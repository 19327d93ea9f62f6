"""A lint: a channel asks the host and no database."""

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

FORBIDDEN = ("host.db", "sqlite3", "sqlalchemy")
PACKAGE = "host.channels"


def imported(source: str, package: str = PACKAGE) -> Iterator[str]:
    """Every module that a source names in an import, wherever in it, and in a call of import_module or __import__.
    `package` is where its relative imports begin."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in {"import_module", "__import__"}:
                yield str(node.args[0].value)


def offences(source: str, package: str = PACKAGE) -> list[str]:
    """What a channel must not import."""
    return [name for name in imported(source, package) if f"{name}.".startswith(tuple(f"{f}." for f in FORBIDDEN))]


@pytest.mark.req("R016")
def test_no_channel_imports_a_database() -> None:
    folder = ROOT / "host" / "channels"
    modules = sorted(folder.rglob("*.py"))
    found = {
        str(path.relative_to(ROOT)): names
        for path in modules
        if (names := offences(path.read_text(), ".".join(path.parent.relative_to(ROOT).parts)))
    }
    assert found == {}, "the host looks things up for a channel (host/intake.py, host/delivery.py)"
    assert folder / "terminal.py" in modules


@pytest.mark.parametrize(
    "source",
    [
        "import sqlite3",
        "import sqlite3 as s",
        "import sqlalchemy.orm",
        "from sqlalchemy import select",
        "import host.db.sessions",
        "from host.db import sessions",
        "from host.db.sessions import find",
        "from host import db",
        "from .. import db",
        "from ..db.sessions import find",
        "def f():\n    from host.db import engine",
        "if TYPE_CHECKING:\n    import host.db",
        "importlib.import_module('host.db.sessions')",
        "__import__('sqlite3')",
    ],
)
def test_the_lint_finds_an_offence(source: str) -> None:
    assert offences(source)


@pytest.mark.parametrize(
    "source",
    ["import host.debug", "from host import control", "from .base import Channel", "from . import base", "import json"],
)
def test_the_lint_lets_the_rest_be(source: str) -> None:
    assert not offences(source)
