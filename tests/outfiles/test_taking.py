"""Files that a session sends are copied out of its reach, or refused with a reason; nothing of the host leaks."""

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from host import outbound_files, untrusted
from host.channels.base import SentFile
from host.home import Home
from host.outbound_files import Copies, OutboundFiles, names_of, sent_files
from host.reader import BadRow, Snapshot
from mailboxes.rows import MessageOut
from tests.mailbox.made import KEY, said, snapshot

SECRET = "the host's own secret"


class Room:
    """One session's folder as its sandbox sees it, and the host's copies of what it sends."""

    def __init__(self, home: Home) -> None:
        self.session = home.session_folder(KEY.agent_group_id, KEY.session_id)
        self.session.mkdir(parents=True)
        untrusted.provision_outbound(self.session, None, None)
        self.secret = home.root / "secret.txt"
        self.secret.write_text(SECRET)
        self.files = OutboundFiles(home)

    @property
    def outbox(self) -> Path:
        return self.session / "outbound" / "files"

    def write(self, row_id: str, name: str, data: bytes = b"hello") -> Path:
        folder = self.outbox / row_id
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
        return folder / name

    async def take(self, *rows: MessageOut) -> Copies:
        return await self.files.take(KEY, snapshot(rows), [row for row in rows if names_of(row)])

    def sent(self, row_id: str) -> tuple[SentFile, ...]:
        return sent_files(self.session, row_id)

    def leaked(self) -> bool:
        kept = self.session / outbound_files.SENT
        return any(SECRET.encode() in path.read_bytes() for path in kept.rglob("*") if path.is_file())


@pytest.fixture
def room(home: Home) -> Room:
    return Room(home)


def row(row_id: str, seq: int, *names: object, text: str = "look") -> MessageOut:
    return said(row_id, seq, content=json.dumps({"text": text, "files": list(names)}))


@pytest.mark.req("R130", "R131")
async def test_what_is_named_is_copied_with_its_size_type_and_hash_and_stays_where_it_was(room: Room) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + b"x" * 300_000
    source = room.write("o-1", "Ansicht é 1.png", picture)

    copies = await room.take(row("o-1", 1, "Ansicht é 1.png"))

    assert copies.refused == {}
    [file] = room.sent("o-1")
    assert (file.name, file.size, file.type) == ("Ansicht é 1.png", len(picture), "image/png")
    assert file.path.read_bytes() == picture
    assert file.path.is_relative_to(room.session / "sent")
    assert source.read_bytes() == picture, "the host unlinks nothing that a sandbox can write"


@pytest.mark.req("R130")
async def test_what_the_sandbox_changes_afterwards_changes_nothing(room: Room) -> None:
    source = room.write("o-1", "a.txt", b"as it was")
    await room.take(row("o-1", 1, "a.txt"))
    source.write_bytes(b"something else")

    assert room.sent("o-1")[0].path.read_bytes() == b"as it was"


@pytest.mark.req("R130")
@pytest.mark.fault(110)
@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/etc/passwd",
        "..",
        ".",
        "",
        "a/b",
        "a\\b",
        "a\0b",
        "a\nb",
        "a\x1b[2Jb",
        "x\u202egnp.exe",
        "n" * 201,
        7,
    ],
)
async def test_what_is_no_plain_name_is_refused(room: Room, name: object) -> None:
    room.write("o-1", "b")
    copies = await room.take(row("o-1", 1, name))
    assert "is no plain file name" in copies.refused["o-1"]
    assert room.sent("o-1") == ()


def make_link(room: Room, path: Path) -> None:
    path.symlink_to(room.secret)


def make_hard_link(room: Room, path: Path) -> None:
    os.link(room.secret, path)


def make_fifo(_: Room, path: Path) -> None:
    os.mkfifo(path)


def make_folder(_: Room, path: Path) -> None:
    path.mkdir()


def make_socket(_: Room, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def make_nothing(_: Room, path: Path) -> None:
    assert not path.exists()


@pytest.mark.req("R130")
@pytest.mark.fault(110)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_link, "it is a link"),
        (make_hard_link, "it has another name elsewhere"),
        (make_fifo, "it is no regular file"),
        (make_folder, "it is no regular file"),
        (make_socket, "it is no regular file"),
        (make_nothing, "it is missing"),
    ],
)
async def test_what_is_no_file_of_its_own_is_refused_and_nothing_leaks(room: Room, make: object, reason: str) -> None:
    room.write("o-1", "fine.txt")
    assert callable(make)
    make(room, room.outbox / "o-1" / "trap")

    copies = await room.take(row("o-1", 1, "fine.txt", "trap"))

    assert reason in copies.refused["o-1"]
    assert "'trap'" in copies.refused["o-1"]
    assert room.sent("o-1") == (), "a message goes with all of its files or not at all"
    assert not room.leaked()


@pytest.mark.req("R130")
@pytest.mark.fault(110, 112)
@pytest.mark.parametrize("level", ["row", "files", "outbound"])
async def test_a_folder_that_was_swapped_for_a_link_is_not_followed(room: Room, home: Home, level: str) -> None:
    elsewhere = home.root / "elsewhere"
    (elsewhere / "files" / "o-1").mkdir(parents=True)
    (elsewhere / "files" / "o-1" / "secret.txt").write_text(SECRET)
    (elsewhere / "o-1").mkdir()
    (elsewhere / "o-1" / "secret.txt").write_text(SECRET)
    (elsewhere / "secret.txt").write_text(SECRET)
    room.write("o-1", "secret.txt", b"mine")
    place = {"row": room.outbox / "o-1", "files": room.outbox, "outbound": room.outbox.parent}[level]
    place.rename(place.with_name("away"))
    place.symlink_to(elsewhere, target_is_directory=True)

    copies = await room.take(row("o-1", 1, "secret.txt"))

    assert "is a link" in copies.refused["o-1"]
    assert not room.leaked()
    assert (elsewhere / "secret.txt").exists()


@pytest.mark.req("R130")
async def test_a_row_whose_id_is_no_name_of_a_folder_sends_nothing(room: Room) -> None:
    copies = await room.take(row("../o-1", 1, "a.txt"))
    assert "cannot name a folder" in copies.refused["../o-1"]


@pytest.mark.req("R130")
@pytest.mark.parametrize("growth", [1, 300_000])
async def test_a_file_that_grows_while_it_is_copied_is_refused(
    room: Room, monkeypatch: pytest.MonkeyPatch, growth: int
) -> None:
    source = room.write("o-1", "log.txt", b"x" * 400_000)
    read, reads = os.read, 0

    def read_and_grow(handle: int, most: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 1:
            with source.open("ab") as file:
                file.write(b"y" * growth)
        return read(handle, most)

    monkeypatch.setattr(os, "read", read_and_grow)
    copies = await room.take(row("o-1", 1, "log.txt"))

    assert "it was written while it was taken" in copies.refused["o-1"]
    assert reads < 10, "what grows is not followed"


@pytest.mark.req("R130")
async def test_sizes_have_limits_for_a_file_a_message_and_a_session(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound_files, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(outbound_files, "MAX_ROW_BYTES", 1500)
    monkeypatch.setattr(outbound_files, "MAX_SESSION_BYTES", 2500)
    for row_id, names in {"o-1": "a", "o-2": "ab", "o-3": "ab", "o-4": "a", "o-5": "a"}.items():
        for name in names:
            room.write(row_id, name, b"x" * {"o-1": 1001, "o-3": 700, "o-4": 1000}.get(row_id, 800))
    rows = [
        row("o-1", 1, "a"),
        row("o-2", 3, "a", "b"),
        row("o-3", 5, "a", "b"),
        row("o-4", 7, "a"),
        row("o-5", 9, "a"),
    ]

    copies = await room.take(*rows)

    assert sorted(copies.refused) == ["o-1", "o-2", "o-5"]
    assert "a file may have" in copies.refused["o-1"]
    assert "of one message" in copies.refused["o-2"]
    assert "until they are pruned" in copies.refused["o-5"]
    assert outbound_files.kept_bytes(room.session) == 2400
    outbound_files.remove(room.session, "o-4")
    room.files.forget(KEY)
    assert (await room.take(row("o-5", 9, "a"))).refused == {}


@pytest.mark.req("R130")
async def test_too_many_files_are_refused(room: Room) -> None:
    names = [f"{number}.txt" for number in range(21)]
    for name in names:
        room.write("o-1", name)
    assert "at most" in (await room.take(row("o-1", 1, *names))).refused["o-1"]


@pytest.mark.req("R130")
async def test_a_reading_with_much_to_copy_is_taken_over_in_parts(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_files, "READING_BYTES", 10)
    rows = [row("o-1", 1, "a"), said("o-2", 3), row("o-3", 5, "a"), row("o-5", 9, "a")]
    for one in ("o-1", "o-3", "o-5"):
        room.write(one, "a", b"x" * 6)
    bad = [BadRow("messages_out", "o-4", 7, "?"), BadRow("messages_out", "o-6", 11, "?")]

    copies = await room.files.take(KEY, snapshot(rows, bad=bad), [one for one in rows if names_of(one)])

    assert [one.id for one in copies.snapshot.rows] == ["o-1", "o-2", "o-3"]
    assert [one.id for one in copies.snapshot.bad_rows] == ["o-4"], "what lies behind is read again"
    assert copies.snapshot.more
    assert not (room.session / "sent" / "o-5").exists()


@pytest.mark.req("R130")
async def test_a_copy_that_an_earlier_host_left_half_done_is_made_anew(room: Room) -> None:
    left = room.session / "sent"
    for name in (".o-1.new", "o-1"):
        (left / name).mkdir(parents=True)
        (left / name / "old.txt").write_text("half")
    room.write("o-1", "a.txt")

    assert (await room.take(row("o-1", 1, "a.txt"))).refused == {}
    assert [file.name for file in room.sent("o-1")] == ["a.txt"]
    assert sorted(path.name for path in left.iterdir()) == ["o-1", "o-1.json"]


@pytest.mark.req("R130")
async def test_many_files_of_one_session_do_not_hold_up_another(room: Room, home: Home) -> None:
    other = home.session_folder("ag-2", "s-2")
    other.mkdir(parents=True)
    untrusted.provision_outbound(other, None, None)
    (other / "outbound" / "files" / "o-9").mkdir()
    (other / "outbound" / "files" / "o-9" / "a.txt").write_bytes(b"small")
    rows = [row(f"o-{number}", 2 * number + 1, "a") for number in range(1, 60)]
    for one in rows:
        room.write(one.id, "a", b"x" * 100_000)
    order: list[str] = []

    async def take(key: object, read: Snapshot, rows: Sequence[MessageOut], name: str) -> None:
        await room.files.take(key, read, rows)  # type: ignore[arg-type]
        order.append(name)

    much = [asyncio.ensure_future(take(KEY, snapshot(rows), rows, "much")) for _ in range(1)]
    little = row("o-9", 1, "a.txt")
    await take(type(KEY)("ag-2", "s-2"), snapshot([little]), [little], "little")
    await asyncio.gather(*much)
    assert order == ["little", "much"]


def test_a_row_without_files_lists_none() -> None:
    assert names_of(said("o-1", 1)) == []
    assert names_of(said("o-1", 1, content='{"text": "\\"files\\""}')) == []
    assert names_of(said("o-1", 1, content='{"files": "a.txt"}')) == []
    assert names_of(said("o-1", 1, kind="system", content='{"action": "x", "files": ["a"]}')) == []
