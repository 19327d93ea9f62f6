"""Files are kept for as long as anything that may still be sent refers to them, and go where it goes."""

import json
from pathlib import Path
from typing import Any

import pytest

from host import untrusted
from host.items import Change, SessionRef
from host.moving import move_tasks
from host.outbound_files import OutboundFiles, expired, files_of, remove, sent_files
from mailboxes.clock import later
from mailboxes.rows import DeliveryState, MessageOut
from tests.delivery.conftest import Post, post
from tests.mailbox.made import KEY, make_session, message, said, snapshot

__all__ = ["post"]

DAY = 24 * 3600.0


async def take(post: Post, *rows: MessageOut) -> None:
    """Copies the files of rows and takes them over."""
    untrusted.provision_outbound(post.folder, None, None)
    for row in rows:
        folder = post.folder / "outbound" / "files" / row.id
        folder.mkdir()
        (folder / "a.txt").write_text(row.id)
    copies = await OutboundFiles(post.home).take(KEY, snapshot(rows), rows)
    assert copies.refused == {}
    await post.say(*rows)


def row(row_id: str, seq: int, **changes: Any) -> MessageOut:
    return said(row_id, seq, content=json.dumps({"text": "look", "files": ["a.txt"]}), **changes)


async def record(post: Post, row_id: str, state: DeliveryState) -> None:
    change = Change(state, attempts=1, chunks_done=0, platform_ids=())
    await post.pool.call(KEY, lambda box: box.record(row_id, change))


async def past(post: Post) -> list[str]:
    before = later(post.clock.now(), -30 * DAY)
    return await post.pool.call(KEY, lambda box: expired(box.session_folder, box.db, before))


@pytest.mark.req("R130")
@pytest.mark.fault(41)
async def test_only_what_is_settled_and_old_is_past_its_time(post: Post) -> None:
    post.channels.clear()
    states = {
        "o-sent": DeliveryState.SENT,
        "o-dead": DeliveryState.FAILED,
        "o-queued": DeliveryState.QUEUED,
        "o-new": DeliveryState.QUEUED,
    }
    await take(post, *(row(row_id, 2 * number + 1) for number, row_id in enumerate(states)))
    (post.folder / "sent" / "o-lost").mkdir()
    for row_id, state in states.items():
        await record(post, row_id, state)
    assert await past(post) == ["o-lost"], "nobody took it over"
    await post.clock.advance(29 * DAY)
    await record(post, "o-new", DeliveryState.SENT)
    await post.clock.advance(2 * DAY)
    assert await past(post) == ["o-lost", "o-sent"]
    assert remove(post.folder, "o-sent") == len("o-sent")
    assert sent_files(post.folder, "o-sent") == ()
    assert not list((post.folder / "sent").glob("o-sent*"))


@pytest.mark.req("R130")
async def test_what_recurs_goes_with_the_files_of_its_first_time(post: Post) -> None:
    post.channels.clear()
    await take(post, row("o-1", 1, recurrence="0 9 * * *"))
    await record(post, "o-1", DeliveryState.SENT)
    ids = await post.pool.call(
        KEY, lambda box: [str(found[0]) for found in box.db.execute("SELECT id FROM deliveries ORDER BY rowid")]
    )
    assert len(ids) == 2, "the next time is there"
    files = await post.pool.call(KEY, lambda box: files_of(box.session_folder, box.db, ids[1]))
    assert [file.path.read_text() for file in files] == ["o-1"]
    await post.clock.advance(40 * DAY)
    assert await past(post) == []


@pytest.mark.req("R130", "R126")
async def test_a_conversation_that_begins_anew_takes_the_files_of_what_waits_along(post: Post) -> None:
    new = SessionRef(KEY.agent_group_id, "s-2")
    folder: Path = make_session(post.home.session_folder(new.agent_group_id, new.session_id))
    (folder / "inbound" / "files").mkdir()
    await take(post, row("o-1", 1, deliver_after=later(post.clock.now(), DAY)))
    came = post.folder / "inbound" / "files" / "m-1"
    came.mkdir(parents=True)
    (came / "1-cat.png").write_text("a cat")
    await post.pool.call(KEY, lambda box: box.put([message("m-1")]))

    for _ in range(2):  # the second time as after a kill
        await move_tasks(post.pool, post.delivery, KEY, new)

    assert [file.path.read_text() for file in sent_files(folder, "o-1")] == ["o-1"]
    assert (folder / "inbound" / "files" / "m-1" / "1-cat.png").read_text() == "a cat"
    remove(post.folder, "o-1")
    assert sent_files(folder, "o-1")[0].path.read_text() == "o-1"
