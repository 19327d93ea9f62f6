"""Rows that a session said become the host's: once, in one commit, and never on the container's word alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.mailbox import Mailbox
from host.reader import BadRow, Reader
from host.untrusted import provision_outbound, read_outbound
from mailboxes.clock import later
from mailboxes.layout import OUTBOUND_DB
from mailboxes.rows import Address, ClaimState, DeliveryState, InStatus, Kind, MessageOut
from mailboxes.schema import open_outbound, transaction
from tests.fakes.clock import FakeClock
from tests.mailbox.made import CHAT, KEY, OTHER, claim, message, row_of, said, snapshot, table, take
from tests.untrusted.images import GOOD, insert_out


def refuse_others(row: MessageOut) -> str | None:
    return None if row.address in {CHAT, None} else "This agent does not answer in that chat."


@pytest.mark.req("R133", "R140")
def test_new_rows_are_taken_over_in_order_and_handed_to_delivery(mailbox: Mailbox, folder: Path) -> None:
    mailbox.put([message()])
    taken = take(mailbox, snapshot([said("o-1", 1), said("o-2", 3, address=OTHER)]))
    assert [(item.id, item.address) for item in taken.items] == [("o-1", CHAT), ("o-2", OTHER)]
    assert [(row["id"], row["seq"], row["state"]) for row in table(folder, "deliveries")] == [
        ("o-1", 1, "queued"),
        ("o-2", 3, "queued"),
    ]
    assert mailbox.floor == 3


@pytest.mark.req("R026", "R134")
def test_the_same_snapshot_twice_changes_nothing(mailbox: Mailbox, folder: Path, clock: FakeClock) -> None:
    mailbox.put([message()])
    read = snapshot([said("o-1", 1), said("o-2", 3, kind=Kind.SYSTEM)], [claim(state=ClaimState.COMPLETED)])
    take(mailbox, read)
    before = table(folder, "deliveries"), table(folder, "messages_in")
    clock.jump(1)
    again = take(mailbox, read)
    assert (again.items, again.actions, again.finished, again.written_in) == ([], [], [], False)
    assert (table(folder, "deliveries"), table(folder, "messages_in")) == before


@pytest.mark.req("R026")
def test_a_mailbox_that_is_opened_again_still_knows_what_it_took(folder: Path, clock: FakeClock) -> None:
    first = Mailbox(KEY, folder, clock.now)
    take(first, snapshot([said("o-1", 1), said("o-2", 3)]))
    first.close()
    second = Mailbox(KEY, folder, clock.now)
    try:
        assert second.floor == 3
        assert take(second, snapshot([said("o-2", 3)])).items == []
    finally:
        second.close()


def test_a_known_seq_under_a_new_id_is_set_aside_and_the_rows_beside_it_go_on(mailbox: Mailbox, folder: Path) -> None:
    take(mailbox, snapshot([said("o-1", 1)]))
    taken = take(mailbox, snapshot([said("o-forged", 1), said("o-2", 3)]))
    assert [(bad.id, bad.seq) for bad in taken.bad_rows] == [("o-forged", 1)]
    assert "o-1" in taken.bad_rows[0].reason
    assert [row["id"] for row in table(folder, "deliveries")] == ["o-1", "o-2"]


@pytest.mark.req("R019")
def test_bad_rows_of_the_reader_are_passed_on_and_not_read_again(mailbox: Mailbox) -> None:
    bad = BadRow("messages_out", "o-bad", 7, "kind is unknown")
    taken = take(mailbox, snapshot(bad=[bad]))
    assert taken.bad_rows == (bad,)
    assert mailbox.floor == 7


@pytest.mark.req("R136")
@pytest.mark.fault(2)
def test_a_forged_address_is_refused_the_agent_hears_of_it_and_the_address_never_becomes_an_origin(
    mailbox: Mailbox, folder: Path
) -> None:
    mailbox.put([message(principal="telegram:7")])
    taken = take(mailbox, snapshot([said("o-1", 1, address=OTHER)]), refusal=refuse_others)
    assert taken.items == []
    assert taken.written_in
    refused = row_of(folder, "o-1", "deliveries")
    assert (refused["state"], refused["last_error"]) == ("failed", "This agent does not answer in that chat.")
    heard = table(folder, "messages_in")[-1]
    assert (heard["kind"], heard["trigger"], heard["status"]) == ("system", 0, "pending")
    assert (heard["channel_type"], heard["platform_id"], heard["principal"]) == ("telegram", "42", "telegram:7")
    assert json.loads(heard["content"])["action"] == "delivery_failed"
    assert json.loads(heard["content"])["result"]["delivery_id"] == "o-1"
    assert not mailbox.is_origin(OTHER)
    assert mailbox.is_origin(CHAT)


@pytest.mark.req("R136")
def test_a_refusal_wakes_nobody(mailbox: Mailbox) -> None:
    take(mailbox, snapshot([said("o-1", 1, address=OTHER)]), refusal=refuse_others)
    assert mailbox.next_due() is None
    assert not mailbox.has_open_rows()


@pytest.mark.req("R136")
def test_an_origin_is_one_bot_one_chat_and_one_thread(mailbox: Mailbox) -> None:
    mailbox.put([message(address=Address("telegram", "bot", "42", "t"))])
    assert mailbox.is_origin(Address("telegram", "bot", "42", "t"))
    assert not mailbox.is_origin(CHAT)
    assert not mailbox.is_origin(Address("telegram", "other-bot", "42", "t"))


@pytest.mark.req("R136")
def test_what_was_refused_is_not_sent_by_trying_again(mailbox: Mailbox) -> None:
    take(mailbox, snapshot([said("o-1", 1, address=OTHER)]), refusal=refuse_others)
    assert mailbox.retry_delivery("o-1") is None


@pytest.mark.req("R135")
def test_the_result_of_a_task_without_an_address_is_kept_and_goes_nowhere(mailbox: Mailbox, folder: Path) -> None:
    taken = take(mailbox, snapshot([said("o-1", 1, kind=Kind.TASK, address=None, content='{"result": "done"}')]))
    assert taken.items == []
    assert row_of(folder, "o-1", "deliveries")["state"] == "sent"
    assert mailbox.open_items() == []


@pytest.mark.req("R133")
def test_what_is_due_later_is_queued_and_reserves_nothing(mailbox: Mailbox, folder: Path, clock: FakeClock) -> None:
    due = later(clock.now(), 60)
    asked: list[Address] = []

    def reserve(address: Address) -> bool:
        asked.append(address)
        return True

    taken = take(mailbox, snapshot([said("o-1", 1, deliver_after=due)]), reserve=reserve)
    assert asked == []
    assert [(item.due, item.reserved) for item in taken.items] == [(due, False)]
    assert row_of(folder, "o-1", "deliveries")["state"] == "queued"


@pytest.mark.req("R134", "R140")
def test_the_first_row_to_a_free_address_has_its_intent_in_the_same_commit(mailbox: Mailbox, folder: Path) -> None:
    free = {CHAT, OTHER}

    def reserve(address: Address) -> bool:
        if address in free:
            free.remove(address)
            return True
        return False

    taken = take(mailbox, snapshot([said("o-1", 1), said("o-2", 3), said("o-3", 5, address=OTHER)]), reserve=reserve)
    assert [(item.reserved, item.state) for item in taken.items] == [
        (True, DeliveryState.SENDING),
        (False, DeliveryState.QUEUED),
        (True, DeliveryState.SENDING),
    ]
    assert taken.reserved == [CHAT, OTHER]
    assert [row["state"] for row in table(folder, "deliveries")] == ["sending", "queued", "sending"]


@pytest.mark.req("R135")
def test_an_action_is_open_until_it_is_answered_and_answered_once(mailbox: Mailbox, folder: Path) -> None:
    mailbox.put([message(principal="telegram:7")])
    content = '{"action": "make_tea", "payload": {"cups": 2}}'
    taken = take(mailbox, snapshot([said("o-1", 1, kind=Kind.SYSTEM, content=content, address=None)]))
    (action,) = taken.actions
    assert (action.name, action.payload, action.in_reply_to) == ("make_tea", {"cups": 2}, "m-1")
    assert mailbox.open_actions() == [action]
    assert mailbox.open_items() == []
    for _ in range(2):
        mailbox.answer_action(action, "error", "There is no action 'make_tea'.")
    assert mailbox.open_actions() == []
    answers = [row for row in table(folder, "messages_in") if row["kind"] == "system"]
    assert [(row["trigger"], row["platform_id"], row["principal"]) for row in answers] == [(1, "42", "telegram:7")]
    assert json.loads(answers[0]["content"])["status"] == "error"


@pytest.mark.req("R026")
def test_nothing_is_written_when_one_row_cannot_be(mailbox: Mailbox, folder: Path) -> None:
    def breaks(row: MessageOut) -> str | None:
        if row.id == "o-2":
            raise ValueError("routing broke")
        return None

    with pytest.raises(ValueError, match="routing broke"):
        take(mailbox, snapshot([said("o-1", 1), said("o-2", 3)]), refusal=breaks)
    assert table(folder, "deliveries") == []
    assert mailbox.floor == 0
    assert len(take(mailbox, snapshot([said("o-1", 1), said("o-2", 3)])).items) == 2


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Reader(1) as made:
        yield made


@pytest.mark.req("R026", "R133")
def test_what_a_runner_wrote_into_a_real_file_arrives(folder: Path, mailbox: Mailbox, reader: Reader) -> None:
    mailbox.put([message()])
    outbound = provision_outbound(folder, None, None)
    connection = open_outbound(outbound / OUTBOUND_DB)
    with transaction(connection):
        insert_out(connection, GOOD)
        insert_out(connection, GOOD | {"id": "o-zzz", "seq": 3, "kind": "zzz"})
        connection.execute("INSERT INTO claims VALUES ('m-1', 0, 't-1', 'completed', NULL, 1)")
    connection.close()
    taken = take(mailbox, reader.read(read_outbound(outbound), mailbox.floor))
    assert [item.id for item in taken.items] == ["o-good"]
    assert [bad.seq for bad in taken.bad_rows] == [3]
    assert taken.finished == [("m-1", True)]
    assert row_of(folder, "m-1")["status"] == InStatus.COMPLETED
    assert take(mailbox, reader.read(read_outbound(outbound), mailbox.floor)).items == []
