"""What an agent asks of the host is done in order and answered once, whatever the handler does."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from host import acting as acting_module
from host.acting import Acting, ActionRefused
from host.due import DueIndex
from host.home import Home
from host.items import Action, SessionRef
from host.mailbox_pool import MailboxPool
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, make_session, message, table


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    return make_session(Home(tmp_path, tmp_path / "run").session_folder(KEY.agent_group_id, KEY.session_id))


@pytest.fixture
async def pool(tmp_path: Path, folder: Path, clock: FakeClock) -> AsyncIterator[MailboxPool]:
    async def evict(_key: SessionRef) -> None:
        return None

    made = MailboxPool(Home(tmp_path, tmp_path / "run"), clock, evict)
    await made.call(KEY, lambda mailbox: mailbox.put([message("m-1", status="completed")]))
    yield made
    await made.close()


async def itself(key: SessionRef) -> SessionRef:
    return key


async def ask(pool: MailboxPool, *names: str) -> None:
    def work(mailbox: Any) -> None:
        def insert(db: Any) -> None:
            for name in names:
                db.execute(
                    "INSERT INTO deliveries (id, in_reply_to, kind, timestamp, content, state) "
                    "VALUES (?, 'm-1', 'system', '', ?, 'queued')",
                    (f"o-{name}", json.dumps({"action": name, "payload": {"of": name}})),
                )

        mailbox.write(insert)

    await pool.call(KEY, work)


def answers(folder: Path) -> list[tuple[str, str, object]]:
    found = [json.loads(row["content"]) for row in table(folder, "messages_in") if row["kind"] == "system"]
    return [(content["action"], content["status"], content["result"]) for content in found]


@pytest.mark.req("R177")
async def test_each_action_is_answered_in_order_and_what_breaks_breaks_alone(
    pool: MailboxPool, folder: Path, clock: FakeClock
) -> None:
    async def good(_key: SessionRef, action: Action) -> object:
        return action.payload

    async def refuses(_key: SessionRef, _action: Action) -> object:
        raise ActionRefused("Not before noon.")

    async def breaks(_key: SessionRef, _action: Action) -> object:
        raise RuntimeError("SECRET")

    woken: list[SessionRef] = []
    acting = Acting(pool, DueIndex(), {"good": good, "refuses": refuses, "breaks": breaks}, woken.append, clock, itself)
    await ask(pool, "good", "refuses", "breaks", "unknown")
    await acting.answer(KEY)
    await acting.answer(KEY)
    assert answers(folder) == [
        ("good", "success", {"of": "good"}),
        ("refuses", "error", "Not before noon."),
        ("breaks", "error", "That went wrong inside the host. Its log says why."),
        ("unknown", "error", "There is no action 'unknown'."),
    ]
    assert set(woken) == {KEY}


@pytest.mark.req("R177")
async def test_an_action_whose_answer_was_lost_is_done_again_and_answered_once(
    pool: MailboxPool, folder: Path, clock: FakeClock
) -> None:
    done: list[str] = []

    async def once_held_up(_key: SessionRef, action: Action) -> object:
        done.append(action.id)
        if len(done) == 1:
            raise KeyboardInterrupt  # the host ends between effect and answer
        return "done"

    acting = Acting(pool, DueIndex(), {"tea": once_held_up}, lambda _key: None, clock, itself)
    await ask(pool, "tea")
    with pytest.raises(KeyboardInterrupt):
        await acting.answer(KEY)
    assert answers(folder) == []
    await acting.answer(KEY)
    assert (done, answers(folder)) == (["o-tea", "o-tea"], [("tea", "success", "done")])


@pytest.mark.req("R177")
async def test_a_flood_of_actions_is_answered_in_part_and_dropped_with_one_word(
    pool: MailboxPool, folder: Path, clock: FakeClock
) -> None:
    done: list[str] = []

    async def good(_key: SessionRef, action: Action) -> object:
        done.append(action.id)
        return "done"

    most = acting_module.MOST_IN_WINDOW
    names = [f"n{number}" for number in range(most + 50)]
    acting = Acting(pool, DueIndex(), dict.fromkeys(names, good), lambda _key: None, clock, itself)
    await ask(pool, *names)
    await acting.answer(KEY)
    assert done == [f"o-{name}" for name in names[:most]]
    assert [result for _, status, result in answers(folder) if status == "error"] == [
        "More than 200 actions within 10 minutes. Those beyond were dropped. Wait before you ask again."
    ]
    await ask(pool, "again")
    await acting.answer(KEY)
    assert len(answers(folder)) == most + 1, "nothing more is said within the window"
    await clock.advance(acting_module.WINDOW_SECONDS)
    await ask(pool, "later")
    await acting.answer(KEY)
    assert answers(folder)[-1] == ("later", "error", "There is no action 'later'.")
