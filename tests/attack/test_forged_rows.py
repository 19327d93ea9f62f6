"""What a container can bring about by the rows that it writes, and a stranger by how much they write."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from host.judging import REPEATED
from host.mailbox import Mailbox
from host.reader import BadFile, Reader
from host.reader.examine import MAX_LEAP, MAX_SEQ
from mailboxes.ids import derived_id
from mailboxes.limits import MAX_CONTENT_BYTES
from mailboxes.rows import ClaimState, InStatus
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, claim, make_session, message, said, snapshot, table, take
from tests.untrusted.images import with_rows

MANY = 5_000


@pytest.fixture
def folder(on_tmpfs: Path) -> Path:
    return make_session(on_tmpfs / "session")


@pytest.fixture
def mailbox(folder: Path, clock: FakeClock) -> Iterator[Mailbox]:
    opened = Mailbox(KEY, folder, clock.now)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Reader(workers=1) as started:
        yield started


def work_of(mailbox: Mailbox, call: Callable[[], object]) -> int:
    """How many hundreds of instructions SQLite ran for a call."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    mailbox.floor  # noqa: B018  opens it
    mailbox.db.set_progress_handler(step, 100)
    call()
    mailbox.db.set_progress_handler(None, 100)
    return steps


def test_a_flood_of_messages_makes_no_look_at_a_mailbox_dearer(mailbox: Mailbox) -> None:
    mailbox.put([message(f"m-{number}") for number in range(MANY)])
    assert work_of(mailbox, mailbox.has_open_rows) < 5
    assert work_of(mailbox, mailbox.next_due) < 5
    assert work_of(mailbox, lambda: take(mailbox, snapshot(claims=[claim("m-0")]))) < 10
    assert work_of(mailbox, lambda: take(mailbox, snapshot(), ended="it died")) < 10
    assert mailbox.has_open_rows()
    assert mailbox.next_due() == ""


@pytest.mark.fault(110)
@pytest.mark.parametrize("seq", [MAX_LEAP + 3, MAX_SEQ, 2**62 + 1])
def test_no_row_can_use_up_a_sessions_numbers(reader: Reader, seq: int) -> None:
    with pytest.raises(BadFile, match="beyond all that was read"):
        reader.read(with_rows({}, {"seq": seq}), 0)
    assert reader.read(with_rows({"seq": MAX_LEAP - 1}), 0).highest_seq == MAX_LEAP - 1


def test_a_row_cannot_take_the_id_of_a_notice_that_the_host_will_write(
    reader: Reader, mailbox: Mailbox, folder: Path
) -> None:
    forged = derived_id("t-1 m-1", "notice")
    read = reader.read(with_rows({"id": forged}), 0)
    assert [(bad.id, bad.reason.partition(" that")[0]) for bad in read.bad_rows] == [
        (f"b'{forged}'", "id has the form of those")
    ]
    mailbox.put([message(tries=4)])
    taken = take(mailbox, read)
    taken = take(mailbox, snapshot(claims=[claim(state=ClaimState.RELEASED, attempt=4, reason="No.")]))
    assert [item.id for item in taken.items] == [forged]
    assert [row["state"] for row in table(folder, "deliveries")] == ["queued"]


def test_a_turn_that_said_a_great_deal_makes_no_great_continuation(mailbox: Mailbox, folder: Path) -> None:
    mailbox.put([message()])
    for start in range(0, 1000, 200):
        take(mailbox, snapshot(said(f"o-{n}", 2 * n + 1, "x" * 4000) for n in range(start, start + 200)))
    rows = 1
    for attempt in range(4):  # each continuation is given up in the name of the same old turn
        open_row = table(folder, "messages_in")[-1]
        take(mailbox, snapshot(claims=[claim(open_row["id"], ClaimState.RELEASED, attempt, reason="again")]))
        continuation = table(folder, "messages_in")[-1]
        rows += 1
        assert (continuation["status"], continuation["tries"]) == (InStatus.PENDING, attempt + 1)
        assert len(continuation["content"]) < MAX_CONTENT_BYTES
        sent = json.loads(continuation["content"])["result"]["sent"]
        assert len(sent) == REPEATED
        assert sent[-1]["seq"] == 1999
    last = table(folder, "messages_in")[-1]
    taken = take(mailbox, snapshot(claims=[claim(last["id"], ClaimState.RELEASED, 4, reason="again")]))
    assert taken.finished == [(last["id"], False)]
    assert len(table(folder, "messages_in")) == rows


@pytest.mark.parametrize("attempt", [-1, 1, 2**31 - 1])
def test_a_claim_of_another_attempt_or_of_nobodys_message_changes_nothing(mailbox: Mailbox, attempt: int) -> None:
    mailbox.put([message()])
    claims = [claim(state=ClaimState.COMPLETED, attempt=attempt), claim("m-of-a-neighbour", ClaimState.COMPLETED)]
    taken = take(mailbox, snapshot(claims=claims))
    assert taken.finished == []
    assert mailbox.status_of("m-1") == InStatus.PENDING
