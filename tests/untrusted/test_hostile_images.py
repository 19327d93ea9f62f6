"""Images that attack SQLite or the parser: each is refused as a whole, quickly, and spoils no later read."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from host.reader import BadFile, Reader, ReaderUnavailable, examine, pool
from host.reader.examine import MAX_CLAIMS
from mailboxes.limits import MAX_SNAPSHOT_BYTES
from mailboxes.schema import PAGE_SIZE, outbound_template
from tests.untrusted.images import GOOD, insert_out, made_by, with_rows, with_sql, written

_BURN = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
_COLUMNS = (
    "id, seq, turn_id, in_reply_to, timestamp, deliver_after, recurrence, kind, channel_type, account_id, "
    "platform_id, thread_id, content"
)
_REST = (
    "CREATE TABLE claims (message_id, attempt, turn_id, state, reason, retryable);"
    "CREATE TABLE runner_state (id, state, next_seq, beat, runner_hash, turn_id, open_questions, active_tools);"
)
_BURNING = "length(replace(hex(zeroblob(100000)), '0', 'ab'))"


def _wal() -> bytes:
    image = bytearray(outbound_template())
    image[18] = image[19] = 2
    return bytes(image)


def _header(offset: int, value: bytes) -> bytes:
    image = bytearray(outbound_template())
    image[offset : offset + len(value)] = value
    return bytes(image)


def _ddl(*statements: str) -> Callable[[], bytes]:
    return lambda: with_sql("PRAGMA user_version", *statements)


OTHER_SCHEMA: dict[str, Callable[[], bytes]] = {
    "zero bytes": lambda: bytes(4 * PAGE_SIZE),
    "text": lambda: b"no database at all " * 1000,
    "random bytes": lambda: random.Random(1).randbytes(6 * PAGE_SIZE),
    "less than a page": lambda: outbound_template()[:1000],
    "nothing": lambda: b"",
    "a header flipped to WAL": _wal,
    "another page size": lambda: _header(16, b"\x02\x00"),
    "another encoding": lambda: _header(56, (2).to_bytes(4)),
    "another schema cookie": lambda: _header(40, (99).to_bytes(4)),
    "another version": lambda: _header(60, (2).to_bytes(4)),
    "auto-vacuum": lambda: _header(52, (3).to_bytes(4)),
    "a view without end": lambda: made_by(
        f"CREATE VIEW messages_out AS {_BURN} {', '.join(f'x AS {c}' for c in _COLUMNS.split(', '))} FROM c;" + _REST
    ),
    "a generated column that burns": lambda: made_by(
        f"CREATE TABLE messages_out ({_COLUMNS.replace('content', '')} content AS ({_BURNING}));"
        "INSERT INTO messages_out (seq) VALUES (1);" + _REST
    ),
    "a trigger": _ddl("CREATE TRIGGER t AFTER INSERT ON claims BEGIN SELECT 1; END"),
    "an index on an expression": _ddl("CREATE INDEX i ON messages_out (abs(seq))"),
    "an index more": _ddl("CREATE INDEX i ON messages_out (kind)"),
    "a table more": _ddl("CREATE TABLE more (x)"),
    "a column more": _ddl("ALTER TABLE claims ADD COLUMN more TEXT"),
    "statistics": _ddl("INSERT INTO runner_state VALUES (1, 'idle', 1, 1, 'x', NULL, 0, 0)", "ANALYZE"),
    "a CHECK that burns": lambda: made_by(f"CREATE TABLE messages_out ({_COLUMNS}, CHECK ({_BURNING} > 1));" + _REST),
    "a virtual table": _ddl("DROP TABLE claims", "CREATE VIRTUAL TABLE claims USING fts5(message_id)"),
    "a dropped table": _ddl("DROP TABLE claims"),
}  # fmt: skip


@pytest.mark.req("R155", "R196")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", OTHER_SCHEMA)
def test_a_first_page_that_is_not_ours_never_reaches_sqlite(reader: Reader, name: str) -> None:
    image = OTHER_SCHEMA[name]()
    pids = reader.pids

    with pytest.raises(BadFile, match="schema or header"):
        reader.read(image, 0)

    assert sorted(reader.pids) == sorted(pids)  # nobody had to be killed


def _page(number: int, content: bytes) -> bytes:
    image = bytearray(with_rows({}, {}, {}))
    image[(number - 1) * PAGE_SIZE : number * PAGE_SIZE] = content.ljust(PAGE_SIZE, b"\0")
    return bytes(image)


def _cycle(kind: int, number: int) -> bytes:
    """An interior page whose every child is the page itself."""
    cells = 400
    pointers = b"".join((PAGE_SIZE - 9 * (n + 1)).to_bytes(2) for n in range(cells))
    header = bytes([kind]) + b"\0\0" + cells.to_bytes(2) + (PAGE_SIZE - 9 * cells).to_bytes(2) + b"\0"
    page = bytearray((header + number.to_bytes(4) + pointers).ljust(PAGE_SIZE, b"\0"))
    for n in range(cells):
        start = PAGE_SIZE - 9 * (n + 1)
        page[start : start + 4] = number.to_bytes(4)
        page[start + 4] = 1
    return bytes(page)


def _overflow_ring(size: int) -> bytes:
    """A row whose content claims `size` bytes, and whose overflow pages name each other in a ring to provide them."""
    image = bytearray(with_rows({"content": '{"text":"' + "x" * 199_989 + '"}'}))
    start = PAGE_SIZE + int.from_bytes(image[PAGE_SIZE + 8 : PAGE_SIZE + 10])
    header_start = start + len(_varint(200_100)) + 1
    header = image[header_start + 1 : header_start + image[header_start]]
    serials = header[: -len(_varint(2 * 200_000 + 13))] + _varint(2 * size + 13)
    values_start = header_start + image[header_start]
    values = image[values_start : image.index(b'{"text":"', values_start)]
    record = bytes([len(serials) + 1]) + serials + values
    payload = len(record) + size
    local = 489 + (payload - 489) % (PAGE_SIZE - 4)
    if local > PAGE_SIZE - 35:
        local = 489
    cell = _varint(payload) + b"\x01" + record.ljust(local, b"x") + (7).to_bytes(4)
    image[2 * PAGE_SIZE - len(cell) : 2 * PAGE_SIZE] = cell
    image[PAGE_SIZE + 5 : PAGE_SIZE + 7] = image[PAGE_SIZE + 8 : PAGE_SIZE + 10] = (PAGE_SIZE - len(cell)).to_bytes(2)
    for page in range(6 * PAGE_SIZE, len(image), PAGE_SIZE):
        image[page : page + 4] = (7 if page + PAGE_SIZE >= len(image) else page // PAGE_SIZE + 2).to_bytes(4)
    return bytes(image)


def _varint(value: int) -> bytes:
    out = [value & 0x7F]
    while value := value >> 7:
        out.append(value & 0x7F | 0x80)
    return bytes(reversed(out))


def _many_claims() -> bytes:
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO claims VALUES (?, 0, 't', 'processing', NULL, 1)", [(f"m-{n}",) for n in range(MAX_CLAIMS + 1)]
        )
        connection.execute("COMMIT")

    return written(write)


def _index_out_of_step() -> bytes:
    """The index of seq leads to rows that hold other numbers: rows 1 and 3 change places in it."""
    image = bytearray(with_rows({"seq": 101}, {"seq": 103}))
    page = image[3 * PAGE_SIZE : 4 * PAGE_SIZE]
    first, second = int.from_bytes(page[8:10]), int.from_bytes(page[10:12])
    page[8:10], page[10:12] = second.to_bytes(2), first.to_bytes(2)
    image[3 * PAGE_SIZE : 4 * PAGE_SIZE] = page
    return bytes(image)


STRUCTURE: dict[str, Callable[[], bytes]] = {
    "cut in the middle of a page": lambda: with_rows({}, {})[: 5 * PAGE_SIZE + 100],
    "pages missing at the end": lambda: with_rows({}, {})[: 2 * PAGE_SIZE],
    "too large": lambda: with_rows({}).ljust(MAX_SNAPSHOT_BYTES + PAGE_SIZE, b"\0"),
    "table page of noise": lambda: _page(2, random.Random(2).randbytes(PAGE_SIZE)),
    "index page of noise": lambda: _page(4, random.Random(3).randbytes(PAGE_SIZE)),
    "claims page of noise": lambda: _page(5, random.Random(4).randbytes(PAGE_SIZE)),
    "an index that is its own child": lambda: _page(4, _cycle(2, 4)),
    "claims that are their own child": lambda: _page(5, _cycle(2, 5)),
    "a table that is its own child": lambda: _page(2, _cycle(5, 2)),
    "a state table that is its own child": lambda: _page(6, _cycle(5, 6)),
    "an index out of step": _index_out_of_step,
    "too many claims": _many_claims,
}


@pytest.mark.req("R155")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", STRUCTURE)
def test_a_damaged_structure_is_a_bad_file_and_the_next_read_is_served(reader: Reader, name: str) -> None:
    with pytest.raises(BadFile) as refusal:
        reader.read(STRUCTURE[name](), 0)

    assert str(refusal.value).isprintable()
    assert reader.read(with_rows({}), 0).rows


def test_a_value_of_five_megabytes_in_a_small_file_is_a_bad_file(reader: Reader) -> None:
    with pytest.raises(BadFile, match="too big"):
        reader.read(_overflow_ring(5_000_000), 0)


def test_sqlite_is_interrupted_when_it_works_longer_than_any_honest_file_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No image is known that gets so far; the limit is lowered to what an honest one takes."""
    image = with_rows(*[{}] * 150)
    assert len(examine.examine(image, 0)["rows"]) == 150  # type: ignore[arg-type]  # a plain reply

    monkeypatch.setattr(examine, "_MAX_STEPS", 0)

    with pytest.raises(examine.RefusedFile, match="interrupted"):
        examine.examine(image, 0)


@pytest.mark.timeout(120)
def test_thousands_of_mutated_images_bring_nothing_but_bad_files(reader: Reader) -> None:
    """Seeded. Page 1 stays (a change there ends before SQLite), everything behind it is fair game."""

    def claim(connection: sqlite3.Connection) -> None:
        for number in range(60):
            insert_out(
                connection, GOOD | {"id": f"o-{number}", "seq": 2 * number + 1, "content": f'{{"text":"{"x" * 99}"}}'}
            )
            connection.execute("INSERT INTO claims VALUES (?, 0, 't', 'completed', 'because', 1)", (f"m-{number}",))
        connection.execute(
            "INSERT INTO runner_state (id, state, next_seq, beat, runner_hash) VALUES (1, 'idle', 9, 1, 'x')"
        )

    honest = written(claim)
    chance = random.Random(20260101)
    pids = sorted(reader.pids)
    refused = 0
    for _ in range(3000):
        image = bytearray(honest)
        for _ in range(chance.choice((1, 2, 5, 40))):
            where = chance.choice(
                (chance.randrange(PAGE_SIZE, len(image)), chance.randrange(1, 6) * PAGE_SIZE + chance.randrange(16))
            )
            image[where] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            reader.read(bytes(image), 0)
        except BadFile:
            refused += 1

    assert refused > 100
    assert sorted(reader.pids) == pids  # no worker crashed
    assert len(reader.read(honest, 0).rows) == 60


def test_a_worker_that_is_killed_costs_the_file_nothing() -> None:
    with Reader(workers=1) as reader:
        os.kill(reader.pids[0], signal.SIGKILL)

        assert reader.read(with_rows({}), 0).rows


def test_a_worker_that_hangs_once_costs_the_file_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STALL_SECONDS", 0.3)
    with Reader(workers=1) as reader:
        hung = reader.pids[0]
        os.kill(hung, signal.SIGSTOP)

        assert reader.read(with_rows({}), 0).rows
        assert hung not in reader.pids


FAILING_WORKERS = {
    "hangs": "import time; time.sleep(60)",
    "spins": "while True: pass",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "dies in its reply": "os.write(0, (1000).to_bytes(4) + b'{')",
    "answers nonsense": "os.write(0, (2).to_bytes(4) + b'[]')",
    "floods": "os.write(0, b'\\xff' * 1000)",
}
"""What a worker does with an image once something has broken it: stand-ins for a crash that nobody has found yet."""


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", FAILING_WORKERS)
def test_an_image_on_which_two_workers_fail_is_bad_and_the_next_read_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(f"import os\nos.write(0, b'r')\nos.read(0, 1)\n{FAILING_WORKERS[name]}\n")
    with monkeypatch.context() as patch:
        patch.setattr(pool, "STALL_SECONDS", 0.5)
        patch.setattr(pool, "_WORKER", script)
        reader = Reader(workers=1).start()
        with pytest.raises(BadFile, match="the reader"):
            reader.read(with_rows({}), 0)
    try:
        assert reader.read(with_rows({}), 0).rows
    finally:
        reader.close()


def test_a_worker_that_cannot_start_is_no_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_WORKER", tmp_path / "missing.py")

    reader = Reader(workers=1)
    with pytest.raises(ReaderUnavailable, match="did not start"):
        reader.start()
    reader.close()


def test_memory_beyond_the_workers_limit_kills_no_host() -> None:
    """A worker confined like ours that asks for more gets MemoryError, and never the machine's memory."""
    program = "import host.reader.worker as w; w._confine(); bytearray(300 << 20)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.stderr.strip().endswith("MemoryError")


def test_a_worker_may_write_no_file_open_none_and_take_little_memory(reader: Reader) -> None:
    limits = Path(f"/proc/{reader.pids[0]}/limits").read_text()

    rows = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()[1:]}
    assert rows["Max file size"] == ["0", "0"]
    assert rows["Max open files"] == ["3", "3"]
    assert rows["Max address space"] == [str(256 * 1024**2)] * 2
    assert len(os.listdir(f"/proc/{reader.pids[0]}/fd")) == 3


def test_a_worker_of_root_is_nobody(reader: Reader) -> None:
    if os.geteuid():
        pytest.skip("needs root")

    status = Path(f"/proc/{reader.pids[0]}/status").read_text()

    assert "Uid:\t65534\t65534\t65534\t65534" in status
    assert "CapEff:\t0000000000000000" in status


def test_a_worker_sees_no_secret_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")

    with Reader(workers=1) as reader:
        if os.geteuid() == 0 or os.access(f"/proc/{reader.pids[0]}/environ", os.R_OK):
            assert b"secret" not in Path(f"/proc/{reader.pids[0]}/environ").read_bytes()


@pytest.mark.timeout(60)
def test_bad_images_of_one_session_leave_the_others_a_worker(reader: Reader) -> None:
    bad, good = OTHER_SCHEMA["random bytes"](), with_rows({})
    cycle = STRUCTURE["claims that are their own child"]()
    stop = threading.Event()
    refused = 0

    def attack() -> None:
        nonlocal refused
        while not stop.is_set():
            for image in (bad, cycle):
                try:
                    reader.read(image, 0)
                except BadFile:
                    refused += 1

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        read = [reader.read(good, 0).rows[0].id for _ in range(200)]
    finally:
        stop.set()
        attacker.join()

    assert read == ["o-0"] * 200
    assert refused


@pytest.mark.timeout(20)
def test_a_closed_reader_says_so_and_can_be_started_again() -> None:
    reader = Reader(workers=1)
    for _ in range(2):
        with pytest.raises(ReaderUnavailable, match="closed"):
            reader.read(with_rows({}), 0)
        reader.start()
        assert reader.read(with_rows({}), 0).rows
        assert len(reader.pids) == 1
        reader.close()
        reader.close()


def test_what_a_read_cost_is_told_in_processor_seconds(reader: Reader) -> None:
    little = reader.read(with_rows({}), 0).spent_seconds
    much = reader.read(with_rows(*[{"content": '{"text":[' + "1," * 40_000 + "1]}"}] * 10), 0).spent_seconds

    assert 0 < little < much < 2
