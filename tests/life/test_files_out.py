"""Files that go out, through a whole host and real sandboxes of either kind: shown by a path that can be opened, kept
through a kill, refused without a leak."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from host.home import Home
from tests.fakes.messages_api import Behaviour, MessagesApi, Say, Use
from tests.life.test_files_in import RUNTIMES, api, environment
from tests.terminal.conftest import command
from tests.whole.harness import rows, running, wait_until

__all__ = ["api", "environment"]

SEND = """
import json, os, sqlite3
os.makedirs("/workspace/outbound/files/o-file")
BEFORE
db = sqlite3.connect("/workspace/outbound/outbound.db", timeout=10, isolation_level=None)
db.execute("BEGIN IMMEDIATE")
seq, turn = db.execute("SELECT next_seq, turn_id FROM runner_state").fetchone()
content = json.dumps({"text": "here it is", "files": FILES})
db.execute(
    "INSERT INTO messages_out (id, seq, turn_id, timestamp, kind, channel_type, account_id, platform_id, content) "
    "VALUES ('o-file', ?, ?, '2026-01-01T00:00:00.000Z', 'chat', 'terminal', 'local', 'cli', ?)", (seq, turn, content))
db.execute("UPDATE runner_state SET next_seq = next_seq + 2")
db.execute("COMMIT")
"""


def sends(api: MessagesApi, before: str, *files: str) -> None:
    """The agent's shell does `before`, in Python, and sends the files."""
    script = SEND.replace("BEFORE", before).replace("FILES", repr(list(files)))

    def choose(body: dict[str, Any]) -> Behaviour:
        if "tool_result" in json.dumps(body["messages"][-1]):
            return Say("done")
        return Use((("bash", {"command": f"python3 -c {shlex.quote(script)}"}),))

    api.always = choose


@pytest.mark.req("R130", "R131")
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_file_is_shown_by_a_path_that_can_be_opened_also_after_the_agent_changed_its_own(
    home: Home, api: MessagesApi, environment: dict[str, str], runtime: str
) -> None:
    async with running(home, environment) as (_, terminal):
        await terminal.ask("hello")
        sends(api, "open('/workspace/outbound/files/o-file/a b.txt', 'w').write('forty-two')", "a b.txt")
        async with command("--json", "chat", "--once", "send me the file") as chat:
            code, out, err = await chat.end(seconds=60)
        assert code == 0, err
        shown = [message for message in json.loads(out)["messages"] if message["files"]]
        [file] = shown[0]["files"]
        assert (shown[0]["text"], file["name"], file["type"], file["size"]) == (
            "here it is",
            "a b.txt",
            "text/plain",
            9,
        )
        assert Path(file["path"]).read_text() == "forty-two"

        api.always = lambda _body: Say("hello")
        async with command("chat", "--once", "and hello") as chat:
            assert (await chat.end(seconds=60))[:2] == (0, "hello\n")
        await wait_until(lambda: not list(home.sessions.glob("*/*/outbound/files/*")))
        assert Path(file["path"]).read_text() == "forty-two"


@pytest.mark.req("R130")
@pytest.mark.fault(110)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_trap_is_refused_and_the_agent_hears_why_in_its_next_turn(
    home: Home, api: MessagesApi, environment: dict[str, str], runtime: str
) -> None:
    sends(api, "os.mkfifo('/workspace/outbound/files/o-file/pipe')", "pipe")
    async with running(home, environment) as (_, terminal):
        assert await terminal.ask("send me the file") == ["done"]
        api.always = lambda body: Say(
            "I see" if "it is no regular file" in json.dumps(body["messages"][-1]) else "what?"
        )
        assert await terminal.ask("where is it?") == ["I see"]
        [row] = rows(home, "SELECT state FROM deliveries WHERE id = 'o-file'")
        assert row["state"] == "failed"


@pytest.mark.req("R130", "R140")
@pytest.mark.parametrize("point", ["before_files_rename", "before_take_over", "after_take_over", "before_send"])
@pytest.mark.parametrize("runtime", ["process"])
async def test_a_host_that_is_killed_on_the_way_sends_the_file_once(
    home: Home, api: MessagesApi, environment: dict[str, str], tmp_path: Path, runtime: str, point: str
) -> None:
    sends(api, "open('/workspace/outbound/files/o-file/a.txt', 'w').write('forty-two')", "a.txt")
    async with running(home, environment) as (host, terminal):
        await host.stop()
        await host.start(INNKEEPER_CRASH_AT=f"{point}:1", INNKEEPER_CRASH_DIR=str(tmp_path))
        key = await terminal.send("send me the file")
        await host.wait()
        await host.start()
        await terminal.until(lambda: key in terminal.settled)
        await terminal.until(lambda: "here it is" in terminal.texts)
        assert terminal.texts.count("here it is") == 1
        [copy] = home.sessions.glob("*/*/sent/o-file/a.txt")
        assert copy.read_text() == "forty-two"
