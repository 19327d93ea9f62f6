"""What a person sees while the agent works: one line after a while, and a sign on a message that came meanwhile."""

import pytest
from sqlalchemy import Connection

from host.channels.base import Capabilities, InboundEvent
from host.db import messaging_group_agents, messaging_groups
from tests.fakes.recording_channel import Held
from tests.fakes.runtime import ScriptedSandbox
from tests.fleet.house import ADA, until
from tests.talk.conftest import HERE, Talk

PROGRESS = "I have been working for"


def lines(talk: Talk) -> list[str]:
    """The progress lines that were sent as messages of their own."""
    return [text for text in talk.channel.notices() if PROGRESS in text]


async def tools(talk: Talk, sandbox: ScriptedSandbox, number: int) -> None:
    """The runner says that so many tools run."""
    sandbox.write(f"UPDATE runner_state SET active_tools = {number}")
    sandbox.ring()
    await until(lambda: (state := talk.house.life().state) is not None and state.active_tools == number)


async def test_a_quick_turn_says_nothing_of_itself(talk: Talk) -> None:
    sandbox = await talk.house.turn()
    await talk.house.pass_time(14)
    sandbox.answer("done")
    await until(lambda: talk.channel.texts() == ["done"])
    await talk.house.pass_time(20)
    assert lines(talk) == []


async def test_a_long_turn_has_one_line_that_is_edited_as_tools_run_and_goes_when_the_answer_comes(talk: Talk) -> None:
    sandbox = await talk.house.turn()
    await talk.house.pass_time(16)
    [line] = lines(talk)
    assert "15 s." in line
    [outgoing] = [out for _, out in talk.channel.taken if out.notice]
    assert [button.label for button in outgoing.buttons] == ["Stop"]
    await tools(talk, sandbox, 2)
    await talk.house.pass_time(3)
    await tools(talk, sandbox, 1)
    await talk.house.pass_time(1)
    assert len(talk.channel.edits) == 1  # at most once in three seconds
    await talk.house.pass_time(3)
    assert [edit[1].partition("s, ")[2] for edit in talk.channel.edits] == ["2 tools run.", "one tool runs."]
    sandbox.answer("done")
    await until(lambda: talk.channel.deleted)
    assert talk.channel.deleted == [f"p-{outgoing.delivery_id}-0"]
    await talk.house.pass_time(20)
    assert len(lines(talk)) == 1
    assert len(talk.channel.edits) == 2


async def test_where_nothing_can_be_taken_back_the_line_says_how_long_it_took(talk: Talk) -> None:
    talk.channel.capabilities = Capabilities(edit=True)
    sandbox = await talk.house.turn()
    await talk.house.pass_time(16)
    sandbox.answer("done")
    await until(lambda: talk.channel.edits)
    assert talk.channel.edits[-1][1] == "That took 16 s."


async def test_where_nothing_can_be_edited_there_is_no_line(talk: Talk) -> None:
    talk.channel.capabilities = Capabilities(buttons=True)
    await talk.house.turn()
    await talk.house.pass_time(40)
    assert talk.channel.taken == []


async def test_a_line_that_is_on_its_way_when_the_answer_comes_is_never_behind_it(talk: Talk) -> None:
    sandbox = await talk.house.turn()
    held = Held()
    talk.channel.plan("42", held)
    await talk.house.pass_time(15)
    await until(lambda: talk.channel.calls)
    sandbox.answer("done")
    await until(lambda: not talk.house.life().busy)
    assert talk.channel.texts() == []
    held.release.set()
    await until(lambda: talk.channel.deleted)
    assert [out.notice for _, out in talk.channel.taken] == [True, False]


async def test_a_line_goes_with_its_sandbox_and_with_a_stop(talk: Talk) -> None:
    sandbox = await talk.house.turn()
    await talk.house.pass_time(16)
    sandbox.exit(137)
    await until(lambda: len(talk.channel.deleted) == 1)
    await talk.house.pass_time(6)
    following = await talk.house.sandbox(after=sandbox)
    assert following.claim("t-2")
    await until(lambda: talk.house.rows("processing"))
    await talk.house.pass_time(16)
    [_, outgoing] = [out for _, out in talk.channel.taken if PROGRESS in out.text]
    rung = following.rings
    await talk.click(outgoing.buttons[0].data)
    assert [row["status"] for row in talk.house.rows()] == ["cancelled"]
    await until(lambda: following.rings > rung)
    assert any("Stopped." in text for text in talk.channel.notices())


async def test_a_stop_button_of_another_chat_does_nothing(talk: Talk) -> None:
    await talk.house.turn()
    await talk.click(f"s:{talk.house.keys['42'].session_id}", chat="43")
    assert [row["status"] for row in talk.house.rows()] == ["processing"]
    await until(lambda: talk.channel.notices() == ["That button does nothing any more."])


@pytest.mark.fault(13)
@pytest.mark.parametrize(("mode", "sign"), [("steer", "\N{EYES}"), ("queue", "\N{OK HAND SIGN}")])
async def test_a_message_during_a_turn_gets_a_sign_of_what_becomes_of_it(talk: Talk, mode: str, sign: str) -> None:
    def choose(connection: Connection) -> None:
        chat = messaging_groups.at(connection, "telegram", "bot", "42")
        assert chat is not None
        messaging_group_agents.set_busy(connection, chat.id, mode)

    await talk.house.host.database.run(choose)
    await talk.house.host.routing.refresh()
    await talk.write("first", message_id="m-1")
    assert talk.channel.edits == []
    sandbox = await talk.house.sandbox()
    assert sandbox.claim()
    await until(lambda: talk.house.life().busy and talk.house.rows("processing"))
    await talk.write("second", message_id="m-2")
    assert talk.channel.edits == [("m-2", sign)]
    stamped = [row for row in talk.house.rows() if f'"busy":"{mode}"' in row["content"]]
    assert len(stamped) == (0 if mode == "steer" else 2)


@pytest.mark.fault(13)
@pytest.mark.parametrize("word", ["stop", "Stop!", "STOP."])
async def test_stop_alone_is_a_command_while_a_turn_runs_and_a_word_otherwise(talk: Talk, word: str) -> None:
    await talk.write(word)
    assert talk.heard() == [word]
    sandbox = await talk.house.sandbox()
    assert sandbox.claim()
    await until(lambda: talk.house.life().busy and talk.house.rows("processing"))
    await talk.write(word)
    assert talk.heard() == [word]
    assert [row["status"] for row in talk.house.rows()] == ["cancelled"]


async def test_no_progress_is_shown_while_a_question_waits(talk: Talk) -> None:
    sandbox = await talk.house.turn()
    await talk.ask(sandbox, "o-q")
    sandbox.write("UPDATE runner_state SET open_questions = 1, state = 'waiting'")
    sandbox.ring()
    await talk.house.pass_time(30)
    assert lines(talk) == []


async def test_a_redelivered_stop_ends_no_second_turn(talk: Talk) -> None:
    await talk.house.turn()
    assert talk.channel.accept is not None
    stop = InboundEvent("m:stop", HERE, ADA, "/stop")
    await talk.take(stop)
    await talk.write("and now?")
    await talk.take(stop)
    assert [row["status"] for row in talk.house.rows()] == ["cancelled", "pending"]
