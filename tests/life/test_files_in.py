"""Files that come in, through a whole host and real sandboxes of either kind: fetched, shown, refused, pruned."""

import asyncio
import base64
import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from host.home import Home
from tests.cli.test_commands import run
from tests.fakes.messages_api import Behaviour, Fail, MessagesApi, Use, from_prompt
from tests.whole.harness import Forge, HostProcess, Terminal, rows, running

KEY = "sk-files-in-1"
PDF = b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF\n"
RUNTIMES = ["process", pytest.param("docker", marks=pytest.mark.docker)]


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi(KEY) as started:
        yield started


@pytest.fixture
def environment(request: pytest.FixtureRequest, home: Home, api: MessagesApi) -> dict[str, str]:
    """Of a host that asks the fake API, in the runtime of the test's `runtime` (process where it has none)."""
    runtime = str(request.getfixturevalue("runtime")) if "runtime" in request.fixturenames else "process"
    if runtime == "docker":
        request.getfixturevalue("agent_image")
    home.env_file.write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    return {"INNKEEPER_RUNTIME": runtime, "ANTHROPIC_BASE_URL": api.url}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the person's own files lie."""
    made = tmp_path / "persons-own-CANARY"
    made.mkdir()
    return made


def picture(folder: Path, name: str = "cat.png", colour: str = "red", size: tuple[int, int] = (8, 8)) -> Path:
    Image.new("RGB", size, colour).save(folder / name)
    return folder / name


def native(api: MessagesApi) -> list[tuple[str, bytes]]:
    """The native blocks of the last request: their type and bytes."""
    blocks = [block for message in api.calls[-1].body["messages"] for block in message["content"]]
    return [
        (block["source"]["media_type"], base64.b64decode(block["source"]["data"]))
        for block in blocks
        if isinstance(block, dict) and block["type"] in ("image", "document")
    ]


def content_of(home: Home) -> list[dict[str, Any]]:
    return [json.loads(row["content"]) for row in rows(home, "SELECT content FROM messages_in ORDER BY seq")]


@pytest.mark.req("R126", "R127", "R128")
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_picture_a_pdf_and_a_text_reach_the_agent_as_it_can_use_them(
    home: Home, api: MessagesApi, environment: dict[str, str], folder: Path, runtime: str
) -> None:
    (folder / "a.pdf").write_bytes(PDF)
    (folder / "notes ; of mine.txt").write_text("the secret ingredient is salt")
    files = [picture(folder), folder / "a.pdf", folder / "notes ; of mine.txt"]
    async with running(home, environment) as (_, terminal):

        def choose(body: dict[str, Any]) -> Behaviour:
            path = json.dumps(body).partition("3-notes")[0].rpartition('path=\\"')[2] + "3-notes_of_mine.txt"
            results = isinstance(body["messages"][-1]["content"], list) and any(
                block["type"] == "tool_result" for block in body["messages"][-1]["content"]
            )
            return from_prompt(body) if results else Use((("bash", {"command": f"cat {path} && touch {path}"}),))

        api.always = choose
        [said] = await terminal.ask("what are these?", files=files)
        assert "the secret ingredient is salt" in said
        assert "Read-only file system" in said or "Permission denied" in said
        assert native(api) == [("image/png", files[0].read_bytes()), ("application/pdf", PDF)]
        assert "CANARY" not in json.dumps([call.body for call in api.calls])
    assert "CANARY" not in json.dumps(content_of(home))


@pytest.mark.req("R129")
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_picture_that_the_api_refuses_costs_its_turn_nothing_and_poisons_no_later_one(
    home: Home, api: MessagesApi, environment: dict[str, str], folder: Path, runtime: str
) -> None:
    def choose(body: dict[str, Any]) -> Behaviour:
        poisoned = '"type": "image"' in json.dumps(body)
        return Fail(400, "invalid_request_error", "Could not process image") if poisoned else from_prompt(body)

    api.always = choose
    async with running(home, environment) as (host, terminal):
        [said] = await terminal.ask("SAY:seen", files=[picture(folder)])
        assert "attachment-refused" in json.dumps(api.calls[-1].body)
        before = len(api.calls)
        await terminal.ask("and now?")
        assert said
        await host.stop()
        await host.start()
        await terminal.ask("and after a restart?")
        assert len(api.calls) == before + 2
        assert terminal.notices == []
    assert {row["status"] for row in rows(home, "SELECT status FROM messages_in")} == {"completed"}


@pytest.mark.req("R129")
@pytest.mark.fault(36)
async def test_a_file_over_the_limit_is_told_to_its_sender_once_and_the_text_is_answered(
    home: Home, api: MessagesApi, environment: dict[str, str], folder: Path, forge: Forge
) -> None:
    huge = folder / "film.mp4"
    huge.touch()
    os.truncate(huge, 51 * 1024 * 1024)
    async with running(home, environment, forge) as (host, terminal):
        [said] = await terminal.ask("watch this", files=[huge, picture(folder)])
        assert "watch this" in said
        assert "not fetched: too large (the limit is 50 MB)" in said
        await terminal.until(lambda: len(terminal.notices) == 1)
        assert "film.mp4" in terminal.notices[0]
        assert "50 MB" in terminal.notices[0]
        assert len(native(api)) == 1
        await host.kill()
        await host.start()
        await terminal.ask("thanks")
        assert len(terminal.notices) == 1


@pytest.mark.req("R127")
@pytest.mark.parametrize("point", ["before_file_rename", "after_file_rename", "after_put"])
async def test_a_host_that_is_killed_with_a_file_in_its_hands_brings_it_once(
    home: Home, api: MessagesApi, environment: dict[str, str], folder: Path, point: str
) -> None:
    crash = {"INNKEEPER_CRASH_AT": f"{point}:1", "INNKEEPER_CRASH_DIR": str(folder)}
    host, terminal = HostProcess(home, environment | crash), Terminal(home)
    await host.start()
    await terminal.attach()
    try:
        key = await terminal.send("look", [picture(folder)])
        await host.wait()
        await host.start()
        await terminal.until(lambda: key in terminal.settled)
        assert len(native(api)) == 1
        [content] = content_of(home)
        assert [entry["file"] for entry in content["attachments"]] == ["1-cat.png"]
        [files] = home.sessions.glob("*/*/inbound/files")
        assert [path.name for row in files.iterdir() for path in row.iterdir()] == ["1-cat.png"]
        await host.stop()
    finally:
        await terminal.close()
        await host.kill()


async def test_a_file_that_goes_before_it_is_fetched_is_a_note(
    home: Home, api: MessagesApi, environment: dict[str, str], folder: Path
) -> None:
    crash = {"INNKEEPER_CRASH_AT": "after_ingest:1", "INNKEEPER_CRASH_DIR": str(folder)}
    host, terminal = HostProcess(home, environment | crash), Terminal(home)
    await host.start()
    await terminal.attach()
    try:
        gone = picture(folder)
        sending = asyncio.ensure_future(terminal.send("look", [gone]))
        await host.wait()
        gone.unlink()
        await host.start()
        await terminal.until(lambda: len(terminal.texts) == 1)
        await sending
        assert "it cannot be read (No such file or directory)" in terminal.texts[0]
        await host.stop()
    finally:
        await terminal.close()
        await host.kill()


@pytest.mark.fault(41)
async def test_prune_looks_first_then_removes_and_the_message_stays(
    home: Home, environment: dict[str, str], folder: Path, forge: Forge
) -> None:
    async with running(home, environment, forge) as (_, terminal):
        await terminal.ask("look", files=[picture(folder)])
        code, out, _ = await run("--json", "--dry-run", "prune")
        assert (code, json.loads(out)["files"]) == (0, 0)
        [kept] = home.sessions.glob("*/*/inbound/files/*")
        os.utime(kept, (time.time() - 31 * 86400,) * 2)
        assert (await run("--dry-run", "prune"))[0] == 0  # its message was dealt with just now
        _change(home, "UPDATE messages_in SET timestamp='2020-01-01T00:00:00.000Z', status_changed=timestamp")
        _change(home, "UPDATE messages_in SET status_changed=timestamp")
        code, out, _ = await run("--json", "--dry-run", "prune")
        found = json.loads(out)
        assert (code, found["files"], found["removed"], len(found["sessions"])) == (3, 1, False, 1)
        assert kept.exists()
        assert (await run("prune"))[0] == 4  # no terminal and no -y
        code, out, _ = await run("-y", "prune")
        assert (code, "1 old files" in out) == (0, True)
        assert not kept.exists()
        assert (await run("--dry-run", "prune"))[0] == 0
    assert len(content_of(home)) == 1


def _change(home: Home, statement: str) -> None:
    [path] = home.sessions.glob("*/*/inbound/inbound.db")
    with contextlib.closing(sqlite3.connect(path, timeout=5)) as connection:
        connection.execute(statement)
        connection.commit()
