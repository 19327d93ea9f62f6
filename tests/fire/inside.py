"""What a hostile sandbox does, played in the runner's place: this file's text is the sandbox's program.

`play(agent)` strikes when the agent's folder is called after an attack (`fifo` strikes at the first start only,
`fifo-always` at each) and then is the honest runner, as any other agent's sandbox is from the start.
"""

import contextlib
import fcntl
import itertools
import json
import os
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

OUT = Path("/workspace/outbound")
DB = OUT / "outbound.db"
IN = Path("/workspace/inbound/inbound.db")
STATE = Path("/workspace/state")
BELL = "/workspace/run/bell.sock"
SOMEBODY = ("terminal", "local", "cli-calm")
PENDING_BYTE = 0x40000000


def play(agent: str) -> NoReturn:
    """Is the agent's sandbox from here on."""
    name, _, always = agent.partition("-")
    if name in ATTACKS and not os.environ.get("RUNNER_MODE") and (always or _first_time()):
        ATTACKS[name]()
    _be_honest()


def _first_time() -> bool:
    marker = STATE / "struck"
    if marker.exists():
        return False
    marker.touch()
    return True


def _be_honest() -> NoReturn:
    import mailboxes.limits

    mailboxes.limits.BEAT_SECONDS = 0.3  # the host of these tests waits seconds for a beat, not a minute
    _follow_wall()
    from agent_runner.__main__ import main

    sys.exit(main([]))


def _follow_wall() -> None:
    """The wall clock is off by the seconds in a file, where the test has put one."""
    import datetime as dt

    from mailboxes.clock import SystemClock

    real, wall = SystemClock.now, STATE / "wall"

    def now(clock: SystemClock) -> dt.datetime:
        return real(clock) + dt.timedelta(seconds=float(wall.read_text()) if wall.exists() else 0)

    SystemClock.now = now  # type: ignore[method-assign, assignment]


def _hang() -> NoReturn:
    """Lives on, and rings, until the host does something about it."""
    with _bell() as bell:
        while True:
            bell.send(b"r")
            time.sleep(0.1)  # the host looks at each ring


def _bell() -> socket.socket:
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bell.connect(BELL)
    return bell


def _ask(sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(f"file:{IN}?mode=ro", uri=True, timeout=5)) as inbound:
        return inbound.execute(sql).fetchall()


def _message() -> tuple[Any, ...]:
    """The message that is open: id, tries, and its address."""
    while not (
        rows := _ask(
            "SELECT id, tries, channel_type, account_id, platform_id FROM messages_in "
            "WHERE status IN ('pending', 'processing') ORDER BY seq LIMIT 1"
        )
    ):
        time.sleep(0.01)  # nothing tells a program without a runner
    found: tuple[Any, ...] = rows[0]
    return found


def _until_taken(row_id: str) -> None:
    while not _ask(f"SELECT 1 FROM deliveries WHERE id='{row_id}'"):
        time.sleep(0.01)  # nothing tells a program without a runner


@contextlib.contextmanager
def _outbox() -> Any:
    connection = sqlite3.connect(DB, timeout=5, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    with contextlib.closing(connection):
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")


def _say(
    db: sqlite3.Connection,
    row_id: str,
    seq: int,
    *,
    kind: str = "chat",
    content: str | None = None,
    address: tuple[str, ...] | None = None,
    turn: str | None = None,
) -> None:
    db.execute(
        "INSERT INTO messages_out (id, seq, turn_id, timestamp, kind, content, channel_type, account_id, platform_id) "
        "VALUES (?,?,?,'2026-01-01T00:00:00.000Z',?,?,?,?,?)",
        (row_id, seq, turn, kind, content or json.dumps({"text": row_id}), *(address or _message()[2:])),
    )


def _replaced_by(make: Callable[[], object]) -> Callable[[], NoReturn]:
    def attack() -> NoReturn:
        DB.unlink()
        make()
        _hang()

    return attack


def _overwritten(do: Callable[[], object]) -> Callable[[], NoReturn]:
    def attack() -> NoReturn:
        do()
        _hang()

    return attack


def _end_in_half_a_page() -> None:
    with DB.open("r+b") as file:
        file.truncate(4096 + 100)
        file.seek(24)
        file.write(b"\0\0\1\0")  # the change counter: a file that has not changed is not looked at


def _swap_for_a_while() -> None:
    """Whole images in turn, each under another inode, as fast as they can be renamed."""
    original = DB.read_bytes()
    ends = time.monotonic() + 1.5
    with _bell() as bell:
        for number in itertools.count():
            fresh = OUT / f"fresh-{number % 2}"
            fresh.write_bytes(original)
            fresh.replace(DB)
            if number % 50 == 0:
                bell.send(b"r")
            if time.monotonic() > ends:
                return


def _hold(start: int, length: int) -> Callable[[], NoReturn]:
    def attack() -> NoReturn:
        handle = os.open(IN, os.O_RDONLY)
        fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB, length, start)
        (STATE / "holding").touch()
        _hang()

    return attack


def _odd_rows() -> None:
    deep = '{"text":' + "[" * 100 + "]" * 100 + "}"
    with _outbox() as db:
        _say(db, "good-1", 1)
        _say(db, "odd-kind", 3, kind="zzz")
        _say(db, "odd-json", 5, content="{broken")
        _say(db, "odd-depth", 7, content=deep)
        _say(db, "../../etc/passwd", 9)
        _say(db, "odd-even", 10)
        _say(db, "odd-twice", 13, content='{"text":"a","text":"b"}')
        _say(db, "good-2", 15)


def _forge_addresses() -> None:
    with _outbox() as db:
        _say(db, "forged-1", 1, address=("telegram", "bot", "42"))
        _say(db, "forged-2", 3, address=SOMEBODY)


def _use_a_seq_twice() -> None:
    with _outbox() as db:
        _say(db, "first-use", 1)
    _until_taken("first-use")
    with _outbox() as db:
        db.execute("DELETE FROM messages_out")
        _say(db, "second-use", 1)
        _say(db, "after-it", 3)
    _until_taken("after-it")


def _in_background(work: Callable[[], object]) -> Callable[[], None]:
    def attack() -> None:
        if os.fork() == 0:
            with contextlib.suppress(OSError):
                work()
            os._exit(0)

    return attack


def _ring_without_end() -> None:
    with _bell() as bell:
        while True:
            bell.send(b"r")


def _connect_without_end() -> None:
    while True:
        _bell().close()


def _burn() -> NoReturn:
    for _ in range(3):
        if os.fork() == 0:
            break
    while True:
        pass


def _speak_without_end() -> None:
    """Row after row, as fast as the host takes them over, then a while of honest work."""
    numbers, ends = itertools.count(1, 2), time.monotonic() + 3
    with _bell() as bell:
        while time.monotonic() < ends:
            last = ""
            with _outbox() as db:
                db.execute("DELETE FROM messages_out")
                for seq in itertools.islice(numbers, 200):
                    last = f"flood-{seq}"
                    _say(db, last, seq, address=("telegram", "bot", "42"))
            bell.send(b"r")
            _until_taken(last)


def _fill_the_outbox() -> NoReturn:
    """More than any reader takes, without ever waiting."""
    filler = json.dumps({"text": "x" * 2000})
    for seq in itertools.count(1, 2):
        with _outbox() as db:
            _say(db, f"fill-{seq}", seq, content=filler, address=("telegram", "bot", "42"))
    raise AssertionError


def _die_in_a_commit() -> NoReturn:
    """Claims the message, says something, and ends with half of the next commit in the file, its journal hot."""
    message_id, tries, *_ = _message()
    with _outbox() as db:
        db.execute("INSERT INTO claims VALUES (?,?,'turn-1','processing',NULL,1)", (message_id, tries))
        _say(db, "said-before", 1, turn="turn-1")
    if os.fork() == 0:
        _tear()
    os.wait()
    os._exit(137)  # a container's first process cannot kill itself


def _tear() -> NoReturn:
    torn = sqlite3.connect(DB, isolation_level=None)
    torn.execute("PRAGMA cache_size=2")
    torn.execute("BEGIN IMMEDIATE")
    torn.execute("DELETE FROM claims")
    for seq in range(3, 203, 2):
        _say(torn, f"torn-{seq}", seq, content=json.dumps({"text": "x" * 3000}), turn="turn-1")
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def _leave() -> NoReturn:
    sys.stderr.write("these are my last words\n")
    sys.exit(3)


def _link_to_the_hosts() -> None:
    """To the path that the test names, a file of the host's."""
    target = STATE / "target"
    while not target.exists():
        time.sleep(0.01)  # nothing tells a program without a runner
    DB.symlink_to(target.read_text())


ATTACKS: dict[str, Callable[[], object]] = {
    "random": _overwritten(lambda: DB.write_bytes(os.urandom(65536))),
    "truncated": _overwritten(lambda: os.truncate(DB, 100)),
    "halfpage": _overwritten(_end_in_half_a_page),
    "huge": _overwritten(lambda: os.truncate(DB, 3 * 1024**3)),
    "missing": _replaced_by(lambda: None),
    "fifo": _replaced_by(lambda: os.mkfifo(DB)),
    "folder": _replaced_by(DB.mkdir),
    "device": _replaced_by(lambda: DB.symlink_to("/dev/zero")),
    "hostlink": _replaced_by(_link_to_the_hosts),
    "hardlink": _overwritten(lambda: os.link(DB, OUT / "again")),
    "fifojournal": _overwritten(lambda: os.mkfifo(f"{DB}-journal")),
    "swapped": _swap_for_a_while,
    "shared": _hold(PENDING_BYTE + 2, 510),
    "reserved": _hold(PENDING_BYTE + 1, 1),
    "odd": _odd_rows,
    "forged": _forge_addresses,
    "twice": _use_a_seq_twice,
    "ringing": _in_background(_ring_without_end),
    "connecting": _in_background(_connect_without_end),
    "burning": _in_background(_burn),
    "speaking": _speak_without_end,
    "filling": _fill_the_outbox,
    "torn": _die_in_a_commit,
    "leaving": _leave,
}
