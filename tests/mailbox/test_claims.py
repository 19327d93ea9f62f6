"""Claims are the runner's word on its own messages; what they mean is the host's decision."""

import json
from pathlib import Path
from typing import Any

import pytest

from host.judging import continued
from host.mailbox import Mailbox
from mailboxes.clock import later, to_text
from mailboxes.rows import ClaimState, InStatus, Kind
from tests.fakes.clock import FakeClock
from tests.mailbox.made import CHAT, OTHER, claim, message, row_of, said, snapshot, table, take

PROCESSING, COMPLETED, RELEASED = ClaimState.PROCESSING, ClaimState.COMPLETED, ClaimState.RELEASED


@pytest.mark.req("R020", "R022")
def test_a_message_goes_from_pending_over_processing_to_completed_and_each_change_is_stamped(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    mailbox.put([message()])
    for state, status in ((PROCESSING, "processing"), (COMPLETED, "completed")):
        clock.jump(1.5)
        taken = take(mailbox, snapshot(claims=[claim(state=state)]))
        row = row_of(folder, "m-1")
        assert (row["status"], row["status_changed"], row["tries"]) == (status, to_text(clock.now()), 0)
    assert taken.finished == [("m-1", True)]
    assert mailbox.next_due() is None


@pytest.mark.req("R020")
def test_a_claim_that_is_seen_again_is_no_change(mailbox: Mailbox, folder: Path, clock: FakeClock) -> None:
    mailbox.put([message()])
    take(mailbox, snapshot(claims=[claim()]))
    before = row_of(folder, "m-1")
    clock.jump(1)
    take(mailbox, snapshot(claims=[claim()]))
    assert row_of(folder, "m-1") == before


@pytest.mark.req("R020", "R022", "R096")
def test_a_released_claim_is_a_try_and_the_message_waits(mailbox: Mailbox, folder: Path, clock: FakeClock) -> None:
    mailbox.put([message()])
    clock.jump(3)
    taken = take(mailbox, snapshot(claims=[claim(state=RELEASED, reason="The model is away.")]))
    row = row_of(folder, "m-1")
    assert (row["status"], row["tries"], row["process_after"]) == ("pending", 1, later(clock.now(), 5))
    assert row["status_changed"] == to_text(clock.now())
    assert taken.finished == []
    assert taken.items == []


@pytest.mark.req("R020", "R155")
def test_a_claim_that_cannot_be_retried_fails_and_the_chat_hears_once(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    mailbox.put([message("m-1"), message("m-2")])
    clock.jump(3)
    claims = [claim(name, RELEASED, reason="The key is wrong.", retryable=False) for name in ("m-1", "m-2")]
    taken = take(mailbox, snapshot(claims=claims))
    assert taken.finished == [("m-1", False), ("m-2", False)]
    assert [row["status"] for row in table(folder, "messages_in")] == ["failed", "failed"]
    (notice,) = taken.items
    assert (notice.address, notice.by_host, json.loads(notice.content)["text"]) == (
        CHAT,
        True,
        "The sandbox says: The key is wrong.",
    )
    assert [item.id for item in mailbox.open_items()] == [notice.id]
    assert mailbox.open_items()[0].by_host
    assert row_of(folder, "m-2")["status_changed"] == to_text(clock.now())
    assert take(mailbox, snapshot(claims=claims)).items == []


@pytest.mark.req("R111")
@pytest.mark.parametrize("state", list(ClaimState))
def test_claims_of_an_earlier_attempt_or_of_no_message_are_ignored(
    mailbox: Mailbox, folder: Path, state: ClaimState
) -> None:
    mailbox.put([message(tries=2)])
    before = table(folder, "messages_in")
    for stale in (claim(state=state, attempt=1), claim(state=state, attempt=3), claim("m-none", state)):
        taken = take(mailbox, snapshot(claims=[stale]))
        assert (taken.finished, taken.items) == ([], [])
    assert table(folder, "messages_in") == before


@pytest.mark.req("R087", "R111")
def test_a_runner_that_was_killed_costs_a_try_at_once(mailbox: Mailbox, folder: Path, clock: FakeClock) -> None:
    mailbox.put([message("m-1"), message("m-2")])
    take(mailbox, snapshot(claims=[claim("m-1")]))
    take(mailbox, snapshot(claims=[claim("m-1")]), ended="The sandbox ended with code 137.")
    row = row_of(folder, "m-1")
    assert (row["status"], row["tries"], row["process_after"]) == ("pending", 1, later(clock.now(), 5))
    assert (row_of(folder, "m-2")["tries"], row_of(folder, "m-2")["status"]) == (0, "pending")


@pytest.mark.req("R111")
@pytest.mark.parametrize("state", [PROCESSING, RELEASED])
def test_a_stop_by_the_host_leaves_the_tries_and_the_message_runs_again_at_once(
    mailbox: Mailbox, folder: Path, state: ClaimState
) -> None:
    mailbox.put([message()])
    take(mailbox, snapshot(claims=[claim()]))
    for _ in range(2):
        take(mailbox, snapshot(claims=[claim(state=state)]), counted=False, ended="stopped.")
        row = row_of(folder, "m-1")
        assert (row["status"], row["tries"], row["process_after"]) == ("pending", 0, None)


@pytest.mark.req("R087")
def test_messages_in_work_whose_claims_are_lost_are_tried_again(mailbox: Mailbox, folder: Path) -> None:
    mailbox.put([message()])
    take(mailbox, snapshot(claims=[claim()]))
    take(mailbox, snapshot(), ended="its mailbox was damaged.")
    assert (row_of(folder, "m-1")["status"], row_of(folder, "m-1")["tries"]) == ("pending", 1)


@pytest.mark.req("R156", "R158")
def test_a_turn_that_spoke_is_protected_even_when_its_claims_are_lost(mailbox: Mailbox, folder: Path) -> None:
    mailbox.put([message("m-1"), message("m-2")])
    take(mailbox, snapshot([said("o-1", 1, in_reply_to="m-2")], [claim("m-1"), claim("m-2")]))
    taken = take(mailbox, snapshot(), ended="its mailbox was damaged.")
    assert [row["status"] for row in table(folder, "messages_in")] == ["completed", "completed", "pending"]
    by = table(folder, "messages_in")[-1]["id"]
    assert (taken.finished, taken.carried_on) == ([], [("m-1", by), ("m-2", by)])


def open_continuation(folder: Path) -> dict[str, Any]:
    (row,) = [row for row in table(folder, "messages_in") if row["status"] == InStatus.PENDING]
    assert json.loads(row["content"])["action"] == "continue_turn"
    return row


@pytest.mark.req("R156", "R158")
def test_after_a_crash_behind_an_output_no_message_of_the_batch_runs_again(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    mailbox.put([message("m-1"), message("m-2"), message("m-3", tries=1)])
    claims = [claim("m-1"), claim("m-2"), claim("m-3", attempt=1)]
    take(mailbox, snapshot([said("o-1", 1, "half an answer", in_reply_to="m-3")], claims))
    taken = take(mailbox, snapshot(claims=claims), ended="it was killed.")
    assert taken.written_in
    row = open_continuation(folder)
    assert (taken.finished, taken.carried_on) == ([], [(name, row["id"]) for name in ("m-1", "m-2", "m-3")])
    assert (row["tries"], row["process_after"], row["platform_id"]) == (2, later(clock.now(), 10), "42")
    result = json.loads(row["content"])["result"]
    assert result["message_ids"] == ["m-1", "m-2", "m-3"]
    assert result["sent"] == [{"seq": 1, "text": "half an answer"}]


@pytest.mark.req("R157")
def test_outputs_that_are_only_in_the_last_snapshot_are_delivered_and_not_written_again(
    mailbox: Mailbox, folder: Path
) -> None:
    mailbox.put([message()])
    taken = take(mailbox, snapshot([said("o-1", 1)], [claim()]), ended="it was killed.")
    assert [item.id for item in taken.items] == ["o-1"]
    assert row_of(folder, "m-1")["status"] == InStatus.COMPLETED
    open_continuation(folder)


@pytest.mark.req("R157")
def test_a_turn_is_judged_when_all_its_rows_are_read(mailbox: Mailbox, folder: Path) -> None:
    mailbox.put([message()])
    claims = [claim(state=RELEASED)]
    take(mailbox, snapshot([said("o-1", 1, turn_id="t-0")], claims, more=True), ended="it was killed.")
    assert row_of(folder, "m-1")["status"] == InStatus.PENDING
    assert row_of(folder, "m-1")["tries"] == 0
    take(mailbox, snapshot([said("o-2", 3)], claims), ended="it was killed.")
    assert row_of(folder, "m-1")["status"] == InStatus.COMPLETED


@pytest.mark.req("R158")
@pytest.mark.parametrize(
    "row",
    [
        said("o-1", 1, in_reply_to=None, kind=Kind.CHAT_SDK, content='{"fallbackText": "a card"}'),
        said("o-1", 1, in_reply_to=None, content='{"text": "", "files": ["a.txt"]}'),
        said("o-1", 1, in_reply_to=None, address=None, kind=Kind.SYSTEM, content='{"action": "act", "payload": {}}'),
        said("o-1", 1, in_reply_to=None, deliver_after="2027-01-01T00:00:00.000Z"),
    ],
    ids=["card", "file", "action", "later"],
)
def test_what_a_tool_sent_protects_the_turn_whatever_its_kind(mailbox: Mailbox, folder: Path, row: Any) -> None:
    mailbox.put([message()])
    take(mailbox, snapshot([row], [claim(state=RELEASED)]))
    assert row_of(folder, "m-1")["status"] == InStatus.COMPLETED
    open_continuation(folder)


@pytest.mark.req("R156")
def test_a_continuation_that_breaks_off_too_carries_everything_on(mailbox: Mailbox, folder: Path) -> None:
    mailbox.put([message()])
    take(mailbox, snapshot([said("o-1", 1, "one")], [claim(state=RELEASED)]))
    first = open_continuation(folder)
    second_claim = claim(first["id"], RELEASED, attempt=first["tries"], turn_id="t-2")
    take(mailbox, snapshot([said("o-2", 3, "two", turn_id="t-2")], [second_claim]))
    second = open_continuation(folder)
    assert second["id"] != first["id"]
    assert second["tries"] == 2
    result = json.loads(second["content"])["result"]
    assert result["message_ids"] == ["m-1"]
    assert [spoken["text"] for spoken in result["sent"]] == ["one", "two"]
    assert continued(message()) is None


@pytest.mark.req("R155")
@pytest.mark.fault(84)
def test_a_message_that_kills_its_runner_is_parked_and_the_next_one_goes_on(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    mailbox.put([message("m-poison")])
    items = []
    for attempt in range(5):
        mailbox.put([message("m-next")])
        claimed = claim("m-poison", attempt=attempt, turn_id=f"t-{attempt}")
        items += take(mailbox, snapshot(claims=[claimed]), ended="killed.").items
        clock.jump(60)
    assert row_of(folder, "m-poison")["status"] == InStatus.FAILED
    assert [item.in_reply_to for item in items] == ["m-poison"]
    assert (row_of(folder, "m-next")["status"], row_of(folder, "m-next")["tries"]) == ("pending", 0)
    assert mailbox.has_open_rows()


@pytest.mark.req("R087", "R155")
def test_a_sandbox_that_never_claims_uses_up_the_tries_of_what_is_due_and_each_chat_hears_once(
    mailbox: Mailbox, folder: Path, clock: FakeClock
) -> None:
    due_later = later(clock.now(), 3600)
    mailbox.put(
        [
            message("m-1"),
            message("m-2"),
            message("m-3", address=OTHER),
            message("m-later", process_after=due_later),
            message("m-quiet", trigger=False),
        ]
    )
    notices = []
    for _ in range(5):
        notices += mailbox.fail_start("It does not start.").items
        clock.jump(60)
    assert [(item.address, item.in_reply_to) for item in notices] == [(CHAT, "m-2"), (OTHER, "m-3")]
    assert [(row["id"], row["status"], row["tries"]) for row in table(folder, "messages_in")] == [
        ("m-1", "failed", 5),
        ("m-2", "failed", 5),
        ("m-3", "failed", 5),
        ("m-later", "pending", 0),
        ("m-quiet", "pending", 0),
    ]


@pytest.mark.req("R155")
def test_a_start_that_fails_again_after_a_person_asked_for_it_is_told_again(mailbox: Mailbox) -> None:
    mailbox.put([message()])
    assert len(mailbox.fail_start("No image.", retryable=False).items) == 1
    assert mailbox.fail_start("No image.", retryable=False).items == []
    mailbox.retry_message("m-1")
    assert len(mailbox.fail_start("No image.", retryable=False).items) == 1


@pytest.mark.req("R155")
def test_the_host_says_one_thing_once_per_cause(mailbox: Mailbox) -> None:
    assert mailbox.notice("damaged", "It was damaged.") is None
    mailbox.put([message()])
    item = mailbox.notice("damaged", "It was damaged.")
    assert item is not None
    assert (item.address, item.by_host) == (CHAT, True)
    assert mailbox.notice("damaged", "It was damaged.") is None
    assert mailbox.notice("another", "Another thing.") is not None
