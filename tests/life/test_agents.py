"""Agents that talk to each other, through a whole host and real sandboxes of either kind.

What one of them sends is written by its shell, as whatever a sandbox may bring itself to write.
"""

import json
import shlex
from typing import Any

import pytest

from host.home import Home
from tests.cli.test_commands import run
from tests.fakes.messages_api import Behaviour, MessagesApi, Say, Use
from tests.life.test_files_in import RUNTIMES, api, environment
from tests.whole.harness import rows, running, wait_until

__all__ = ["api", "environment"]

SEND = """
import json, os, sqlite3
to, text = TO, "what is it?"
for row in ("o-asked", "o-trap"):
    os.makedirs("/workspace/outbound/files/" + row)
open("/workspace/outbound/files/o-asked/facts.txt", "w").write("a fact: 6 * 7")
os.symlink("/etc/passwd", "/workspace/outbound/files/o-trap/trap.txt")
db = sqlite3.connect("/workspace/outbound/outbound.db", timeout=10, isolation_level=None)
db.execute("BEGIN IMMEDIATE")
seq, turn = db.execute("SELECT next_seq, turn_id FROM runner_state").fetchone()
cause = db.execute("SELECT message_id FROM claims WHERE state = 'processing'").fetchone()[0]
for number, (row, files) in enumerate({"o-asked": ["facts.txt"], "o-trap": ["trap.txt"]}.items()):
    content = json.dumps({"text": text, "files": files, "sender": "root", "senderId": "terminal:cli-user"})
    db.execute(
        "INSERT INTO messages_out (id, seq, turn_id, in_reply_to, timestamp, kind, channel_type, account_id, "
        "platform_id, content) VALUES (?, ?, ?, ?, '2026-01-01T00:00:00.000Z', 'chat', 'agent', '', ?, ?)",
        (row, seq + 2 * number, turn, cause, to, content),
    )
db.execute("UPDATE runner_state SET next_seq = next_seq + 4")
db.execute("COMMIT")
print("sent")
"""


def last_of(body: dict[str, Any]) -> str:
    return json.dumps(body["messages"][-1])


@pytest.mark.req("R172", "R173", "R174", "R175", "R130")
@pytest.mark.fault(110, 111)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_person_asks_an_agent_that_asks_another_and_gets_the_answer(
    home: Home, api: MessagesApi, environment: dict[str, str], runtime: str
) -> None:
    helper = ""

    def choose(body: dict[str, Any]) -> Behaviour:
        last = last_of(body)
        if "tool_result" in last:
            return Say("I have asked" if "sent" in last else f"that went wrong: {last}")
        if "ask the helper" in last:
            script = SEND.replace("TO", repr(helper), 1)
            return Use((("bash", {"command": f"python3 -c {shlex.quote(script)}"}),))
        if "what is it?" in last:
            return Say("it is 42")
        return Say("they say 42" if "it is 42" in last else "nothing to say")

    api.always = choose
    async with running(home, environment) as (_, terminal):
        await terminal.ask("hello")
        code, out, err = await run("-y", "--json", "agents", "add", "helper")
        assert code == 0, err
        helper = json.loads(out)["id"]
        assert await terminal.ask("ask the helper") == ["I have asked"]
        await wait_until(lambda: told(home, "may not write to that agent"))
        assert len(rows(home, "SELECT id FROM messages_in WHERE content LIKE '%what is it%'")) == 0

        assert (await run("-y", "agents", "connect", "main", "helper"))[0] == 0
        await run("-y", "messages", "retry", "o-asked")
        await terminal.until(lambda: terminal.texts[-1] == "they say 42")
        [row] = rows(home, "SELECT * FROM messages_in WHERE content LIKE '%what is it%'")
        content = json.loads(row["content"])
        assert (content["sender"], content["senderId"][:6]) == ("main", "agent:")
        assert row["principal"] == "terminal:cli-user"
        [entry] = content["attachments"]
        [copy] = home.sessions.glob(f"{helper}/*/inbound/files/{row['id']}/{entry['file']}")
        assert copy.read_text() == "a fact: 6 * 7"
        assert any("facts.txt" in call.raw.decode() and "what is it?" in call.raw.decode() for call in api.calls)
        assert told(home, "'trap.txt' is not taken: it is a link")
        assert not [path for path in home.sessions.rglob("trap.txt") if "outbound" not in path.parts]
        assert terminal.notices == []


def told(home: Home, words: str) -> bool:
    """Whether an agent was told of a delivery that failed for that reason."""
    found = rows(home, "SELECT content FROM messages_in WHERE kind = 'system' AND content LIKE '%delivery_failed%'")
    return any(words in row["content"] for row in found)
