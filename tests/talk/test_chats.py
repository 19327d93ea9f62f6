"""What a person decides about a chat, by commands of a real host."""

import json

import pytest

from host.failure import EXIT_CODES, Code
from host.home import Home
from tests.cli.test_commands import run
from tests.whole.harness import rows, running, wait_until


@pytest.mark.fault(13)
async def test_a_chat_told_to_queue_keeps_messages_for_a_turn_of_their_own(home: Home) -> None:
    async with running(home, {"INNKEEPER_RUNTIME": "process"}) as (_, terminal):
        await terminal.ask("hello")
        code, out, _ = await run("chats", "set", "terminal", "--busy", "queue", "-y")
        assert (code, "turn of its own" in out) == (0, True)
        [chat] = json.loads((await run("--json", "chats"))[1])
        assert (chat["name"], chat["agents"], chat["busy"]) == ("terminal", ["main"], "queue")
        assert "queue" in (await run("chats", "show", "terminal"))[1]
        await terminal.send("/rehearse slow 2")
        await wait_until(lambda: bool(rows(home, "SELECT id FROM messages_in WHERE status = 'processing'")))
        last = await terminal.send("second")
        await terminal.until(lambda: last in terminal.settled)
        assert terminal.texts[-1] == "(rehearsal, no model) second"
        turns = rows(home, "SELECT turn_id FROM deliveries WHERE turn_id IS NOT NULL ORDER BY rowid DESC LIMIT 2")
        assert len({row["turn_id"] for row in turns}) == 2
        assert (await run("chats", "set", "terminal", "--busy", "interrupt", "-y"))[0] == EXIT_CODES[Code.USAGE]
        assert (await run("chats", "set", "nowhere", "--busy", "steer", "-y"))[0] == EXIT_CODES[Code.NOT_FOUND]
        assert (await run("--dry-run", "chats", "set", "terminal", "--busy", "steer"))[0] == 3
        assert json.loads((await run("--json", "chats"))[1])[0]["busy"] == "queue"
