import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mailboxes.schema import (
    IN_COLUMNS,
    INBOUND_VERSION,
    OUTBOUND_SCHEMA,
    OUTBOUND_VERSION,
    PAGE_SIZE,
    HostAway,
    create_inbound,
    masked_page1,
    open_inbound,
    open_inbound_to_read,
    open_outbound,
    outbound_template,
    reading,
    transaction,
)

ROOT = Path(__file__).resolve().parents[2]


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, tuple[str, bool, str | None, bool]]:
    """name -> (type, not null, default, part of the primary key)."""
    rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return {row["name"]: (row["type"], bool(row["notnull"]), row["dflt_value"], bool(row["pk"])) for row in rows}


@pytest.fixture
def inbound(tmp_path: Path) -> Path:
    path = tmp_path / "inbound.db"
    create_inbound(path)
    return path


@pytest.fixture
def outbound(tmp_path: Path) -> Path:
    path = tmp_path / "outbound.db"
    path.write_bytes(outbound_template())
    return path


@pytest.mark.req("R017")
def test_messages_in_has_every_column_of_the_contract(inbound: Path) -> None:
    connection = open_inbound(inbound)
    columns = _columns(connection, "messages_in")
    connection.close()

    assert list(columns) == IN_COLUMNS.split(", ")
    assert columns["id"] == ("TEXT", False, None, True)
    assert columns["kind"] == columns["timestamp"] == columns["content"] == ("TEXT", True, None, False)
    assert columns["status"][2] == "'pending'"
    assert (columns["tries"][0], columns["tries"][2]) == ("INTEGER", "0")
    optional = (
        "status_changed",
        "process_after",
        "recurrence",
        "platform_id",
        "channel_type",
        "thread_id",
        "account_id",
    )
    for name in (*optional, "series_id", "slot", "source_session", "principal"):
        assert columns[name] == ("TEXT", False, None, False), name
    assert {"seq", "trigger", "on_wake"} <= columns.keys()


@pytest.mark.req("R018")
def test_messages_out_has_every_column_of_the_contract_and_no_delivery_state(outbound: Path) -> None:
    connection = open_outbound(outbound)
    columns = _columns(connection, "messages_out")
    connection.close()

    assert columns["id"] == ("TEXT", False, None, True)
    assert columns["kind"] == columns["timestamp"] == columns["content"] == ("TEXT", True, None, False)
    assert columns["seq"][0] == "INTEGER"
    optional = ("turn_id", "in_reply_to", "deliver_after", "recurrence", "channel_type", "account_id", "platform_id")
    for name in (*optional, "thread_id"):
        assert columns[name] == ("TEXT", False, None, False), name
    assert "delivered" not in columns


@pytest.mark.req("R018")
def test_delivery_state_lives_in_the_hosts_file(inbound: Path) -> None:
    connection = open_inbound(inbound)
    columns = _columns(connection, "deliveries")
    connection.close()

    assert {"id", "state", "attempts", "next_attempt_at", "platform_ids", "chunks_done", "last_error"} <= columns.keys()


@pytest.mark.req("R025")
def test_both_files_keep_a_rollback_journal_and_the_settings_of_their_writer(inbound: Path, outbound: Path) -> None:
    def pragmas(connection: sqlite3.Connection) -> dict[str, object]:
        names = ("journal_mode", "synchronous", "locking_mode", "cache_spill", "secure_delete", "user_version")
        try:
            return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}
        finally:
            connection.close()

    hosts, runners = pragmas(open_inbound(inbound)), pragmas(open_outbound(outbound))

    assert (hosts["journal_mode"], runners["journal_mode"]) == ("delete", "delete")
    assert (hosts["synchronous"], runners["synchronous"]) == (2, 0)
    assert hosts["secure_delete"] == 1
    assert (runners["locking_mode"], runners["cache_spill"]) == ("normal", 0)
    assert (hosts["user_version"], runners["user_version"]) == (INBOUND_VERSION, OUTBOUND_VERSION)


@pytest.mark.req("R025")
def test_a_file_that_was_switched_to_wal_is_switched_back(outbound: Path) -> None:
    other = sqlite3.connect(outbound)
    other.execute("PRAGMA journal_mode=WAL")
    other.close()

    connection = open_outbound(outbound)
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    connection.close()

    assert mode == "delete"


@pytest.mark.req("R025")
def test_the_runner_makes_neither_file(tmp_path: Path) -> None:
    with pytest.raises(HostAway):
        open_outbound(tmp_path / "outbound.db")
    with pytest.raises(HostAway):
        open_inbound_to_read(tmp_path / "inbound.db")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("R025")
def test_the_runners_connection_to_inbound_cannot_write(inbound: Path) -> None:
    connection = open_inbound_to_read(inbound)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM messages_in")
    connection.close()


def test_making_inbound_again_leaves_what_is_there(inbound: Path) -> None:
    connection = open_inbound(inbound)
    connection.execute(
        "INSERT INTO messages_in (id, kind, timestamp, content, seq) VALUES ('m-1', 'chat', 'x', '{}', 2)"
    )
    connection.close()

    create_inbound(inbound)

    connection = open_inbound(inbound)
    assert connection.execute("SELECT count(*) FROM messages_in").fetchone()[0] == 1
    connection.close()


def test_a_hot_journal_of_the_host_reads_as_host_away_until_the_host_is_back(inbound: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from mailboxes.schema import open_inbound\n"
        "c = open_inbound(Path(sys.argv[1])); c.execute('PRAGMA cache_size=1'); c.execute('BEGIN IMMEDIATE')\n"
        "c.executemany('INSERT INTO messages_in (id, kind, timestamp, content, seq) VALUES (?, ?, ?, ?, ?)',"
        " [(f'm-{n}', 'chat', 'x', 'y' * 2000, n) for n in range(300)])\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(inbound)], cwd=ROOT, check=False)
    assert inbound.with_name("inbound.db-journal").stat().st_size

    reader = open_inbound_to_read(inbound)
    with pytest.raises(HostAway), reading():
        reader.execute("SELECT count(*) FROM messages_in").fetchone()

    host = open_inbound(inbound)
    host.execute("SELECT 1 FROM messages_in").fetchone()
    with reading():
        assert reader.execute("SELECT count(*) FROM messages_in").fetchone()[0] == 0
    host.close()
    reader.close()


def test_what_is_no_absence_of_the_host_is_raised_as_it_is(inbound: Path) -> None:
    connection = open_inbound_to_read(inbound)
    with pytest.raises(sqlite3.OperationalError, match="no such table"), reading():
        connection.execute("SELECT * FROM nowhere")
    connection.close()


def test_a_transaction_is_all_or_nothing(outbound: Path) -> None:
    connection = open_outbound(outbound)
    with pytest.raises(sqlite3.IntegrityError), transaction(connection):
        connection.execute("INSERT INTO claims VALUES ('m-1', 0, 't', 'processing', NULL, 1)")
        connection.execute("INSERT INTO claims VALUES ('m-1', 0, 't', 'processing', NULL, 1)")
    assert connection.execute("SELECT count(*) FROM claims").fetchone()[0] == 0
    with transaction(connection):
        connection.execute("INSERT INTO claims VALUES ('m-1', 0, 't', 'processing', NULL, 1)")
    assert connection.execute("SELECT count(*) FROM claims").fetchone()[0] == 1
    connection.close()


def _schema(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return [
        tuple(row) for row in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY rowid")
    ]


@pytest.mark.req("R196")
def test_the_template_is_what_the_schema_makes_and_all_of_it_fits_page_one(outbound: Path) -> None:
    made = sqlite3.connect(":memory:")
    made.executescript(OUTBOUND_SCHEMA)
    shipped = sqlite3.connect(outbound)
    try:
        assert _schema(shipped) == _schema(made)
        assert shipped.execute("PRAGMA user_version").fetchone() == (OUTBOUND_VERSION,)
        assert shipped.execute("PRAGMA page_size").fetchone() == (PAGE_SIZE,)
        assert shipped.execute("PRAGMA auto_vacuum").fetchone() == (0,)
        assert shipped.execute("PRAGMA freelist_count").fetchone() == (0,)
    finally:
        made.close()
        shipped.close()
    # A b-tree leaf (13): no part of sqlite_master lies on another page.
    assert outbound_template()[100] == 13


_WRITE = """
BEGIN;
INSERT INTO messages_out (id, seq, timestamp, kind, content) VALUES ('o-1', 1, 'x', 'chat', hex(zeroblob(50000)));
INSERT INTO claims VALUES ('m-1', 0, 't', 'completed', NULL, 1);
INSERT INTO runner_state (id, state, next_seq, beat, runner_hash) VALUES (1, 'idle', 1, 1, 'x');
COMMIT;
DELETE FROM messages_out;
"""


@pytest.mark.req("R196")
def test_writing_rows_changes_page_one_in_the_masked_ranges_alone(outbound: Path) -> None:
    connection = open_outbound(outbound)
    connection.executescript(_WRITE)
    connection.close()

    image = outbound.read_bytes()
    assert image[:PAGE_SIZE] != outbound_template()[:PAGE_SIZE]
    assert masked_page1(image) == masked_page1(outbound_template())


def _other_sqlites() -> list[str]:
    """Interpreters of this machine with another SQLite than ours."""
    homes = [Path("/usr/bin"), Path("/usr/local/bin"), *Path.home().glob(".pyenv/versions/*/bin")]
    found = []
    for candidate in (home / "python3" for home in homes):
        if not candidate.exists():
            continue
        done = subprocess.run(
            [candidate, "-c", "import sqlite3; print(sqlite3.sqlite_version)"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 and done.stdout.strip() != sqlite3.sqlite_version:
            found.append(str(candidate))
    return found


@pytest.mark.req("R196")
def test_another_version_of_sqlite_leaves_page_one_alike(outbound: Path) -> None:
    others = _other_sqlites()
    if not others:
        pytest.skip(f"every SQLite of this machine is {sqlite3.sqlite_version}")
    program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.close()"
    for other in others:
        outbound.write_bytes(outbound_template())
        subprocess.run([other, "-c", program, str(outbound), _WRITE], check=True)
        assert masked_page1(outbound.read_bytes()) == masked_page1(outbound_template()), other


_HOST = """
import json, sys, time
from pathlib import Path
from mailboxes.schema import open_inbound, transaction
c = open_inbound(Path(sys.argv[1]) / "inbound.db")
ends, n = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < ends:
    n += 1
    with transaction(c):
        c.execute("INSERT INTO messages_in (id, kind, timestamp, content, seq) VALUES (?, 'chat', 'x', '{}', ?)",
                  (f"m-{n}", 2 * n))
        c.execute("INSERT INTO deliveries (id, seq, kind, timestamp, content) VALUES (?, ?, 'chat', 'x', '{}')",
                  (f"o-{n}", 2 * n + 1))
print(json.dumps({"written": n}))
"""

_RUNNER = """
import json, sys, time
from pathlib import Path
from mailboxes.schema import open_inbound_to_read, open_outbound, reading, transaction, HostAway
folder = Path(sys.argv[1])
i, o = open_inbound_to_read(folder / "inbound.db"), open_outbound(folder / "outbound.db")
ends, claimed, seen_last, away = time.monotonic() + float(sys.argv[2]), 0, 0, []
while True:
    over = time.monotonic() > ends
    try:
        with reading():
            rows = i.execute("SELECT id, seq FROM messages_in WHERE seq > ? ORDER BY seq", (seen_last,)).fetchall()
    except HostAway as error:
        away.append(error.__cause__.sqlite_errorname)
        continue
    for row in rows:
        with transaction(o):
            o.execute("INSERT INTO claims VALUES (?, 0, 't', 'completed', NULL, 1)", (row["id"],))
            o.execute("INSERT INTO messages_out (id, seq, timestamp, kind, content) VALUES (?, ?, 'x', 'chat', '{}')",
                      ("o" + row["id"], row["seq"] + 1))
        claimed, seen_last = claimed + 1, row["seq"]
    if over and not rows:
        break
print(json.dumps({"claimed": claimed, "away": away}))
"""


@pytest.mark.req("R026")
@pytest.mark.timeout(60)
def test_two_processes_hammer_one_mailbox_and_no_row_is_lost(tmp_path: Path, inbound: Path, outbound: Path) -> None:
    """The host inserts and keeps its ledger, the runner claims and answers. A "locked" error would end
    either of them; the runner sees each row exactly once."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), seconds], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for program, seconds in ((_HOST, "3"), (_RUNNER, "4"))
    ]
    host, runner = (json.loads(process.communicate()[0]) for process in processes)

    assert [process.returncode for process in processes] == [0, 0]
    assert host["written"] > 20
    assert runner["claimed"] == host["written"]
    # Commits back to back may starve a reader past its 250 ms; `reading` makes that a wait, no error and no loss.
    assert set(runner["away"]) <= {"SQLITE_BUSY"}
    for path, table in (
        (inbound, "messages_in"),
        (inbound, "deliveries"),
        (outbound, "claims"),
        (outbound, "messages_out"),
    ):
        connection = sqlite3.connect(path)
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == host["written"]
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        connection.close()
