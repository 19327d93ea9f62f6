"""The commands as a person runs them: real processes, a real host where one is needed."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from host.control import AsyncControlClient
from host.failure import EXIT_CODES, Code
from host.home import Home
from host.lock import holder
from tests.terminal.conftest import command

SLOW_TO_IMPORT = {"sqlalchemy", "alembic", "docker", "prompt_toolkit", "anthropic", "httpx", "structlog", "asyncio"}


async def run(*words: str, text: bytes = b"") -> tuple[int, str, str]:
    async with command(*words) as running:
        return await running.end(text, seconds=40)


@contextlib.asynccontextmanager
async def host_up(home: Home) -> AsyncIterator[asyncio.subprocess.Process]:
    """`host up`, serving."""
    async with command("up") as up:
        assert up.process.stderr is not None
        async with asyncio.timeout(40):
            while b"The host runs on" not in (line := await up.process.stderr.readline()):
                assert line, "the host ended before it was ready"
        reading = asyncio.create_task(up.process.stderr.read())
        try:
            yield up.process
        finally:
            if up.process.returncode is None:
                up.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                await up.process.wait()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("words", [["--help"], ["status"], ["agents", "--help"], ["version"]])
def test_what_must_answer_at_once_imports_nothing_slow(home: Home, words: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "host", *words], capture_output=True, text=True, check=False, cwd="/"
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ran.stderr.splitlines()}
    assert "json" in imported
    assert not imported & SLOW_TO_IMPORT
    # What is looked at most has to be there at once: not even the parser of the others.
    assert ("click" in imported) == (words not in (["--help"], ["status"]))


async def test_what_the_help_names_can_be_run_and_has_a_help_of_its_own(home: Home) -> None:
    code, out, _ = await run("help", "--json")
    assert code == 0
    tree = json.loads(out)
    names = [child["name"] for child in tree["commands"]]
    assert {"setup", "chat", "up", "down", "restart", "status", "logs", "build", "config", "version"} <= set(names)
    verbs = {child["name"]: {verb["name"] for verb in child.get("commands", [])} for child in tree["commands"]}
    assert verbs["agents"] == {"list", "show", "add", "connect", "disconnect"}
    assert verbs["chats"] == {"list", "show", "set"}
    assert verbs["sessions"] == {"list", "show"}
    assert verbs["messages"] == {"list", "show", "retry"}
    assert verbs["config"] == {"list", "get", "set", "unset"}
    assert all(child["help"] for child in tree["commands"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["frobnicate"], Code.USAGE),
        (["chat", "--nonsense"], Code.USAGE),
        (["down"], Code.NO_HOST),
        (["restart"], Code.NO_HOST),
        (["build"], Code.NO_HOST),
        (["agents", "list"], Code.NO_HOST),
        (["--home", "/proc/1/nowhere", "agents", "add", "x"], Code.REFUSED),
    ],
)
async def test_a_failure_has_its_exit_code_and_in_json_its_shape_on_standard_error(
    home: Home, words: list[str], code: Code
) -> None:
    exit_code, out, err = await run(*words, "--json")
    assert exit_code == EXIT_CODES[code]
    assert out == ""
    error = json.loads(err)["error"]
    assert set(error) == {"code", "message", "next"}
    assert error["code"] == code
    plain_code, _, plain = await run(*words)
    assert plain_code == exit_code
    assert "Traceback" not in plain
    assert error["message"] in plain


async def test_a_home_that_others_can_write_is_refused_with_the_line_that_fixes_it(home: Home) -> None:
    home.root.chmod(0o777)
    code, _, err = await run("status")
    assert code == 4
    assert f"chmod go-w '{home.root}'" in err


async def test_status_of_a_stopped_host_reads_the_files_and_says_how_to_start_it(home: Home) -> None:
    code, out, _ = await run("status")
    assert code == 3
    assert "stopped" in out
    assert "host up" in out
    code, out, _ = await run("--json", "status")
    assert json.loads(out)["host"]["state"] == "stopped"


async def test_setup_without_a_terminal_changes_nothing_and_says_what_is_missing(home: Home) -> None:
    before = sorted(path.relative_to(home.root) for path in home.root.rglob("*"))
    code, out, _ = await run("setup")
    assert code == 3
    assert "key        none" in out
    assert "time zone" in out
    assert sorted(path.relative_to(home.root) for path in home.root.rglob("*")) == before


@pytest.mark.req("R066")
async def test_chat_runs_a_host_for_as_long_as_one_talks_and_leaves_none(home: Home) -> None:
    code, out, _ = await run("chat", text=b"hello\nagain\n")
    assert code == 0
    assert [line.rpartition(" ")[2] for line in out.splitlines()] == ["hello", "again"]
    assert holder(home.lock_file) is None
    code, out, _ = await run("--json", "messages")
    found = json.loads(out)
    assert code == 0
    assert [row["direction"] for row in reversed(found)] == ["in", "out", "in", "out"]
    assert {row["state"] for row in found} == {"completed", "sent"}


async def test_a_killed_chat_leaves_no_host_behind(home: Home) -> None:
    async with command("chat") as chat:
        async with asyncio.timeout(40):
            while holder(home.lock_file) is None:
                await asyncio.sleep(0.02)
            chat.process.kill()
            await chat.process.wait()
            while holder(home.lock_file) is not None:
                await asyncio.sleep(0.02)


@pytest.mark.req("R274")
async def test_the_whole_round_on_a_running_host(home: Home) -> None:
    async with host_up(home) as up:
        # A second host is refused, and says which process holds the home.
        code, _, err = await run("up")
        assert code == 4
        assert f"process {up.pid}" in err

        # Chat attaches to it and does not end it.
        assert (await run("chat", "--once", "hello"))[0] == 0
        assert holder(home.lock_file) == up.pid

        code, out, _ = await run("--json", "status")
        assert json.loads(out)["host"]["pid"] == up.pid
        code, out, _ = await run("status")
        assert "model      none: a rehearsal answers" in out
        assert "channels   terminal ok" in out
        assert ": 1 live, 0 at work, 0 waiting. Containers:" in out
        assert "None" not in out
        assert code in {0, 3}  # 3 where containers could be used and cannot: processes do as well

        # A new agent has a chat of its own.
        code, out, _ = await run("agents", "add", "Night porter", "-y")
        assert code == 0, out
        code, out, _ = await run("chat", "--agent", "night-porter", "--once", "good evening")
        assert code == 0
        assert "good evening" in out
        code, out, _ = await run("--json", "sessions")
        assert {row["agent"] for row in json.loads(out)} == {"main", "Night porter"}

        # Settings say where they come from; a wrong one is refused.
        assert (await run("config", "set", "idle_minutes", "10", "-y"))[0] == 0
        code, out, _ = await run("--json", "config", "get", "idle_minutes")
        assert json.loads(out) == {"name": "idle_minutes", "value": "10", "source": "database"}
        code, _, err = await run("config", "set", "idle_minutes", "soon", "-y")
        assert code == 2
        assert "a number above 0" in err
        assert (await run("config", "unset", "idle_minutes", "-y"))[0] == 0

        # Restart is a new program in the same process; down ends it.
        code, _, err = await run("restart")
        assert code == 0, err
        assert holder(home.lock_file) == up.pid
        assert (await run("down"))[0] == 0
        assert await up.wait() == 0
    assert (await run("agents", "show", "main"))[0] == 0
    assert (await run("logs", "-n", "5"))[0] == 0


async def test_what_nobody_has_got_yet_is_listed_and_shown_to_who_attaches_next(home: Home) -> None:
    async with host_up(home):
        async with await AsyncControlClient.connect(home.control_socket) as client:
            await client.call("chat.send", chat="cli", text="anybody there?", key="12345678")
        found: list[dict[str, object]] = []
        async with asyncio.timeout(40):
            while not found:
                found = json.loads((await run("--json", "messages", "list", "--undelivered"))[1])
        assert [row["text"] for row in found] == ["(rehearsal, no model) anybody there?"]
        assert found[0]["state"] == "queued"
        assert found[0]["attempts"] == 0
        code, out, _ = await run("chat", "--once", "me now")
        assert code == 0
        assert [line.rpartition(") ")[2] for line in out.splitlines()] == ["anybody there?", "me now"]
        assert json.loads((await run("--json", "messages", "list", "--undelivered"))[1]) == []


async def test_logs_are_followed_over_a_rotation(home: Home) -> None:
    path = home.logs / "host.log"
    path.write_text('{"time": "2026-01-02T03:04:05.678Z", "level": "info", "event": "first"}\n')
    async with command("logs", "-f") as logs:
        assert logs.process.stdout is not None
        async with asyncio.timeout(20):
            assert await logs.process.stdout.readline() == b"2026-01-02 03:04:05 first\n"
            with path.open("a") as file:
                file.write('{"level": "info", "event": "second"}\n')
            assert await logs.process.stdout.readline() == b"second\n"
            path.rename(home.logs / "host.log.1")
            path.write_text('{"level": "error", "event": "third\\u001b"}\n')
            assert await logs.process.stdout.readline() == "ERROR third\ufffd\n".encode()
        logs.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            assert await logs.process.wait() == 130


async def test_a_change_without_a_terminal_needs_y_and_a_dry_run_changes_nothing(home: Home) -> None:
    assert (await run("chat", "--once", "hello"))[0] == 0
    code, _, err = await run("agents", "add", "porter")
    assert code == 4
    assert "-y" in err
    code, out, _ = await run("--dry-run", "agents", "add", "porter")
    assert code == 3
    assert "Add the agent porter" in out
    assert "porter" not in (await run("agents"))[1]
    code, _, err = await run("agents", "show", "nobody")
    assert code == 5
    assert "nobody" in err


async def test_tables_are_plain_where_no_terminal_is(home: Home) -> None:
    code, out, _ = await run("chat", "--once", "hello")
    assert code == 0
    code, out, _ = await run("agents")
    assert out.splitlines()[0].split()[:2] == ["NAME", "FOLDER"]
    assert "\x1b" not in out
