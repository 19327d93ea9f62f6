"""A real runner process writes at full speed; only whole commits may ever be accepted."""

import subprocess
import sys
from pathlib import Path

import pytest

from host.reader import Reader, Snapshot
from host.untrusted import JournalActive, TornSnapshot, read_outbound
from mailboxes.schema import open_outbound, outbound_template
from tests.untrusted import writer

SECONDS = "3"


def _writer(outbound: Path, seconds: str = SECONDS) -> subprocess.Popen[str]:
    command = [sys.executable, writer.__file__, str(outbound / "outbound.db"), seconds]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    return process


def _number(snapshot: Snapshot) -> int:
    """The number of the commit, after checking that all of the snapshot belongs to that one."""
    assert snapshot.state
    assert not snapshot.bad_rows
    number = snapshot.state.next_seq
    assert snapshot.state.beat == number
    if number:
        assert {row.turn_id for row in snapshot.rows} == {f"t-{number}"}
        assert len(snapshot.rows) == writer.rows_of(number)
        assert [claim.turn_id for claim in snapshot.claims] == [f"t-{number}"]
    return number


@pytest.mark.req("R026")
@pytest.mark.timeout(60)
def test_under_a_runner_at_full_speed_only_whole_commits_are_accepted(outbound: Path, reader: Reader) -> None:
    process = _writer(outbound)
    numbers: list[int] = []
    torn = 0
    while process.poll() is None:
        try:
            image = read_outbound(outbound)
        except TornSnapshot:
            torn += 1
            continue
        numbers.append(_number(reader.read(image, 0)))
    printed, _ = process.communicate()

    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 20, f"{torn} torn"
    assert _number(reader.read(read_outbound(outbound), 0)) == int(printed)


@pytest.mark.req("R026")
@pytest.mark.timeout(60)
def test_what_a_killed_runner_leaves_is_whole_or_a_hot_journal_that_the_next_runner_rolls_back(
    outbound: Path, reader: Reader
) -> None:
    rolled_back = 0
    for commits in range(1, 16):
        process = _writer(outbound, "30")
        while _reached(outbound, reader) < commits:
            pass
        process.kill()
        process.communicate()
        try:
            image = read_outbound(outbound)
        except JournalActive:
            rolled_back += 1
            next_runner = open_outbound(outbound / "outbound.db")
            next_runner.execute("SELECT * FROM claims").fetchall()
            next_runner.close()
            image = read_outbound(outbound)
        assert _number(reader.read(image, 0)) >= commits
        (outbound / "outbound.db").write_bytes(outbound_template())
    assert rolled_back < 15  # whole files were among what was left


def _reached(outbound: Path, reader: Reader) -> int:
    try:
        snapshot = reader.read(read_outbound(outbound), 0)
    except TornSnapshot:
        return 0
    return _number(snapshot) if snapshot.state else 0
