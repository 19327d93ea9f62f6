"""Questions and commands in a chat, through a whole host and real sandboxes of either kind.

The question is written by the agent's shell, as whatever a sandbox may bring itself to write.
"""

import json
import shlex
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from host.home import Home
from tests.fakes.messages_api import Behaviour, MessagesApi, Say, Use
from tests.life.test_files_in import RUNTIMES, api, environment
from tests.whole.harness import rows, running, wait_until

__all__ = ["api", "environment"]

ASK = """
import json, sqlite3
db = sqlite3.connect("/workspace/outbound/outbound.db", timeout=10, isolation_level=None)
db.execute("BEGIN IMMEDIATE")
seq, turn = db.execute("SELECT next_seq, turn_id FROM runner_state").fetchone()
cause = db.execute("SELECT message_id FROM claims WHERE state = 'processing'").fetchone()[0]
options = [{"label": "Red", "value": "r"}, {"label": "Blue", "value": "b", "selectedLabel": "Blue it is"}]
content = {"operation": "ask_question", "questionId": "forged", "title": "Paint", "question": "Which colour?",
           "options": options, "timeout": 300}
to = TO
db.execute(
    "INSERT INTO messages_out (id, seq, turn_id, in_reply_to, timestamp, kind, channel_type, account_id, platform_id, "
    "content) VALUES ('o-asked', ?, ?, ?, '2026-01-01T00:00:00.000Z', 'chat-sdk', ?, ?, ?, ?)",
    (seq, turn, cause, *to, json.dumps(content)),
)
db.execute("UPDATE runner_state SET next_seq = next_seq + 2")
db.execute("COMMIT")
print("sent")
"""


def pending(home: Home) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{home.database.as_uri()}?mode=ro", uri=True)) as central:
        return central.execute("SELECT message_out_id, channel_type, platform_id FROM pending_questions").fetchall()


@pytest.mark.req("R014", "R166", "R167", "R169", "R137")
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_a_question_is_answered_by_its_number_and_the_agent_that_no_longer_waits_hears_it(
    home: Home, api: MessagesApi, environment: dict[str, str], runtime: str
) -> None:
    def choose(body: dict[str, Any]) -> Behaviour:
        last = json.dumps(body["messages"][-1])
        if "tool_result" in last:
            return Say("I have asked" if "sent" in last else f"that went wrong: {last}")
        if "ask me" in last:
            [message] = rows(home, "SELECT * FROM messages_in WHERE content LIKE '%ask me%'")
            script = ASK.replace(
                "TO", repr((message["channel_type"], message["account_id"], message["platform_id"])), 1
            )
            return Use((("bash", {"command": f"python3 -c {shlex.quote(script)}"}),))
        return Say("blue paint is on its way" if "Blue" in last and "Which colour?" in last else "a plain message")

    api.always = choose
    async with running(home, environment) as (_, terminal):
        await terminal.ask("hello")
        assert pending(home) == []
        await terminal.ask("ask me")
        await terminal.until(lambda: any("2. Blue" in text for text in terminal.texts))
        await wait_until(lambda: [row[0] for row in pending(home)] == ["o-asked"])
        await terminal.send("2")
        await terminal.until(lambda: terminal.texts[-1] == "blue paint is on its way")
        assert pending(home) == []
        [answer] = rows(home, "SELECT * FROM messages_in WHERE content LIKE '%selectedOption%'")
        content = json.loads(answer["content"])
        assert (answer["kind"], content["selectedOption"]) == ("system", "b")
        assert content["questionId"] != "forged"
        assert (await terminal.ask("2"))[-1] == "a plain message"  # nothing is open: it is what it says
        assert len(rows(home, "SELECT id FROM messages_in WHERE content LIKE '%selectedOption%'")) == 1


@pytest.mark.fault(12)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_stop_ends_the_turn_and_says_so_and_the_next_message_is_answered(
    home: Home, request: pytest.FixtureRequest, runtime: str
) -> None:
    if runtime == "docker":
        request.getfixturevalue("agent_image")
    async with running(home, {"INNKEEPER_RUNTIME": runtime}) as (_, terminal):
        await terminal.ask("hello")
        slow = await terminal.send("/rehearse slow 600")
        await wait_until(lambda: bool(rows(home, "SELECT id FROM messages_in WHERE status = 'processing'")))
        await terminal.send("/stop")
        await terminal.until(lambda: slow in terminal.settled)
        await terminal.until(lambda: any("Stopped." in text for text in [*terminal.texts, *terminal.notices]))
        assert (await terminal.ask("and now?"))[-1] == "(rehearsal, no model) and now?"
        [row] = rows(home, "SELECT status FROM messages_in WHERE content LIKE '%slow 600%'")
        assert row["status"] == "cancelled"
        assert not rows(home, "SELECT id FROM messages_in WHERE content LIKE '%/stop%'")
        for word in ("/help", "/status", "/tasks", "/usage", "/new"):
            before = len(terminal.notices)
            await terminal.ask(word)
            assert len(terminal.notices) > before
        assert not rows(home, "SELECT id FROM messages_in WHERE content LIKE '%/tasks%'")


@pytest.mark.req("R113", "R115", "R116", "R117", "R120", "R177")
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_an_agent_speaks_edits_and_plans_by_its_tools(
    home: Home, request: pytest.FixtureRequest, runtime: str
) -> None:
    if runtime == "docker":
        request.getfixturevalue("agent_image")
    async with running(home, {"INNKEEPER_RUNTIME": runtime}) as (_, terminal):

        async def call(tool: str, **arguments: object) -> str:
            return (await terminal.ask(f"/rehearse call {tool} {json.dumps(arguments)}"))[-1]

        await terminal.ask("hello")
        assert "Sent as message" in await call("send_message", text="I look into it")
        assert "I look into it" in terminal.texts
        made = await call("schedule_task", prompt="water the plants", recurrence="0 9 * * *", zone="Europe/Berlin")
        task = json.loads(made.partition(" says: ")[2])
        assert (task["zone"], task["recurrence"]) == ("Europe/Berlin", "0 9 * * *")
        assert task["task_id"] in await call("list_tasks")
        assert "Error:" in await call("schedule_task", prompt="x", recurrence="61 * * * *")
        await call("pause_task", task_id=task["task_id"])
        await call("cancel_task", task_id=task["task_id"])
        assert task["task_id"] not in await call("list_tasks")
        assert "Error:" in await call("cancel_task", task_id="task-of-nobody")
        assert '"sessions"' in await call("read_session")
        assert "Error:" in await call("read_session", session_id="s-of-nobody")
        assert {row["status"] for row in rows(home, "SELECT status FROM messages_in WHERE kind = 'system'")} == {
            "completed"
        }
        assert (await terminal.ask("and now?"))[-1] == "(rehearsal, no model) and now?"
