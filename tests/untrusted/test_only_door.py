"""A lint: no module of the host but host/untrusted.py and host/reader opens what a container can write."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HOST = Path(__file__).resolve().parents[2] / "host"
_ALLOWED = (HOST / "untrusted.py", HOST / "reader")

_FOLDERS = {"outbound", "state", "home"}
_OWNERS = {"spec", "workspace", "folders", "session_folder", "group_folder", "agent_folder"}
"""Names that hold such folders: `spec.home` is one, `settings.home` is the host's own."""

_OPENERS = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob", "unlink", "touch",
    "mkdir", "listdir", "scandir", "walk", "rmtree", "remove", "rename", "replace", "chmod", "chown", "connect",
    "open_outbound", "copy", "copyfile", "copytree", "move", "symlink_to", "hardlink_to", "truncate", "makedirs",
}  # fmt: skip


def _is_untrusted(node: ast.AST) -> bool:
    """An expression that names a place of a container's: `spec.state`, `folder / "outbound"`, OUTBOUND_DB."""
    if isinstance(node, ast.Attribute) and node.attr in _FOLDERS:
        owner = node.value
        return (
            isinstance(owner, ast.Name | ast.Attribute) and getattr(owner, "id", getattr(owner, "attr", "")) in _OWNERS
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
        return node.right.value in _FOLDERS | {"outbound.db"}
    return (isinstance(node, ast.Name) and node.id in {"OUTBOUND_DB", "OUTBOUND_LOCK"}) or (
        isinstance(node, ast.Attribute) and node.attr in {"OUTBOUND_DB", "OUTBOUND_LOCK"}
    )


def offences(source: str) -> Iterator[int]:
    """The lines on which an opening call takes such a place, as its receiver or as an argument."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in _OPENERS and any(_is_untrusted(inner) for inner in ast.walk(node)):
            yield node.lineno


@pytest.mark.req("R026")
def test_only_one_module_of_the_host_opens_what_a_container_can_write() -> None:
    modules = [path for path in HOST.rglob("*.py") if not any(path.is_relative_to(door) for door in _ALLOWED)]

    found = [f"{path.relative_to(HOST.parent)}:{line}" for path in modules for line in offences(path.read_text())]

    assert found == [], "use host/untrusted.py for what lies in outbound/, state/ and home/"
    assert len(modules) > 5


@pytest.mark.parametrize(
    "source",
    [
        "open(folder / OUTBOUND_DB)",
        "sqlite3.connect(layout.OUTBOUND_DB)",
        "(spec.outbound / 'x').read_text()",
        "shutil.rmtree(spec.state)",
        "os.listdir(workspace.home)",
        "(folder / 'outbound' / 'files').iterdir()",
        "os.open(self.spec.home, 0)",
        "open_outbound(folder / 'outbound.db')",
    ],
)
def test_the_lint_finds_an_offence(source: str) -> None:
    assert list(offences(source)) == [1]


@pytest.mark.parametrize(
    "source",
    [
        "open(home.env_file)",
        "(folder / 'inbound').mkdir()",
        "Mount(spec.outbound, '/x')",
        "read_outbound(spec.outbound)",
    ],
)
def test_the_lint_lets_the_hosts_own_files_be(source: str) -> None:
    assert not list(offences(source))
