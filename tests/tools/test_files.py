import asyncio
import os
from pathlib import Path

import pytest

from agent_runner.tools.files import MAX_FILE_BYTES
from agent_runner.tools.registry import MAX_OUTPUT, Toolbox
from mailboxes.layout import Workspace


@pytest.mark.req("R202")
async def test_what_was_written_is_read_and_folders_are_made(toolbox: Toolbox, workspace: Workspace) -> None:
    answer = await toolbox.call("write_file", {"path": "a/b/c.txt", "content": "eins\nzwei\n"})
    assert answer == "Wrote 10 characters to a/b/c.txt."
    assert (workspace.home / "a/b/c.txt").read_text() == "eins\nzwei\n"
    assert await toolbox.call("read_file", {"path": "a/b/c.txt"}) == "eins\nzwei\n"


@pytest.mark.req("R202")
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ({"offset": 2, "limit": 1}, "b\n"),
        ({"offset": 3}, "c\n"),
        ({"limit": 2}, "a\nb\n"),
        ({"offset": 9}, "Error: {path} has 3 lines; offset 9 lies behind its end"),
        ({"offset": 0}, "Error: offset starts at 1 and limit is not negative"),
    ],
)
async def test_some_lines_can_be_read(
    toolbox: Toolbox, workspace: Workspace, arguments: dict[str, int], answer: str
) -> None:
    path = workspace.home / "f"
    path.write_text("a\nb\nc\n")
    assert await toolbox.call("read_file", {"path": "f", **arguments}) == answer.format(path=path)


@pytest.mark.req("R202")
@pytest.mark.parametrize(
    ("text", "old", "answer"),
    [
        ("one two", "two", "Edited f."),
        ("one two", "three", "Error: old_string occurs 0 times in"),
        ("two two", "two", "Error: old_string occurs 2 times in"),
        ("two", "", "Error: old_string is empty"),
    ],
)
async def test_an_edit_needs_its_text_exactly_once(
    toolbox: Toolbox, workspace: Workspace, text: str, old: str, answer: str
) -> None:
    path = workspace.home / "f"
    path.write_text(text)
    got = await toolbox.call("edit_file", {"path": "f", "old_string": old, "new_string": "2"})
    assert got.startswith(answer)
    assert path.read_text() == ("one 2" if got == "Edited f." else text)


@pytest.mark.req("R202")
async def test_a_folder_is_listed(toolbox: Toolbox, workspace: Workspace) -> None:
    assert await toolbox.call("list_directory", {}) == "[empty folder]"
    (workspace.home / "sub").mkdir()
    (workspace.home / "f").write_text("abc")
    (workspace.home / "link").symlink_to("f")
    assert await toolbox.call("list_directory", {}) == "f  3 bytes\nlink -> f\nsub/"


async def test_the_agents_folder_and_received_files_can_be_read_but_not_written(
    toolbox: Toolbox, workspace: Workspace
) -> None:
    for folder in (workspace.agent, workspace.inbound / "files"):
        path = folder / "note.md"
        path.write_text("hello")
        assert await toolbox.call("read_file", {"path": str(path)}) == "hello"
        answer = await toolbox.call("write_file", {"path": str(path), "content": "mine"})
        assert "lies outside of what these tools may write" in answer
        assert path.read_text() == "hello"


@pytest.mark.req("R203")
async def test_a_sibling_whose_name_begins_alike_is_outside(toolbox: Toolbox, workspace: Workspace) -> None:
    evil = workspace.agent.with_name("agent-evil")
    evil.mkdir()
    (evil / "f").write_text("secret")
    for path in (str(evil / "f"), "../../agent-evil/f"):
        for name in ("read_file", "list_directory"):
            assert "lies outside" in await toolbox.call(name, {"path": path})
    beside = workspace.home.with_name("home-evil")
    assert "lies outside" in await toolbox.call("write_file", {"path": str(beside / "x"), "content": ""})
    assert not beside.exists()


@pytest.mark.req("R203")
async def test_a_link_is_where_it_points_to(toolbox: Toolbox, workspace: Workspace, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "f").write_text("secret")
    (workspace.home / "file").symlink_to(secret / "f")
    (workspace.home / "folder").symlink_to(secret)
    (workspace.home / "new").symlink_to(secret / "new")
    for path in ("file", "folder/f"):
        assert "lies outside" in await toolbox.call("read_file", {"path": path})
        edit = {"path": path, "old_string": "secret", "new_string": "x"}
        assert "lies outside" in await toolbox.call("edit_file", edit)
    for path in ("new", "folder/new", "file"):
        assert "lies outside" in await toolbox.call("write_file", {"path": path, "content": "x"})
    assert [p.name for p in secret.iterdir()] == ["f"]
    assert (secret / "f").read_text() == "secret"


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../../../etc/passwd", "/proc/self/environ", "a\0b"])
async def test_nothing_else_can_be_read(toolbox: Toolbox, path: str) -> None:
    assert (await toolbox.call("read_file", {"path": path})).startswith("Error: ")


async def test_a_pipe_is_no_file_and_holds_nothing_up(toolbox: Toolbox, workspace: Workspace) -> None:
    os.mkfifo(workspace.home / "pipe")
    async with asyncio.timeout(5):
        assert "is no regular file" in await toolbox.call("read_file", {"path": "pipe"})
        assert (await toolbox.call("write_file", {"path": "pipe", "content": "x"})).startswith("Error: ")


async def test_missing_files_folders_and_giants_are_told(toolbox: Toolbox, workspace: Workspace) -> None:
    (workspace.home / "sub").mkdir()
    with (workspace.home / "giant").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert "does not exist" in await toolbox.call("read_file", {"path": "nothing"})
    assert "is a folder" in await toolbox.call("read_file", {"path": "sub"})
    assert "is a folder" in await toolbox.call("write_file", {"path": "sub", "content": ""})
    assert "does not exist" in await toolbox.call("list_directory", {"path": "nothing"})
    assert "more than" in await toolbox.call("read_file", {"path": "giant"})


@pytest.mark.req("R202")
async def test_a_long_file_is_cut(toolbox: Toolbox, workspace: Workspace) -> None:
    (workspace.home / "f").write_text("x" * 70_000)
    answer = await toolbox.call("read_file", {"path": "f"})
    assert len(answer) == MAX_OUTPUT
    assert answer.endswith("[cut: 70000 characters in total]")


@pytest.mark.req("R202")
async def test_the_time_is_told_in_utc_and_in_the_peoples_zone(
    toolbox: Toolbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    utc, local = (await toolbox.call("get_current_time", {})).splitlines()
    assert utc.endswith("Z (UTC)")
    assert local.endswith("(Asia/Tokyo)")
    assert "+0900" in local
    monkeypatch.setenv("TZ", "no/zone")
    assert (await toolbox.call("get_current_time", {})).endswith("Z (UTC)")
