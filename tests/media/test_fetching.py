"""Files that come in: where they land, what stands for those that do not, and who waits."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from host import attachments
from host.attachments import MAX_FILE_BYTES, MAX_FILES
from host.channels.base import Attachment, NotFetched, TooLarge
from tests.media.conftest import CHAT, PNG, Desk, entries


@pytest.mark.req("R127", "R129")
async def test_a_file_lands_in_its_messages_folder_with_its_type_by_content(desk: Desk) -> None:
    desk.channel.has("f1", PNG)
    found = await desk.entries(Attachment("holiday.pdf", "f1", "application/pdf", 5))
    assert found == [{"name": "holiday.pdf", "type": "image/png", "size": len(PNG), "file": "1-holiday.pdf"}]
    assert (desk.folder() / "1-holiday.pdf").read_bytes() == PNG
    assert desk.names() == ["1-holiday.pdf"]


@pytest.mark.req("R127")
async def test_modes_are_those_of_the_mailbox_table(desk: Desk) -> None:
    desk.channel.has("f1", PNG)
    await desk.entries(Attachment("a.png", "f1"))
    file, folder = (desk.folder() / "1-a.png").stat(), desk.folder().stat()
    as_root = os.geteuid() == 0
    assert stat.S_IMODE(file.st_mode) == (0o640 if as_root else 0o600)
    assert stat.S_IMODE(folder.st_mode) == (0o750 if as_root else 0o700)
    if as_root:
        assert (file.st_uid, file.st_gid, folder.st_gid) == (0, 2_000_000_000, 2_000_000_000)


@pytest.mark.req("R128")
async def test_neither_ref_nor_error_of_the_platform_reaches_the_message(desk: Desk) -> None:
    ref = "https://platform/file/bot123:CANARY/photo.png"
    desk.channel.has(ref, RuntimeError(f"404 for {ref}"))
    await desk.entries(Attachment("a.png", ref))
    assert "CANARY" not in desk.written[0][0].content
    assert "the platform did not give it" in desk.written[0][0].content


@pytest.mark.req("R132")
async def test_names_stay_in_their_folder_and_do_not_overwrite_each_other(desk: Desk) -> None:
    names = [
        "../a",
        "a",
        "a",
        "/etc/passwd",
        "nul\0l",
        "..",
        "",
        "-rf x; $(reboot)`",
        "\u202egnp.exe",
        "é" * 500 + ".png",
    ]
    desk.channel.has("f", b"hello")
    await desk.entries(*(Attachment(name, "f") for name in names))
    found = desk.names()
    assert len(found) == len(names)
    assert {"1-a.txt", "2-a.txt", "3-a.txt", "4-passwd.txt"} <= set(found)
    assert all(len(name.encode()) < 130 and not set(name) & set("/\0 ;$`\u202e") for name in found)
    assert [path.name for path in desk.folder().parent.iterdir()] == ["m1"]


@pytest.mark.req("R129")
@pytest.mark.fault(36)
async def test_a_file_over_the_platforms_limit_is_a_note_and_the_sender_hears_the_limit_once(desk: Desk) -> None:
    desk.channel.has("f1", TooLarge(20 * 1024 * 1024))
    desk.channel.has("f2", PNG)
    found = await desk.entries(Attachment("film.mp4", "f1", "video/mp4"), Attachment("a.png", "f2"))
    assert found[0] == {
        "name": "film.mp4", "type": "video/mp4", "error": "not fetched: too large (the limit is 20 MB)",
    }  # fmt: skip
    assert found[1]["file"] == "2-a.png"
    assert json.loads(desk.written[0][0].content)["text"] == "text 1"
    [(_, told)] = desk.told
    assert "film.mp4" in told
    assert "20 MB" in told


@pytest.mark.req("R127", "R129")
async def test_a_stream_without_end_is_cut_off_at_the_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MAX_FILE_BYTES", 1024 * 1024)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000

    desk.channel.has("f", endless())
    [found] = await desk.entries(Attachment("a.txt", "f", size=10))
    assert found["error"] == "not fetched: too large (the limit is 1 MB)"
    assert desk.names() == []


@pytest.mark.req("R129")
async def test_an_adapter_that_goes_on_after_the_limit_brings_no_cut_off_file(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachments, "MAX_FILE_BYTES", 1024 * 1024)
    desk.channel.swallows = True
    desk.channel.has("f", b"x" * 2_000_000)
    [found] = await desk.entries(Attachment("a.txt", "f"))
    assert "too large" in found["error"]
    assert desk.names() == []


@pytest.mark.req("R127")
async def test_the_files_of_one_message_share_its_limit(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MAX_MESSAGE_BYTES", 2_500_000)
    monkeypatch.setattr(attachments, "AT_ONCE", 1)
    desk.channel.has("f", b"x" * 1_000_000)
    found = await desk.entries(*(Attachment("a.txt", "f") for _ in range(4)))
    assert ["file" in entry for entry in found] == [True, True, False, False]


async def test_a_declared_size_over_the_limit_is_not_even_asked_for(desk: Desk) -> None:
    [found] = await desk.entries(Attachment("a.iso", "f", size=MAX_FILE_BYTES + 1))
    assert "too large" in found["error"]
    assert desk.channel.asked_for == []


@pytest.mark.req("R129")
async def test_ten_thousand_attachments_are_twenty_and_a_note(desk: Desk) -> None:
    desk.channel.has("f", b"x")
    found = await desk.entries(*(Attachment("n" * 5000, "f") for _ in range(10_000)))
    assert len(found) == MAX_FILES + 1
    assert found[-1]["name"] == "9980 more"
    assert len(desk.written[0][0].content) < 20_000
    assert len(desk.names()) == MAX_FILES
    assert "20 files at most" in desk.told[0][1]


@pytest.mark.req("R129")
async def test_a_fetch_that_fails_for_a_while_is_tried_again(desk: Desk) -> None:
    desk.channel.has("f", NotFetched("busy"), ConnectionResetError(), PNG)
    [found] = await desk.entries(Attachment("a.png", "f"))
    assert found["file"] == "1-a.png"
    assert len(desk.channel.asked_for) == 3


@pytest.mark.req("R129")
async def test_a_fetch_that_fails_for_good_is_asked_once_and_told_to_nobody_but_the_agent(desk: Desk) -> None:
    desk.channel.has("f", NotFetched("it is gone (404)", permanent=True))
    [found] = await desk.entries(Attachment("a.png", "f"))
    assert found["error"] == "not fetched: it is gone (404)"
    assert desk.channel.asked_for == ["f"]
    assert desk.told == []


@pytest.mark.req("R129")
async def test_a_fetch_that_never_ends_is_given_up_in_time(desk: Desk) -> None:
    async def dripping() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await desk.clock.sleep(10)

    desk.channel.has("f", dripping())
    [found] = await desk.entries(Attachment("a.png", "f"))
    assert found["error"] == "not fetched: it took longer than 120 seconds"
    assert desk.names() == []


async def test_a_message_for_a_channel_that_brings_no_files_keeps_its_text(desk: Desk) -> None:
    desk.attachments._channels = {}
    [found] = await desk.entries(Attachment("a.png", "f"))
    assert "its channel is not here" in found["error"]


@pytest.mark.req("R129")
async def test_a_full_disk_is_a_note_and_no_message_that_never_comes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    desk.channel.has("f", PNG)
    monkeypatch.setattr("host.attachments.os.write", full)
    [found] = await desk.entries(Attachment("a.png", "f"))
    assert found["error"] == "not fetched: this host could not keep it (No space left on device)"


@pytest.mark.req("R127")
async def test_what_an_earlier_try_brought_is_not_fetched_again(desk: Desk) -> None:
    desk.channel.has("f1", PNG)
    desk.channel.has("f2", b"two")
    message = desk.routed(1, Attachment("a.png", "f1"), Attachment("b.txt", "f2"))
    await desk.put(message)
    (desk.folder() / "2-b.txt").unlink()
    (desk.folder() / ".2.part").write_bytes(b"half of what a killed host had")
    desk.attachments = desk.fresh()
    await desk.put(message)
    assert sorted(desk.channel.asked_for) == ["f1", "f2", "f2"]
    assert desk.written[0] == desk.written[1]
    assert desk.names() == ["1-a.png", "2-b.txt"]


@pytest.mark.req("R132")
async def test_a_link_in_the_folder_is_not_written_through(desk: Desk, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    desk.channel.has("f1", PNG)
    await desk.entries(Attachment("a.png", "f1"))
    (desk.folder(2)).mkdir()
    (desk.folder(2) / ".1.part").symlink_to(victim)
    (desk.folder(2) / "1-a.png").symlink_to(victim)
    await desk.entries(Attachment("a.png", "f1"), number=2)
    assert victim.read_bytes() == b"mine"
    assert not (desk.folder(2) / "1-a.png").is_symlink()


@pytest.mark.req("R028")
async def test_a_message_that_is_not_ours_gets_its_files_beside_what_it_says(desk: Desk) -> None:
    desk.channel.has("f1", PNG)
    content = {"text": "hi", "attachments": [{"url": "x"}]}
    await desk.put(desk.routed(1, Attachment("a.png", "f1"), content=content))
    written = json.loads(desk.written[0][0].content)
    assert {key: written[key] for key in content} == content
    assert written["files"][0]["file"] == "1-a.png"


async def test_text_before_a_slow_file_goes_ahead_and_text_behind_it_waits(desk: Desk) -> None:
    gate = desk.channel.gate("slow")
    desk.channel.has("slow", PNG)
    putting = asyncio.ensure_future(
        desk.put(desk.routed(1), desk.routed(2, Attachment("a.png", "slow")), desk.routed(3))
    )
    await asyncio.wait_for(desk.channel.asking.wait(), 10)
    assert [[message.id for message in run] for run in desk.written] == [["m1"]]
    gate.set()
    await asyncio.wait_for(putting, 10)
    assert [[message.id for message in run] for run in desk.written] == [["m1"], ["m2", "m3"]]


async def test_another_session_does_not_wait_for_a_slow_file(desk: Desk) -> None:
    gates = [desk.channel.gate(f"slow{number}") for number in range(20)]
    for number in range(20):
        desk.channel.has(f"slow{number}", PNG)
    desk.channel.has("quick", PNG)
    slow = asyncio.ensure_future(desk.put(desk.routed(1, *(Attachment("a", f"slow{n}") for n in range(20)))))
    await asyncio.wait_for(desk.channel.asking.wait(), 10)
    await asyncio.wait_for(desk.put(desk.routed(2, Attachment("b.png", "quick"), to="s2")), 10)
    assert [message.id for run in desk.written for message in run] == ["m2"]
    for gate in gates:
        gate.set()
    await asyncio.wait_for(slow, 10)


@pytest.mark.fault(38)
async def test_an_album_is_written_as_one_however_slow_one_of_its_pictures_is(desk: Desk) -> None:
    gates = [desk.channel.gate(ref) for ref in ("two", "three")]
    for ref in ("one", "two", "three"):
        desk.channel.has(ref, PNG)
    album = [desk.routed(n, Attachment("p.png", ref), album="9") for n, ref in enumerate(("one", "two", "three"), 1)]
    putting = asyncio.ensure_future(desk.put(*album, desk.routed(4, Attachment("x.png", "one"))))
    await asyncio.wait_for(desk.channel.asking.wait(), 10)
    assert desk.written == []
    for gate in gates:
        gate.set()
    await asyncio.wait_for(putting, 10)
    assert [[message.id for message in run] for run in desk.written] == [["m1", "m2", "m3"], ["m4"]]
    assert all(entries(message)[0]["file"] == "1-p.png" for message in desk.written[0])


async def test_a_host_that_stops_leaves_the_message_for_the_next_one(desk: Desk) -> None:
    gate = desk.channel.gate("f")
    desk.channel.has("f", PNG)
    message = desk.routed(1, Attachment("a.png", "f"))
    putting = asyncio.ensure_future(desk.put(message))
    await asyncio.wait_for(desk.channel.asking.wait(), 10)
    desk.attachments.close()
    with pytest.raises(InterruptedError):
        await putting
    with pytest.raises(InterruptedError):
        await desk.put(message)
    assert desk.written == []
    assert desk.names() == []
    gate.set()
    desk.attachments = desk.fresh()
    await desk.put(message)
    assert entries(desk.written[0][0])[0]["file"] == "1-a.png"


async def test_a_message_without_files_costs_no_look_at_the_disk(desk: Desk) -> None:
    await desk.put(desk.routed(1), desk.routed(2))
    assert [[message.id for message in run] for run in desk.written] == [["m1", "m2"]]
    assert not desk.folder().exists()
    assert desk.written[0][0].address == CHAT
