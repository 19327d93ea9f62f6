"""Questions of agents: shown as buttons or as numbers, answered once, by whoever may, or ended by their time."""

import json
from typing import Any

import pytest
from sqlalchemy import Connection

from host.channels.base import Capabilities, InboundEvent, NotSent, Sender
from host.db import user_roles, users
from host.questions import answer_id_of, question_id_of
from mailboxes.clock import to_text
from tests.fleet.house import ADA, Machine, until
from tests.mailbox.made import row_of
from tests.talk.conftest import HERE, RICH, Talk

BOB = Sender("2", "Bob")
PLAIN = Capabilities()


@pytest.mark.req("R014", "R166", "R167", "R170")
@pytest.mark.fault(122)
async def test_a_click_is_the_answer_once_and_the_card_says_which(talk: Talk) -> None:
    sandbox = await talk.house.turn()
    assert await talk.pending() == []
    await talk.ask(sandbox, "o-q")
    [pending] = await talk.pending()
    assert (pending.session_id, pending.message_out_id) == (talk.house.keys["42"].session_id, "o-q")
    assert pending.address == HERE
    red, blue = talk.buttons("o-q")
    assert (red.label, blue.label) == ("Red", "Blue")
    assert max(len(button.data.encode()) for button in (red, blue)) <= 64
    await talk.click(blue.data)
    assert await talk.pending() == []
    question_id = question_id_of("o-q")
    answer = row_of(talk.house.folder(), answer_id_of(question_id))
    assert (answer["kind"], answer["principal"], answer["trigger"]) == ("system", "telegram:1", 1)
    assert json.loads(answer["content"]) == {
        "questionId": question_id, "selectedOption": "b", "label": "Blue", "title": "Paint", "question": "Which?"
    }  # fmt: skip
    await until(lambda: talk.channel.edits)
    assert talk.channel.edits[-1][1].endswith("→ Blue it is (Ada)")
    assert talk.channel.buttons[talk.channel.edits[-1][0]] == ()


@pytest.mark.req("R169")
async def test_a_late_or_second_click_changes_nothing_and_is_answered_once(talk: Talk) -> None:
    await talk.ask(await talk.house.turn(), "o-q")
    red, blue = talk.buttons("o-q")
    await talk.click(red.data)
    for _ in range(3):
        await talk.click(blue.data)
    assert [answer["selectedOption"] for answer in talk.answers()] == ["r"]
    await until(talk.channel.notices)
    assert talk.channel.notices() == ["That question is closed already: it was answered, or its time is over."]
    await talk.click("q:0123456789abcdef:0", BOB)
    await until(lambda: len(talk.channel.notices()) == 2)


@pytest.mark.req("R169")
async def test_two_clicks_that_come_together_are_one_answer(talk: Talk) -> None:
    await talk.ask(await talk.house.turn(), "o-q")
    red, blue = talk.buttons("o-q")
    assert talk.channel.accept is not None
    both = [InboundEvent(f"click:{b.label}", HERE, ADA, click=b.data) for b in (red, blue)]
    await talk.channel.accept(both, None)
    await talk.house.host.reception.intake.idle()
    assert [answer["selectedOption"] for answer in talk.answers()] == ["r"]
    await until(talk.channel.notices)


@pytest.mark.req("R169")
@pytest.mark.fault(116)
async def test_a_click_from_another_chat_or_by_somebody_else_leaves_the_question_open(talk: Talk) -> None:
    await talk.house.host.database.run(
        lambda c: c.exec_driver_sql("UPDATE messaging_groups SET unknown_sender_policy = 'strict'") and None
    )
    await _make_owner(talk)
    await talk.ask(await talk.house.turn(), "o-q")
    red, blue = talk.buttons("o-q")
    await talk.click(red.data, ADA, chat="43")
    await talk.click(red.data, BOB)
    await until(lambda: len(talk.channel.notices()) == 2)
    foreign, forbidden = talk.channel.notices()
    assert "another chat" in foreign
    assert "may not answer" in forbidden
    assert talk.answers() == []
    await talk.click(blue.data)
    assert [answer["selectedOption"] for answer in talk.answers()] == ["b"]


@pytest.mark.req("R137", "R170")
@pytest.mark.parametrize("text", ["2", "2.", " blue ", "b", "@bot 2"])
async def test_where_there_are_no_buttons_the_number_or_the_words_answer(talk: Talk, text: str) -> None:
    talk.channel.capabilities = PLAIN
    await talk.ask(await talk.house.turn(), "o-q")
    assert talk.channel.texts() == ["**Paint**\n\nWhich?\n\n1. Red\n2. Blue\n\nWrite the number of your answer."]
    await talk.write("3")
    await talk.write("2", chat="43")
    assert talk.answers() == []
    await talk.write(text)
    assert [answer["selectedOption"] for answer in talk.answers()] == ["b"]
    assert talk.heard() == ["hello", "3"]


@pytest.mark.req("R137", "R166")
@pytest.mark.parametrize("buttons", [True, False])
@pytest.mark.parametrize("edit", [True, False])
async def test_a_question_is_answered_whatever_the_platform_can(talk: Talk, *, buttons: bool, edit: bool) -> None:
    talk.channel.capabilities = Capabilities(buttons=buttons, edit=edit)
    await talk.ask(await talk.house.turn(), "o-q")
    assert bool(talk.buttons("o-q")) == buttons
    assert ("1. Red" in talk.channel.texts()[0]) == (not buttons)
    if buttons:
        await talk.click(talk.buttons("o-q")[0].data)
    else:
        await talk.write("1")
    assert [answer["selectedOption"] for answer in talk.answers()] == ["r"]
    await talk.house.settle()
    assert bool(talk.channel.edits) == edit


@pytest.mark.req("R170")
async def test_several_open_questions_do_not_mix(talk: Talk) -> None:
    talk.channel.capabilities = PLAIN
    sandbox = await talk.house.turn()
    await talk.ask(sandbox, "o-walls", "Walls?")
    await talk.ask(sandbox, "o-doors", "Doors?")
    assert "This is question 2" in talk.channel.texts()[1]
    assert "1.1, 1.2 ... question 1" in talk.channel.texts()[1]
    await talk.write("1")
    await talk.write("1.2")
    assert [(answer["question"], answer["selectedOption"]) for answer in talk.answers()] == [
        ("Doors?", "r"),
        ("Walls?", "b"),
    ]


@pytest.mark.req("R169")
@pytest.mark.fault(120)
async def test_a_question_whose_time_is_over_ends_with_one_row_that_says_so(talk: Talk) -> None:
    await talk.ask(await talk.house.turn(), "o-q", timeout=60)
    await talk.house.pass_time(58)
    await talk.house.host.reception.questions.tick()
    assert talk.answers() == []
    await talk.house.pass_time(3)
    await talk.house.host.reception.questions.tick()
    [answer] = talk.answers()
    assert (answer["error"], answer["question"]) == ("expired", "Which?")
    assert await talk.pending() == []
    await talk.click(talk.buttons("o-q")[0].data)
    assert len(talk.answers()) == 1
    await until(talk.channel.notices)
    assert talk.channel.edits[-1][1].endswith("Nobody answered in time.")


@pytest.mark.req("R166")
async def test_a_card_that_is_not_delivered_leaves_no_open_question(talk: Talk) -> None:
    sandbox = await talk.house.turn()
    talk.channel.plan("42", NotSent("blocked", permanent=True))
    talk.say_question(sandbox, "o-q")
    await until(lambda: any(row["kind"] == "system" for row in talk.house.rows()))
    assert await talk.pending() == []
    assert row_of(talk.house.folder(), "o-q", "deliveries")["state"] == "failed"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"options": []}, "needs 1 to 20 options"),
        ({"options": [{"value": "x"}]}, "needs a label"),
        ({"options": ["a"], "approval": True}, "two options"),
        ({"title": "", "question": " "}, "needs a title or a text"),
    ],
)
async def test_what_asks_nothing_is_not_shown_and_the_agent_hears_why(
    talk: Talk, content: dict[str, Any], reason: str
) -> None:
    sandbox = await talk.house.turn()
    talk.say_question(sandbox, "o-q", **content)
    await until(lambda: any(reason in row["content"] for row in talk.house.rows()))
    assert talk.channel.taken == []


@pytest.mark.fault(120)
async def test_a_card_of_an_earlier_host_still_works(machine: Machine) -> None:
    async with machine.host(("42",)) as house:
        house.channel.capabilities = RICH
        talk = Talk(house)
        await talk.ask(await house.turn(), "o-q")
        [red, _] = talk.buttons("o-q")
        await house.die()
    async with machine.host(("42",)) as house:
        house.channel.capabilities = RICH
        again = Talk(house)
        await again.click(red.data)
        assert [answer["selectedOption"] for answer in again.answers()] == ["r"]


@pytest.mark.req("R137")
@pytest.mark.fault(116)
async def test_an_approval_takes_its_code_and_somebody_who_may(talk: Talk) -> None:
    talk.channel.capabilities = PLAIN
    await _make_owner(talk)
    options = [{"label": "Approve", "value": "approve"}, {"label": "Reject", "value": "reject"}]
    await talk.ask(await talk.house.turn(), "o-q", "Delete all?", options=options, approval=True)
    [text] = talk.channel.texts()
    code = text.partition("`approve ")[2].partition("`")[0]
    assert len(code) == 6
    for word in ("1", "approve", "approve 000000"):
        await talk.write(word)
    await talk.write(f"approve {code}", BOB)
    assert talk.answers() == []
    await talk.write(f"reject {code}")
    assert [answer["selectedOption"] for answer in talk.answers()] == ["reject"]


async def _make_owner(talk: Talk) -> None:
    """Ada owns the host."""
    now = to_text(talk.house.clock.now())

    def make(connection: Connection) -> None:
        users.create_user(connection, "telegram:1", now)
        user_roles.grant_role(connection, "telegram:1", "owner", None, now)

    await talk.house.host.database.run(make)
    await talk.house.host.routing.refresh()
