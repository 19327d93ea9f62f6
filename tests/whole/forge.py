"""Makes host processes quickly: imports the host once and forks for each.

A storm starts dozens; each is a process of its own that can be killed like any other. Lines of JSON on standard input:
{"environment", "output"} → {"started": pid}; an ended one is told as {"ended": [pid, code]}. It ends with its standard
input.
"""

import importlib
import json
import os
import select
import signal
import sys
import traceback

import host.app  # noqa: F401  what the forks start with
import mailboxes.crash
from host.cli.main import main
from tests.fire import seams


def _become_host(environment: dict[str, str], output: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, source in ((0, null), (1, descriptor), (2, descriptor)):
        os.dup2(source, number)
    importlib.reload(mailboxes.crash)  # its crash point is this process's, not the forge's
    if "INNKEEPER_TEST_SEAMS" in os.environ:
        seams.install(os.environ.pop("INNKEEPER_TEST_SEAMS"))
    sys.argv = ["host", "up"]
    main()


def _tell(fact: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _tell({"ended": [pid, os.waitstatus_to_exitcode(status)]})


def _serve() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    while True:
        ready, _, _ = select.select([sys.stdin, reading], [], [])
        if reading in ready:
            os.read(reading, 4096)
            _reap()
        if sys.stdin in ready:
            line = sys.stdin.buffer.raw.readline()  # type: ignore[attr-defined]  unbuffered: select must see what is left
            if not line:
                return
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    _become_host(**request)
                except SystemExit as end:
                    os._exit(end.code if isinstance(end.code, int) else 1)
                except Exception:  # noqa: BLE001  nobody else would see it
                    traceback.print_exc()
                finally:
                    os._exit(70)
            _tell({"started": pid})


if __name__ == "__main__":
    _serve()
