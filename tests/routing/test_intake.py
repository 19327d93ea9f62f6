"""From an accepted event to a row in a mailbox."""

import asyncio
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, text
from structlog.testing import capture_logs

from host import event_text
from host import sessions as folders
from host.channels.base import Attachment, InboundEvent, Sender
from host.db import channel_offsets, host_outbox, ingest, ingest_spool, sessions, users
from host.db.sessions import Session, SessionKey
from host.home import Home
from mailboxes.clock import to_text
from mailboxes.rows import Address, Kind
from tests.fakes.clock import FakeClock
from tests.routing.world import Host, agent, chat, event, luna_answers_in_7, prepare, running, wire


def rows_of(home: Home, session: Session) -> list[sqlite3.Row]:
    """The rows of a session's inbound.db, in order."""
    path = home.session_folder(session.agent_group_id, session.id) / "inbound" / "inbound.db"
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    database.row_factory = sqlite3.Row
    rows = database.execute("SELECT * FROM messages_in ORDER BY seq").fetchall()
    database.close()
    return rows


def every_session(connection: Connection) -> list[Session]:
    return [Session(**row) for row in connection.execute(select(sessions.sessions)).mappings()]


async def all_texts(host: Host, home: Home) -> list[str]:
    """What all mailboxes hold, session by session in the order of their making."""
    found = await host.database.run(every_session)
    return [json.loads(row["content"])["text"] for session in found for row in rows_of(home, session)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return prepare(tmp_path / "host.db", luna_answers_in_7)


@pytest.mark.req("R024", "R051", "R060")
@pytest.mark.fault(9)
async def test_an_event_that_comes_again_is_one_message_also_after_a_restart_and_a_reset(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        await host.accept(event("e1", "once"), event("e1", "once"))
        await host.accept(event("e1", "once"))
        await host.settled()
        assert host.inboxes.tries == 1
    async with running(url, home, clock) as host:
        await host.accept(event("e1", "once"))
        [session] = await host.database.run(every_session)
        await host.database.run(lambda connection: sessions.close(connection, session.id))
        await host.accept(event("e1", "once"))
        await host.settled()
        assert await host.database.run(every_session) == [replace(session, status="closed")]
        assert len(rows_of(home, session)) == 1


@pytest.mark.req("R024")
async def test_events_of_one_key_in_two_accounts_or_chats_are_two_messages(
    tmp_path: Path, home: Home, clock: FakeClock
) -> None:
    def two_chats(connection: Connection) -> None:
        luna = agent(connection, "luna")
        for platform_id in ("7", "8"):
            wire(connection, chat(connection, platform_id), luna)

    async with running(prepare(tmp_path / "two.db", two_chats), home, clock) as host:
        await host.accept(event("7:55", "here"), event("8:55", "there", chat="8"))
        await host.settled()
        assert sorted(await all_texts(host, home)) == ["here", "there"]


@pytest.mark.req("R024", "R059")
@pytest.mark.fault(17)
async def test_the_offset_is_stored_with_the_events_or_not_at_all(url: str, home: Home, clock: FakeClock) -> None:
    async with running(url, home, clock) as host:
        await host.accept(event("e1"), offset="11")
        assert await host.database.run(lambda c: channel_offsets.get(c, "telegram", "bot")) == "11"
        await host.settled()
        await host.database.run(
            lambda c: c.execute(
                text("CREATE TRIGGER full BEFORE INSERT ON ingest_spool BEGIN SELECT RAISE(ABORT, 'full'); END")
            )
        )
        with pytest.raises(Exception, match="full"):
            await host.accept(event("e2", "two"), offset="12")
        assert await host.database.run(lambda c: channel_offsets.get(c, "telegram", "bot")) == "11"
        await host.database.run(lambda c: c.execute(text("DROP TRIGGER full")))
        await host.accept(event("e2", "two"), offset="12")
        await host.settled()
        assert await all_texts(host, home) == ["hello", "two"]


@pytest.mark.req("R031", "R043")
async def test_the_mailbox_is_written_before_anybody_is_woken_and_a_failed_wake_loses_nothing(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        write = host.inboxes.put

        async def put_then_fail_to_wake(routed: object) -> None:
            await write(routed)  # type: ignore[arg-type]
            if host.inboxes.tries == 1:
                raise OSError("no engine")

        host.intake._writers._put = put_then_fail_to_wake
        await host.accept(event("e1", "1"), event("e2", "2"), event("e3", "3"))
        while not clock._sleepers:
            await asyncio.sleep(0)
        assert await all_texts(host, home) == ["1", "2", "3"]
        await clock.advance(1)
        await host.settled()
        [session] = await host.database.run(every_session)
        rows = rows_of(home, session)
        assert [(json.loads(row["content"])["text"], row["status"], row["seq"]) for row in rows] == [
            ("1", "pending", 2),
            ("2", "pending", 4),
            ("3", "pending", 6),
        ]


@pytest.mark.req("R027")
async def test_a_chat_row_has_exactly_the_keys_of_its_kind_and_the_principal_is_the_sender(
    url: str, home: Home, clock: FakeClock
) -> None:
    sender = Sender("U1", "Ada", realm="T1")
    attachments = (Attachment("cat.png", "file:1", "image"),)
    async with running(url, home, clock) as host:
        await host.accept(replace(event("e", "hi 🙂", sender=sender, thread="t"), attachments=attachments))
        await host.settled()
        [session] = await host.database.run(every_session)
    [row] = rows_of(home, session)
    assert json.loads(row["content"]) == {
        "sender": "Ada",
        "senderId": "telegram:T1/U1",
        "text": "hi 🙂",
        "attachments": [],
        "isFromMe": False,
    }
    assert (row["kind"], row["principal"], row["trigger"], row["timestamp"]) == (
        "chat", "telegram:T1/U1", 1, to_text(clock.now()),
    )  # fmt: skip
    assert (row["channel_type"], row["account_id"], row["platform_id"], row["thread_id"]) == (
        "telegram", "bot", "7", "t",
    )  # fmt: skip


@pytest.mark.req("R028")
async def test_a_chat_sdk_message_goes_through_untouched(url: str, home: Home, clock: FakeClock) -> None:
    content: dict[str, object] = {
        "text": "z\u00e4h \U0001f642 \u2028",
        "formatted": {"type": "root", "children": [{"type": "text", "value": "x", "n": 1.5}]},
        "author": {"fullName": "Ada"},
        "attachments": [],
        "isMention": True,
        "links": [],
        "metadata": {"b": 1, "a": None},
    }
    async with running(url, home, clock) as host:
        await host.accept(replace(event("e"), kind=Kind.CHAT_SDK, content=content))
        await host.settled()
        [session] = await host.database.run(every_session)
    [row] = rows_of(home, session)
    assert row["kind"] == "chat-sdk"
    assert row["content"].encode() == json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.req("R035", "R037")
async def test_the_sender_is_known_afterwards_and_the_session_was_active_now(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        await host.accept(event("e1"))
        clock.jump(60)
        await host.accept(event("e2", sender=Sender("1", "Ada Lovelace")))
        [user] = await host.database.run(users.every)
        assert (user.id, user.kind, user.display_name) == ("telegram:1", "telegram", "Ada Lovelace")
        [session] = await host.database.run(every_session)
        assert session.last_active == to_text(clock.now())


@pytest.mark.req("R035")
async def test_an_event_without_a_name_does_not_take_the_name_away(url: str, home: Home, clock: FakeClock) -> None:
    async with running(url, home, clock) as host:
        await host.accept(event("e1"), event("e2", sender=Sender("1")))
        await host.accept(event("e3", sender=Sender("1")))
        assert [user.display_name for user in await host.database.run(users.every)] == ["Ada"]


@pytest.mark.req("R035", "R036", "R038")
async def test_what_goes_nowhere_is_logged_and_leaves_only_its_key(
    tmp_path: Path, home: Home, clock: FakeClock
) -> None:
    def strict(connection: Connection) -> None:
        wire(connection, chat(connection, policy="strict"), agent(connection, "luna"))

    async with running(prepare(tmp_path / "strict.db", strict), home, clock) as host:
        with capture_logs() as logged:
            await host.accept(event("e1"), event("e2", chat="9"), event("e3", sender=Sender("1", is_me=True)))
        assert await host.database.run(every_session) == []
        assert await host.database.run(users.every) == []
        assert await host.database.run(ingest_spool.every) == []
    assert host.inboxes.tries == 0
    assert [(one["event"], one["event_key"], one["reason"]) for one in logged] == [
        ("a message was dropped", "e1", "the sender is not known"),
        ("a message was dropped", "e2", "this chat is not known"),
        ("a message was dropped", "e3", "the bot's own message"),
    ]


async def test_a_refused_command_is_answered_once_through_the_hosts_outbox(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        told = asyncio.Event()
        host.intake._outbox_filled = told.set
        for _ in range(2):
            await host.accept(event("e1", "/clear", thread="t"))
        assert told.is_set()
        [row] = await host.database.run(host_outbox.open_rows)
        assert json.loads(str(row["content"])) == {
            "text": "/clear needs an owner or an admin of luna. Ask one of them."
        }
        assert (row["channel_type"], row["account_id"], row["platform_id"], row["thread_id"]) == (
            "telegram", "bot", "7", "t",
        )  # fmt: skip
        assert await host.database.run(every_session) == []


async def test_a_mailbox_that_cannot_be_written_holds_up_its_own_chat_in_order(
    tmp_path: Path, home: Home, clock: FakeClock
) -> None:
    def two_chats(connection: Connection) -> None:
        luna = agent(connection, "luna")
        for platform_id in ("7", "8"):
            wire(connection, chat(connection, platform_id), luna)

    async with running(prepare(tmp_path / "two.db", two_chats), home, clock) as host:
        host.inboxes.broken.add("7")
        await host.accept(*(event(f"a{n}", f"a{n}") for n in range(3)))
        await asyncio.wait_for(host.inboxes.failed.wait(), 30)
        await host.accept(*(event(f"b{n}", f"b{n}", chat="8") for n in range(3)))
        while len(host.inboxes.woken) < 3:
            await asyncio.sleep(0)
        host.inboxes.broken.clear()
        await clock.advance(1)
        await host.settled()
        assert await all_texts(host, home) == ["a0", "a1", "a2", "b0", "b1", "b2"]


async def test_what_a_stopped_host_could_not_write_is_written_by_the_next(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        host.inboxes.broken.add("7")
        await host.accept(event("e1", "1"), event("e2", "2"))
        await asyncio.wait_for(host.inboxes.failed.wait(), 30)
    clock.jump(3600)
    async with running(url, home, clock) as host:
        await host.settled()
        assert await all_texts(host, home) == ["1", "2"]
        [session] = await host.database.run(every_session)
        assert {row["timestamp"] for row in rows_of(home, session)} == {"2026-01-01T00:00:00.000Z"}
        assert await host.database.run(ingest_spool.every) == []


async def test_the_spool_is_empty_when_the_host_has_stopped(url: str, home: Home, clock: FakeClock) -> None:
    async with running(url, home, clock) as host:
        await host.accept(event("e1"))
        await host.settled()
    async with running(url, home, clock) as host:
        assert host.inboxes.tries == 0
        assert await host.database.run(ingest_spool.every) == []


async def test_a_spooled_event_that_nobody_routed_is_routed_at_the_start(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        late = event("late", "late")
        spooled = ingest_spool.Spooled("m-late", event_text.to_json(late), None, 1, "2026-01-01T00:00:00.000Z")

        def take_in_only(connection: Connection) -> None:
            ingest.record(connection, [ingest.Ingested("telegram", "bot", "late", None, None, spooled.received_at)])
            ingest_spool.add(connection, [spooled])

        await host.database.run(take_in_only)
    async with running(url, home, clock) as host:
        await host.settled()
        await host.accept(late)
        await host.settled()
        assert await all_texts(host, home) == ["late"]
        [session] = await host.database.run(every_session)
        row = await host.database.run(lambda c: c.execute(select(ingest.ingest)).one())
        assert row.session_id == session.id


@pytest.mark.req("R039")
@pytest.mark.fault(48)
async def test_first_messages_that_come_together_share_one_session(url: str, home: Home, clock: FakeClock) -> None:
    async with running(url, home, clock) as host:
        await asyncio.gather(*(host.accept(event(f"e{n}", str(n))) for n in range(20)))
        await host.settled()
        assert await all_texts(host, home) == [str(n) for n in range(20)]
        assert len(await host.database.run(every_session)) == 1


@pytest.mark.req("R041")
async def test_a_session_whose_folder_is_gone_is_repaired_by_the_next_message(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        made = await host.database.run(
            lambda c: sessions.find_or_create(c, SessionKey("luna", "c7"), "2026-01-01T00:00:00.000Z")
        )
        assert not folders.session_folder(home, "luna", made.id).exists()
        await host.accept(event("e1", "back"))
        await host.settled()
        assert await all_texts(host, home) == ["back"]
        assert await host.database.run(every_session) == [replace(made, last_active=to_text(clock.now()))]


@pytest.mark.req("R042")
@pytest.mark.fault(45)
@pytest.mark.parametrize(("mode", "expected"), [("shared", 1), ("per-thread", 2)])
async def test_threads_share_a_session_or_have_their_own_and_keep_their_addresses(
    tmp_path: Path, home: Home, clock: FakeClock, mode: str, expected: int
) -> None:
    def setup(connection: Connection) -> None:
        wire(connection, chat(connection), agent(connection, "luna"), session_mode=mode)

    async with running(prepare(tmp_path / "threads.db", setup), home, clock) as host:
        await host.accept(event("e1", thread="t1"), event("e2", thread="t2"), event("e3", thread="t1"))
        await host.settled()
        found = await host.database.run(every_session)
        assert len(found) == expected
        assert {session.agent_group_id for session in found} == {"luna"}
        assert {session.thread_id for session in found} == ({None} if mode == "shared" else {"t1", "t2"})
        threads = sorted(row["thread_id"] for session in found for row in rows_of(home, session))
        assert threads == ["t1", "t1", "t2"]


async def test_a_message_after_a_reset_goes_to_a_new_session_although_nobody_refreshed(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        await host.accept(event("e1"))
        [first] = await host.database.run(every_session)
        await host.database.run(lambda c: sessions.close(c, first.id))
        await host.accept(event("e2"))
        await host.settled()
        found = await host.database.run(every_session)
        assert sorted(session.status for session in found) == ["active", "closed"]
        assert [len(rows_of(home, session)) for session in found] == [1, 1]


async def test_an_agent_that_went_away_behind_the_snapshots_back_is_no_error(
    url: str, home: Home, clock: FakeClock
) -> None:
    async with running(url, home, clock) as host:
        await host.database.run(
            lambda c: (
                c.execute(text("DELETE FROM messaging_group_agents")),
                c.execute(text("DELETE FROM agent_groups")),
            )
        )
        await host.accept(event("e1"))
        assert await host.database.run(every_session) == []


async def test_half_a_character_and_a_nul_do_not_stop_a_channel(url: str, home: Home, clock: FakeClock) -> None:
    async with running(url, home, clock) as host:
        await host.accept(event("k\ud83d", "half \ud83d \0", sender=Sender("1", "A\ud83d\0")), offset="5")
        await host.settled()
        assert await all_texts(host, home) == ["half ? \0"]


async def test_one_bad_accept_does_not_take_the_others_with_it(url: str, home: Home, clock: FakeClock) -> None:
    unbearable: dict[str, object] = {"text": {1, 2}}
    async with running(url, home, clock) as host:
        results = await asyncio.gather(
            host.accept(event("e1", "1")),
            host.accept(replace(event("e2"), kind=Kind.WEBHOOK, content=unbearable)),
            host.accept(event("e3", "3")),
            return_exceptions=True,
        )
        await host.settled()
        assert [type(result) for result in results] == [type(None), TypeError, type(None)]
        assert await all_texts(host, home) == ["1", "3"]


@pytest.mark.parametrize("content", [None, {"a": [1, {"b": None}]}])
def test_an_event_survives_the_spool(content: dict[str, object] | None) -> None:
    whole = InboundEvent(
        "k", Address("slack", "acme", "C1", None), Sender("U", "Ü", "T", is_me=False), "text", Kind.CHAT_SDK,
        content, (Attachment("a\0.pdf", "x", size=7),), mentioned=True, is_group=True, chat_name="room", album="9",
    )  # fmt: skip
    assert event_text.from_json(event_text.to_json(whole)) == whole
