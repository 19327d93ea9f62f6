"""What one transaction of the runner's mailbox does, and that two runners never share a row."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from agent_runner.mailbox import Mailbox, TurnFull, answer
from mailboxes.clock import SystemClock
from mailboxes.limits import MAX_CONTENT_BYTES
from mailboxes.schema import HostAway
from tests.runner.harness import HOME_CHAT, ROOT, HostSide

NOW = SystemClock().now()


def opened(host: HostSide) -> Mailbox:
    mailbox = Mailbox(host.workspace)
    mailbox.recover("hash")
    return mailbox


@pytest.mark.req("R093")
def test_of_two_pollers_that_saw_the_same_row_one_gets_it(host: HostSide) -> None:
    host.chat("hello")
    with closing(opened(host)) as one, closing(opened(host)) as two:
        first, second = one.next_batch(NOW), two.next_batch(NOW)
        assert first is not None
        assert second is not None
        assert one.claim(first.rows, "t-1")
        assert not two.claim(second.rows, "t-2")
        assert two.next_batch(NOW) is None


@pytest.mark.req("R093")
def test_two_pollers_on_one_mailbox_take_each_row_once(host: HostSide) -> None:
    messages = {host.chat(f"message {n}") for n in range(40)}
    taken: list[str] = []

    def poll(name: str) -> None:
        with closing(Mailbox(host.workspace)) as mailbox:
            while (batch := mailbox.next_batch(NOW)) is not None:
                if mailbox.claim(batch.rows[:1], f"t-{name}-{batch.rows[0].id}"):
                    taken.append(batch.rows[0].id)

    with closing(opened(host)), ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(poll, name) for name in "ab"]:
            running.result()
    assert len(taken) == 40
    assert set(taken) == messages


@pytest.mark.req("R095")
def test_killed_at_any_statement_of_a_commit_answers_and_completion_are_both_there_or_both_not(tmp_path: Path) -> None:
    statement, code = 0, -9
    while code != 0:
        statement += 1
        host = HostSide(tmp_path / str(statement))
        rows = [host.chat("one"), host.chat("two")]
        program = [sys.executable, "-m", "tests.runner.commit_and_die", str(tmp_path / str(statement)), str(statement)]
        code = subprocess.run(program, cwd=ROOT, check=False).returncode
        Mailbox(host.workspace).close()  # what the next runner does: a journal that was left is rolled back
        snapshot = host.snapshot()
        states = {(snapshot.claim(row) or {})["state"] for row in rows}
        if code == 0:
            assert (len(snapshot.messages), states) == (2, {"completed"})
        else:
            assert (len(snapshot.messages), states) in [(0, {"processing"}), (2, {"completed"})]
    assert statement > 5


@pytest.mark.req("R026")
def test_a_fresh_runner_drops_every_claim_that_is_not_completed(host: HostSide) -> None:
    done, open_, released = host.chat("done"), host.chat("open"), host.chat("released")
    with closing(opened(host)) as mailbox:
        rows = {row.id: row for row in mailbox.messages([done, open_, released])}
        mailbox.complete_unseen([rows[done]], "t-1")
        assert mailbox.claim([rows[open_]], "t-2")
        mailbox.set_aside(rows[released], "why", "t-3")
    opened(host).close()
    assert [claim["message_id"] for claim in host.snapshot().claims] == [done]


def test_claims_that_the_host_has_judged_go_with_the_next_claim(host: HostSide) -> None:
    done, failed, tried, pending = (host.chat(text) for text in ("done", "failed", "tried", "pending"))
    with closing(opened(host)) as mailbox:
        rows = {row.id: row for row in mailbox.messages([done, failed, tried, pending])}
        mailbox.complete_unseen(rows.values(), "t-1")
        host.execute("UPDATE messages_in SET status = 'completed' WHERE id = ?", [done])
        host.execute("UPDATE messages_in SET status = 'failed' WHERE id = ?", [failed])
        host.execute("UPDATE messages_in SET tries = 1 WHERE id = ?", [tried])
        assert mailbox.claim(mailbox.messages([host.chat("next")]), "t-2")
    assert {claim["message_id"] for claim in host.snapshot().claims} == {pending, "m-10"}


def test_rows_of_the_open_turn_stay_even_when_the_host_has_them(host: HostSide) -> None:
    host.chat("hello")
    mailbox = opened(host)
    batch = mailbox.next_batch(NOW)
    assert batch is not None
    assert mailbox.claim(batch.rows, "t-1")
    (sent,) = mailbox.prepare([answer("chat", "sent", HOME_CHAT, "m-2")])
    assert mailbox.send(sent, "t-1", NOW) == 1
    host.execute(
        "INSERT INTO deliveries (id, seq, kind, timestamp, content) VALUES (?, 1, 'chat', '', '{}')", [sent.id]
    )
    mailbox.commit([], [], "t-1", None, NOW)
    assert mailbox.claim(mailbox.messages([host.chat("next")]), "t-2")
    mailbox.close()
    assert host.snapshot().messages == []

    again = opened(host)
    assert again.claim(again.messages(["m-2"]), "t-3")
    (sent,) = again.prepare([answer("chat", "sent", HOME_CHAT, "m-2")])
    again.send(sent, "t-3", NOW)
    host.execute(
        "INSERT INTO deliveries (id, seq, kind, timestamp, content) VALUES (?, 3, 'chat', '', '{}')", [sent.id]
    )
    assert again.claim(again.messages([host.chat("pushed")]), "t-3")
    again.close()
    assert [row.id for row in host.snapshot().messages] == [sent.id]


@pytest.mark.req("R131")
def test_files_go_with_their_row_once_the_host_has_it_and_not_before(host: HostSide) -> None:
    host.chat("hello")
    with closing(opened(host)) as mailbox:
        (sent,) = mailbox.prepare([answer("chat", "x" * 300_000, HOME_CHAT, None)])
        mailbox.commit([sent], [], "t-1", None, NOW)
        files = host.workspace.outbound / "files" / sent.id
        assert mailbox.claim(mailbox.messages([host.chat("next")]), "t-2")
        assert files.is_dir()
        host.execute(
            "INSERT INTO deliveries (id, seq, kind, timestamp, content) VALUES (?, 1, 'chat', '', '{}')", [sent.id]
        )
        assert mailbox.claim(mailbox.messages([host.chat("and next")]), "t-3")
        assert not files.exists()


def test_a_turn_that_fills_half_the_file_can_send_no_more(host: HostSide) -> None:
    host.chat("hello")
    with closing(opened(host)) as mailbox:
        for _ in range(8):
            mailbox.send(mailbox.prepare([answer("chat", "x" * 60_000, HOME_CHAT, None)])[0], "t-1", NOW)
        with pytest.raises(TurnFull, match="final answer"):
            mailbox.send(mailbox.prepare([answer("chat", "x" * 60_000, HOME_CHAT, None)])[0], "t-1", NOW)


def test_a_turn_sends_no_more_rows_than_the_host_reads_at_once(host: HostSide) -> None:
    host.chat("hello")
    with closing(opened(host)) as mailbox:
        for _ in range(100):
            mailbox.send(mailbox.prepare([answer("chat", "x", HOME_CHAT, None)])[0], "t-1", NOW)
        with pytest.raises(TurnFull):
            mailbox.send(mailbox.prepare([answer("chat", "x", HOME_CHAT, None)])[0], "t-1", NOW)
        rest = mailbox.prepare([answer("chat", "x", HOME_CHAT, None) for _ in range(101)])
        assert mailbox.has_room(rest[:100])
        assert not mailbox.has_room(rest)


def test_many_long_answers_of_one_commit_go_as_files_so_that_they_fit(host: HostSide) -> None:
    with closing(opened(host)) as mailbox:
        ready = mailbox.prepare([answer("task", "x" * (MAX_CONTENT_BYTES - 100), None, None) for _ in range(10)])
        assert mailbox.has_room(ready)
        assert all('"files": ["answer.md"]' in row.content for row in ready)


def test_without_a_readable_inbox_reading_says_that_the_host_is_away(host: HostSide) -> None:
    with closing(Mailbox(host.workspace)) as mailbox:
        (host.workspace.inbound / "inbound.db").rename(host.workspace.inbound / "elsewhere.db")
        with pytest.raises(HostAway):
            mailbox.next_batch(NOW)
