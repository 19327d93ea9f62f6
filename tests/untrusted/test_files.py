"""What a container may lay in place of outbound.db, its journal or its folder."""

import os
import socket
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from host import untrusted
from host.reader import Reader
from host.untrusted import BadFile, JournalActive, TornSnapshot, needs_new_outbound, read_outbound
from mailboxes.limits import MAX_SNAPSHOT_BYTES
from mailboxes.schema import open_outbound, outbound_template
from tests.untrusted.images import GOOD, insert_out

Attack = Callable[[Path], object]


def _replaced(make: Attack) -> Attack:
    def attack(folder: Path) -> None:
        (folder / "outbound.db").unlink()
        make(folder / "outbound.db")

    return attack


def _symlink(path: Path) -> None:
    (path.parent.parent / "other.db").write_bytes(outbound_template())
    path.symlink_to("../other.db")


def _hard_link(path: Path) -> None:
    other = path.parent / "files" / "other.db"
    other.write_bytes(outbound_template())
    path.hardlink_to(other)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a Unix socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes a device")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(outbound_template())
        file.truncate(1 << 40)


def _journal(make: Attack) -> Attack:
    return lambda folder: make(folder / "outbound.db-journal")


def _journal_hard_link(path: Path) -> None:
    other = path.parent / "files" / "j"
    other.write_bytes(b"\0")
    path.hardlink_to(other)


ATTACKS: dict[str, tuple[Attack, str]] = {
    "symlink": (_replaced(_symlink), "outbound.db is a link"),
    "dangling link": (_replaced(lambda path: path.symlink_to("nowhere")), "outbound.db is a link"),
    "fifo": (_replaced(os.mkfifo), "no regular file"),
    "socket": (_replaced(_socket), "no regular file"),
    "device": (_replaced(_device), "no regular file"),
    "folder": (_replaced(Path.mkdir), "no regular file"),
    "hard link": (_replaced(_hard_link), "hard link"),
    "missing": (_replaced(lambda _: None), "outbound.db is missing"),
    "a terabyte of nothing": (_replaced(_sparse), "larger"),
    "one byte too many": (_replaced(lambda path: path.write_bytes(bytes(MAX_SNAPSHOT_BYTES + 1))), "larger"),
    "empty": (_replaced(Path.touch), "shorter than one page"),
    "truncated in page 1": (_replaced(lambda path: path.write_bytes(outbound_template()[:4095])), "shorter"),
    "journal is a link": (_journal(lambda path: path.symlink_to("outbound.db")), "outbound.db-journal is a link"),
    "journal is a dangling link": (_journal(lambda path: path.symlink_to("nowhere")), "outbound.db-journal is a link"),
    "journal is a fifo": (_journal(os.mkfifo), "outbound.db-journal is no regular file"),
    "journal is a folder": (_journal(Path.mkdir), "outbound.db-journal is no regular file"),
    "journal is a hard link": (_journal(_journal_hard_link), "hard link"),
}


@pytest.mark.req("R155")
@pytest.mark.fault(110)
@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_no_plain_file_is_a_bad_file_and_hangs_nobody(outbound: Path, name: str) -> None:
    attack, reason = ATTACKS[name]
    attack(outbound)

    with pytest.raises(BadFile, match=reason):
        read_outbound(outbound)


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("elsewhere"), Path.touch, os.mkfifo])
def test_an_outbound_folder_that_is_none_is_a_bad_file(tmp_path: Path, outbound: Path, make: Attack) -> None:
    outbound.rename(tmp_path / "elsewhere")
    make(outbound)

    with pytest.raises(BadFile, match="outbound is"):
        read_outbound(outbound)


@pytest.mark.fault(88)
def test_a_file_that_its_owner_closed_to_the_host_is_a_bad_file_with_that_reason(outbound: Path) -> None:
    (outbound / "outbound.db").chmod(0o000)

    if os.geteuid() == 0:
        assert read_outbound(outbound) == outbound_template()  # root reads it all the same
    else:
        with pytest.raises(BadFile, match="may not be read"):
            read_outbound(outbound)


@pytest.mark.fault(88)
def test_a_read_only_file_is_read_like_any_other(outbound: Path) -> None:
    (outbound / "outbound.db").chmod(0o400)

    assert read_outbound(outbound) == outbound_template()


def test_the_hosts_own_lack_of_descriptors_makes_no_file_bad(outbound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptors(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    # The one replaced call of these tests: exhausting the test process would take pytest down with it.
    monkeypatch.setattr(os, "open", no_descriptors)

    with pytest.raises(OSError, match="Too many open files"):
        read_outbound(outbound)


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_a_journal_that_is_empty_or_zeroed_is_no_journal(outbound: Path, content: bytes) -> None:
    (outbound / "outbound.db-journal").write_bytes(content)

    assert read_outbound(outbound) == outbound_template()


def _hot_journal(folder: Path, super_journal: Path) -> bytes:
    """A journal as of a crash, which names a super-journal: whoever opens the database for writing rolls back, and
    deletes that file once it is seen to name no journal that is still there."""
    name = os.fsencode(super_journal)
    header = bytes.fromhex("d9d505f920a163d7") + (0).to_bytes(4) + bytes(4) + (6).to_bytes(4) + (512).to_bytes(4)
    header += (4096).to_bytes(4)
    checksum = sum(byte if byte < 128 else byte - 256 for byte in name) & 0xFFFFFFFF
    trailer = (262145).to_bytes(4) + name + len(name).to_bytes(4) + checksum.to_bytes(4) + header[:8]
    content = header.ljust(512, b"\0") + trailer
    (folder / "outbound.db-journal").write_bytes(content)
    return content


@pytest.mark.req("R026")
def test_a_hot_journal_that_names_a_host_file_deletes_nothing(tmp_path: Path, outbound: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_bytes(b"worth something")
    journal = _hot_journal(outbound, treasure)

    with pytest.raises(JournalActive):
        read_outbound(outbound)

    assert treasure.exists()
    assert (outbound / "outbound.db-journal").read_bytes() == journal

    # The bait is real: a plain read-write open takes it.
    connection = open_outbound(outbound / "outbound.db")
    connection.execute("SELECT * FROM claims").fetchall()
    connection.close()
    assert not treasure.exists()


def test_a_writer_that_holds_the_exclusive_lock_delays_no_reading(outbound: Path, reader: Reader) -> None:
    holder = open_outbound(outbound / "outbound.db")
    try:
        insert_out(holder, GOOD)
        holder.execute("BEGIN EXCLUSIVE")

        snapshot = reader.read(read_outbound(outbound), 0)
    finally:
        holder.close()

    assert [row.id for row in snapshot.rows] == ["o-good"]


@pytest.mark.req("R026")
def test_a_commit_in_progress_reads_as_an_active_journal_and_then_as_the_whole_commit(
    outbound: Path, reader: Reader
) -> None:
    """SQLite itself is stopped in the middle: its journal is written, the database is not yet."""
    writer = open_outbound(outbound / "outbound.db")
    try:
        writer.execute("PRAGMA cache_spill=ON")
        writer.execute("PRAGMA cache_size=1")
        writer.execute("BEGIN IMMEDIATE")
        for number in range(200):
            insert_out(
                writer, GOOD | {"id": f"o-{number}", "seq": 2 * number + 1, "content": f'{{"text":"{"x" * 900}"}}'}
            )
        assert (outbound / "outbound.db-journal").stat().st_size
        with pytest.raises(TornSnapshot):
            read_outbound(outbound)

        writer.execute("COMMIT")

        assert len(reader.read(read_outbound(outbound), 0).rows) == 200
    finally:
        writer.close()


@pytest.mark.req("R026")
@pytest.mark.parametrize("look", [1, 2])
def test_a_commit_that_falls_whole_between_two_looks_at_the_journal_is_seen_by_the_counter(
    outbound: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """`look` 1: after the counter and before the bytes; 2: after the bytes. No journal is there at either look."""
    looks = 0
    pauses: list[float] = []
    real = untrusted._refuse_active_journal

    def then_commit(folder: int) -> None:
        nonlocal looks
        real(folder)
        looks += 1
        if looks == look:
            writer = open_outbound(outbound / "outbound.db")
            insert_out(writer, GOOD)
            writer.close()

    monkeypatch.setattr(untrusted, "_refuse_active_journal", then_commit)
    monkeypatch.setattr("host.untrusted.time.sleep", pauses.append)

    image = read_outbound(outbound)

    assert pauses == [0.001]
    assert [row.id for row in reader.read(image, 0).rows] == ["o-good"]


@pytest.mark.timeout(30)
def test_a_file_that_is_swapped_without_end_yields_one_of_its_versions_or_a_named_refusal(outbound: Path) -> None:
    """The container renames an honest file, a link, a fifo and nothing into place, and makes journals come and go."""
    database, journal = outbound / "outbound.db", outbound / "outbound.db-journal"
    second = bytearray(outbound_template())
    second[24:28] = b"\0\0\0\x63"
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for image in (outbound_template(), bytes(second)):
                (outbound / "new").write_bytes(image)
                (outbound / "new").rename(database)
            journal.write_bytes(b"\xd9")
            (outbound / "new").symlink_to("/etc/passwd")
            (outbound / "new").rename(database)
            journal.unlink()
            os.mkfifo(outbound / "new")
            (outbound / "new").rename(database)
            database.unlink()

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen: set[bytes] = set()
    try:
        for _ in range(2000):
            try:
                seen.add(read_outbound(outbound))
            except (BadFile, TornSnapshot):
                continue
    finally:
        stop.set()
        swapper.join()

    assert seen <= {outbound_template(), bytes(second)}
    assert seen


def test_a_journal_that_vanishes_between_two_tries_is_forgotten(
    outbound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = outbound / "outbound.db-journal"
    journal.write_bytes(b"\xd9")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        journal.unlink(missing_ok=True)

    monkeypatch.setattr("host.untrusted.time.sleep", pause)

    assert read_outbound(outbound) == outbound_template()
    assert pauses == [0.001]


def test_a_file_that_never_settles_is_given_up_after_five_tries_a_millisecond_apart(
    outbound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (outbound / "outbound.db-journal").write_bytes(b"\xd9")
    pauses: list[float] = []
    monkeypatch.setattr("host.untrusted.time.sleep", pauses.append)

    with pytest.raises(JournalActive):
        read_outbound(outbound)

    assert pauses == [0.001] * 4


@pytest.mark.parametrize("counter", [b"\xff\xff\xff\xff", b"\0\0\0\0"])
def test_a_change_counter_that_wraps_is_an_ordinary_commit(outbound: Path, reader: Reader, counter: bytes) -> None:
    database = outbound / "outbound.db"
    image = bytearray(database.read_bytes())
    image[24:28] = image[92:96] = counter
    database.write_bytes(image)
    writer = open_outbound(database)
    insert_out(writer, GOOD)
    writer.close()

    assert int.from_bytes(read_outbound(outbound)[24:28]) == (int.from_bytes(counter) + 1) % 2**32
    assert [row.id for row in reader.read(read_outbound(outbound), 0).rows] == ["o-good"]


@pytest.mark.req("R196")
def test_a_buffer_of_todays_version_needs_no_new_one_however_often_it_was_written(outbound: Path) -> None:
    writer = open_outbound(outbound / "outbound.db")
    for number in range(50):
        insert_out(writer, GOOD | {"id": f"o-{number}", "seq": 2 * number + 1})
    writer.execute("DELETE FROM messages_out")
    writer.close()

    assert not needs_new_outbound(outbound)


@pytest.mark.req("R196")
def test_a_buffer_of_another_version_is_told_apart(outbound: Path) -> None:
    writer = sqlite3.connect(outbound / "outbound.db")
    writer.execute("PRAGMA user_version=99")
    writer.close()

    assert needs_new_outbound(outbound)


def test_asking_for_the_version_follows_no_link_either(outbound: Path) -> None:
    ATTACKS["symlink"][0](outbound)

    with pytest.raises(BadFile, match="link"):
        needs_new_outbound(outbound)
