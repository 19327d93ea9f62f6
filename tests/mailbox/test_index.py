"""The index of mailboxes: what is believed of a file without opening it, and what never is."""

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from host.home import Home
from host.mailbox_index import Held, MailboxIndex, count_only
from host.undelivered import UNDELIVERED
from mailboxes.schema import create_inbound

QUIET, BUSY, ABSENT = ("g", "quiet"), ("g", "busy"), ("g", "absent")


class Opened(list[str]):
    """A Read that notes whose mailbox was opened."""

    def __call__(self, group: str, session: str, path: str) -> tuple[int, bool, str | None]:
        self.append(session)
        return count_only(group, session, path)


def path_of(home: Home, name: tuple[str, str]) -> Path:
    return home.session_folder(*name) / "inbound" / "inbound.db"


def make(home: Home, name: tuple[str, str]) -> Path:
    path = path_of(home, name)
    path.parent.mkdir(parents=True)
    create_inbound(path)
    return long_ago(path)


def long_ago(path: Path, seconds: int = 0) -> Path:
    os.utime(path, (1_700_000_000 + seconds,) * 2)
    return path


def say(path: Path, message: str, state: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO deliveries (id, kind, timestamp, content, state) VALUES (?, 'chat', '', '{}', ?)",
            (message, state),
        )
        connection.commit()


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def index(home: Home, opened: Opened) -> MailboxIndex:
    return MailboxIndex(home, opened)


def test_only_a_mailbox_that_has_changed_is_opened_again(home: Home, index: MailboxIndex, opened: Opened) -> None:
    make(home, QUIET)
    busy = make(home, BUSY)
    for number, state in enumerate(["queued", "sending", "unknown", "failed", "sent", "cancelled"]):
        say(busy, f"o-{number}", state)
    long_ago(busy, 1)
    sessions = [QUIET, BUSY, ABSENT]
    assert index.undelivered(sessions) == 4
    assert index.undelivered(sessions) == 4
    assert opened == ["quiet", "busy"]
    say(busy, "o-more", "failed")
    assert index.undelivered(sessions) == 5
    assert opened == ["quiet", "busy", "busy"]


def test_what_was_written_just_now_is_not_believed_twice(home: Home, index: MailboxIndex, opened: Opened) -> None:
    # A second write within the same tick would leave the file's time as it is.
    os.utime(make(home, QUIET))
    index.look([QUIET])
    index.look([QUIET])
    assert opened == ["quiet", "quiet"]


def test_a_journal_hides_what_is_known(home: Home, index: MailboxIndex) -> None:
    path = make(home, QUIET)
    assert index.look([QUIET])[QUIET] is not None
    path.with_name("inbound.db-journal").write_bytes(b"x")
    assert index.look([QUIET]) == {QUIET: None}


def test_a_mailbox_that_cannot_be_read_now_counts_as_it_did(home: Home, index: MailboxIndex) -> None:
    path = make(home, BUSY)
    say(path, "o-1", "queued")
    assert index.undelivered([BUSY]) == 1
    whole = path.read_bytes()
    path.write_bytes(b"x" * len(whole))
    assert index.look([BUSY]) == {BUSY: None}
    assert index.undelivered([BUSY]) == 1


def test_the_next_host_takes_what_an_orderly_stop_left_and_nobody_takes_it_twice(
    home: Home, index: MailboxIndex, opened: Opened
) -> None:
    make(home, QUIET)
    held = index.look([QUIET])[QUIET]
    index.save()
    for _ in range(2):
        status = MailboxIndex(home, opened)
        status.load()
        assert status.look([QUIET]) == {QUIET: held}
    heir = MailboxIndex(home, opened)
    heir.take()
    assert heir.look([QUIET]) == {QUIET: held}
    assert opened == ["quiet"]
    after_a_kill = MailboxIndex(home, opened)
    after_a_kill.take()
    after_a_kill.look([QUIET])
    assert opened == ["quiet", "quiet"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"shape": 0, "mailboxes": {}}', '{"shape": 1, "mailboxes": {"g/quiet": [1]}}',
     '{"shape": 1, "mailboxes": {"quiet": [[1, 2, 3], 0, false, null]}}'],
)  # fmt: skip
def test_a_damaged_index_is_none(home: Home, index: MailboxIndex, opened: Opened, text: str) -> None:
    make(home, QUIET)
    (home.root / "mailboxes.json").write_text(text)
    index.take()
    assert isinstance(index.look([QUIET])[QUIET], Held)
    assert opened == ["quiet"]


def test_undelivered_messages_are_found_by_their_index(home: Home) -> None:
    with contextlib.closing(sqlite3.connect(make(home, QUIET))) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN SELECT COUNT(*) FROM deliveries WHERE {UNDELIVERED}").fetchall()
    assert "deliveries_undelivered" in str(plan)
