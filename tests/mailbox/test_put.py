"""What comes in gets an even number of its own, once."""

from dataclasses import replace
from pathlib import Path

import pytest

from host.mailbox import Mailbox
from mailboxes.clock import later, to_text
from mailboxes.rows import ClaimState, InStatus, Kind
from tests.fakes.clock import FakeClock
from tests.mailbox.made import CHAT, claim, message, row_of, said, snapshot, table, take


@pytest.mark.req("R020")
def test_rows_get_even_numbers_in_order_and_a_time_of_their_status(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    assert mailbox.put([message("m-1"), message("m-2")]) == 2
    take(mailbox, snapshot([said("o-1", 5)]))
    assert mailbox.put([message("m-3")]) == 1
    assert [(row["id"], row["seq"], row["status_changed"]) for row in table(folder, "messages_in")] == [
        (name, seq, to_text(clock.now())) for name, seq in (("m-1", 2), ("m-2", 4), ("m-3", 6))
    ]


@pytest.mark.req("R026")
def test_a_row_that_is_known_is_left_as_it_is(mailbox: Mailbox, folder: Path) -> None:
    mailbox.put([message("m-1", tries=0)])
    take(mailbox, snapshot(claims=[claim(state=ClaimState.COMPLETED)]))
    assert mailbox.put([message("m-1", content='{"text": "changed"}'), message("m-2")]) == 1
    first, second = table(folder, "messages_in")
    assert (first["status"], first["content"]) == ("completed", '{"text": "hi"}')
    assert second["seq"] == 4


def test_a_row_comes_back_as_it_was_put(mailbox: Mailbox) -> None:
    put = message(
        kind=Kind.TASK, process_after="2026-01-02T00:00:00.000Z", recurrence="0 8 * * *", series_id="se-1", slot="x",
        on_wake=True, source_session="s-2", principal="telegram:7", status_changed="2026-01-01T00:00:00.000Z",
    )  # fmt: skip
    mailbox.put([put])
    assert list(mailbox.open_rows().values()) == [replace(put, seq=2)]


@pytest.mark.req("R133")
def test_a_mailbox_knows_when_it_is_due(mailbox: Mailbox, clock: FakeClock) -> None:
    assert mailbox.next_due() is None
    due = later(clock.now(), 60)
    mailbox.put([message("m-1", trigger=False), message("m-2", process_after=due)])
    assert mailbox.next_due() == due
    assert not mailbox.has_open_rows()
    clock.jump(60)
    assert mailbox.has_open_rows()
    mailbox.put([message("m-3")])
    assert mailbox.next_due() == ""


@pytest.mark.req("R153")
def test_a_failed_message_gets_one_more_attempt_when_a_person_asks(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    mailbox.put([message(tries=4)])
    assert not mailbox.retry_message("m-1")
    take(mailbox, snapshot(claims=[claim(attempt=4)]), ended="it crashed.")
    assert row_of(folder, "m-1")["status"] == InStatus.FAILED
    clock.jump(5)
    assert mailbox.retry_message("m-1")
    row = row_of(folder, "m-1")
    assert (row["status"], row["tries"], row["process_after"]) == ("pending", 5, None)
    assert row["status_changed"] == to_text(clock.now())
    taken = take(mailbox, snapshot(claims=[claim(attempt=5, turn_id="t-2")]), ended="it crashed.")
    assert taken.finished == [("m-1", False)]
    assert [item.address for item in taken.items] == [CHAT]
