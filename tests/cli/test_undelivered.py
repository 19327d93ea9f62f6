"""What has not arrived: listed whole, tried again, and said to who waits."""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator

from host.home import Home
from tests.cli.test_commands import host_up, run


@contextlib.contextmanager
def _central(home: Home) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(home.database)) as connection:
        yield connection
        connection.commit()


async def test_a_session_that_cannot_be_read_has_a_line_of_its_own_in_the_list(home: Home) -> None:
    assert (await run("chat", "--once", "hello"))[0] == 0
    [path] = home.sessions.glob("*/*/inbound/inbound.db")
    path.write_bytes(b"x" * 4096)
    code, out, _ = await run("--json", "messages")
    [row] = json.loads(out)
    assert code == 0
    assert row["state"] == "unreadable"
    assert row["session"] == path.parent.parent.name
    assert "cannot be read now" in row["text"]
    assert (await run("messages", "show", "last"))[0] == 5


async def test_a_message_of_the_host_itself_is_tried_again(home: Home) -> None:
    assert (await run("chat", "--once", "hello"))[0] == 0
    with _central(home) as connection:
        connection.execute(
            "INSERT INTO host_outbox (id, kind, timestamp, content, state, attempts, channel_type, account_id, "
            "platform_id) VALUES ('o-notice', 'chat', '2026-01-02T03:04:05.678Z', '{\"text\": \"a word\"}', 'failed', "
            "5, 'terminal', 'local', 'cli')"
        )
    code, out, _ = await run("--json", "status")
    assert json.loads(out)["messages"]["undelivered"] == 1
    async with host_up(home):
        code, out, err = await run("--json", "messages", "retry", "o-notice", "-y")
        assert code == 0, err
        assert json.loads(out)["attempts"] == 0
        code, out, _ = await run("chat", "--once", "hello")
        assert "a word" in out
        code, _, err = await run("messages", "retry", "o-notice", "-y")
        assert code == 4
        assert "has not failed" in err


async def test_who_writes_where_no_agent_answers_is_told_and_waits_no_longer(home: Home) -> None:
    assert (await run("chat", "--once", "hello"))[0] == 0
    with _central(home) as connection:
        connection.execute("DELETE FROM messaging_group_agents")
    async with asyncio.timeout(40):
        code, out, _ = await run("chat", "--once", "anybody?")
    assert code == 1
    assert "The message went to nobody: no agent answers in this chat." in out
