"""Making, setting aside, measuring and removing what a container writes in."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from host.reader import Reader
from host.untrusted import (
    BadFile,
    TreeNotDone,
    measure,
    needs_new_outbound,
    provision_folder,
    provision_outbound,
    read_outbound,
    remove_tree,
    replace_outbound,
    set_aside_outbound,
)
from mailboxes.schema import open_outbound, outbound_template
from tests.untrusted.images import GOOD, insert_out

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.req("R025")
def test_a_new_outbound_holds_the_template_its_folder_for_files_and_its_lock(tmp_path: Path) -> None:
    outbound = provision_outbound(tmp_path, None, None)

    assert sorted(os.listdir(outbound)) == [".lock", "files", "outbound.db"]
    assert (outbound / "outbound.db").read_bytes() == outbound_template()
    assert os.listdir(tmp_path) == ["outbound"]
    assert not needs_new_outbound(outbound)
    assert [_mode(p) for p in (outbound, outbound / "files", outbound / "outbound.db", outbound / ".lock")] == [
        0o700, 0o700, 0o600, 0o600,
    ]  # fmt: skip


def test_making_it_again_leaves_what_is_there(tmp_path: Path) -> None:
    outbound = provision_outbound(tmp_path, None, None)
    writer = open_outbound(outbound / "outbound.db")
    insert_out(writer, GOOD)
    writer.close()
    image = read_outbound(outbound)

    assert provision_outbound(tmp_path, None, None) == outbound

    assert read_outbound(outbound) == image


def test_half_of_one_that_a_crash_left_is_thrown_away(tmp_path: Path) -> None:
    half = tmp_path / ".outbound.new"
    half.mkdir()
    (half / "outbound.db").write_bytes(b"half")

    assert read_outbound(provision_outbound(tmp_path, None, None)) == outbound_template()
    assert not half.exists()


@needs_root
def test_root_gives_everything_to_the_agents_id(tmp_path: Path) -> None:
    outbound = provision_outbound(tmp_path, 2_000_000_007, 2_000_000_007)
    provision_folder(tmp_path / "state", 2_000_000_007, 2_000_000_007)

    for path in (outbound, tmp_path / "state", *outbound.iterdir()):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (2_000_000_007, 2_000_000_007)
        assert _mode(path) & 0o077 == 0


@needs_root
def test_a_crash_before_the_folder_was_given_away_is_mended(tmp_path: Path) -> None:
    provision_folder(tmp_path / "state", None, None)
    (tmp_path / "state" / "kept").touch()

    provision_folder(tmp_path / "state", 2_000_000_007, 2_000_000_007)

    assert (tmp_path / "state").stat().st_uid == 2_000_000_007
    assert (tmp_path / "state" / "kept").exists()


def test_a_link_in_place_of_a_folder_is_refused_and_its_target_untouched(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o750)
    (tmp_path / "home").symlink_to("target")

    with pytest.raises(BadFile, match="home is a link"):
        provision_folder(tmp_path / "home", os.geteuid(), os.getegid())

    assert _mode(target) == 0o750


@pytest.mark.req("R155")
def test_a_bad_outbound_is_set_aside_whole_and_a_fresh_one_takes_its_place(tmp_path: Path, reader: Reader) -> None:
    outbound = provision_outbound(tmp_path, None, None)
    (outbound / "outbound.db").write_bytes(b"ruined" * 10_000)

    aside = set_aside_outbound(tmp_path, "20260101T000000Z")
    provision_outbound(tmp_path, None, None)

    assert aside == tmp_path / "outbound.bad-20260101T000000Z"
    assert (aside / "outbound.db").read_bytes() == b"ruined" * 10_000
    assert reader.read(read_outbound(outbound), 0).rows == ()


def test_setting_aside_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    assert set_aside_outbound(tmp_path, "x") is None


def test_a_link_in_place_of_outbound_is_itself_set_aside(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "outbound").symlink_to("precious")

    aside = set_aside_outbound(tmp_path, "x")

    assert aside
    assert aside.is_symlink()
    assert (tmp_path / "precious").is_dir()


@pytest.mark.fault(110)
def test_removing_a_tree_follows_no_link_out_of_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "precious").write_text("x")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "link").symlink_to(outside)
    (tree / "a" / "b" / "up").symlink_to("../../..")
    (tree / "a" / "b" / "file").hardlink_to(outside / "deep" / "precious")
    os.mkfifo(tree / "fifo")

    remove_tree(tree)

    assert not tree.exists()
    assert (outside / "deep" / "precious").read_text() == "x"


def test_removing_a_link_removes_the_link(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")

    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "link")

    assert os.listdir(tmp_path) == ["target"]


def _deep(root: Path, depth: int) -> None:
    handle = os.open(root, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=handle)
        deeper = os.open("d", os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = deeper
    os.close(handle)


@pytest.mark.timeout(60)
def test_a_tree_deeper_than_any_path_is_removed_and_measured_as_far_as_is_sensible(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    _deep(tree, 5000)

    size = measure(tree)
    remove_tree(tree)

    assert not size.complete
    assert size.entries > 50
    assert not tree.exists()


def test_a_wide_tree_with_closed_folders_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(1100):
        (tree / f"moved-{number}" / "moved-1" / "x").mkdir(parents=True)
    (tree / "moved-7" / "moved-1").chmod(0)
    (tree / "moved-8").chmod(0o500)

    remove_tree(tree)

    assert not tree.exists()


def test_a_removal_past_its_deadline_says_so_and_can_go_on(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "file").touch()

    with pytest.raises(TreeNotDone, match="not done in 0 s"):
        remove_tree(tree, 0)
    remove_tree(tree)

    assert not tree.exists()


def test_a_tree_is_measured_by_what_it_takes_on_the_disk(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "full").write_bytes(os.urandom(100_000))
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (tree / "out").symlink_to("/usr")

    size = measure(tree)

    assert size.complete
    assert size.entries == 4
    assert 100_000 <= size.bytes < 300_000
    assert measure(tmp_path / "nowhere").entries == 0


def test_a_measuring_past_its_deadline_says_at_least_so_much(tmp_path: Path) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)

    size = measure(tmp_path / "tree", 0)

    assert not size.complete


@pytest.mark.fault(94)
def test_a_mailbox_that_is_spoilt_again_and_again_fills_no_disk(tmp_path: Path) -> None:
    provision_outbound(tmp_path, None, None)
    for minute in range(6):
        (tmp_path / "outbound" / "outbound.db").write_bytes(bytes([minute]))
        replace_outbound(tmp_path, datetime(2026, 1, 1, 0, minute, tzinfo=UTC), None, None)
    kept = sorted(tmp_path.glob("outbound.bad-*"))
    assert [(path / "outbound.db").read_bytes() for path in kept] == [b"\x03", b"\x04", b"\x05"]
    assert not needs_new_outbound(tmp_path / "outbound")
