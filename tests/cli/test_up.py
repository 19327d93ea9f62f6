"""`./up`: what it says about machines that will not do. (Its install is tried by hand and in CI on a fresh machine.)"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
PLAIN = [
    "dirname",
    "id",
    "awk",
    "cat",
    "cut",
    "sort",
    "sha256sum",
    "find",
    "sed",
    "tail",
    "mkdir",
    "rm",
    "date",
    "sleep",
    "chmod",
]


class Machine:
    """A folder of programs that is the whole PATH, and a clone with nothing but `up`."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "bin"
        self.clone = folder / "clone"
        self.programs.mkdir()
        self.clone.mkdir()
        shutil.copy(ROOT / "up", self.clone / "up")
        for name in PLAIN:
            self.link(name)
        self.program("uname", "echo Linux")
        self.program("getconf", "echo 64")
        self.program("df", "echo head; echo / 9 1 2097152 1 /")
        self.program("git", "exit 0")
        self.program("python3", "exit 0")

    def link(self, name: str) -> None:
        found = shutil.which(name)
        assert found is not None
        (self.programs / name).symlink_to(found)

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
        path.chmod(0o755)

    def up(self, shell: str) -> tuple[int, str]:
        shell_path = shutil.which(shell)
        assert shell_path is not None
        arguments = [shell_path, "sh"] if shell == "busybox" else [shell_path]
        ran = subprocess.run(
            [*arguments, str(self.clone / "up")],
            env={"PATH": str(self.programs)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, ran.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_says_on_what_it_runs_where_that_is_not_linux(machine: Machine, shell: str) -> None:
    machine.program("uname", "echo Darwin")
    code, said = machine.up(shell)
    assert code == 1
    assert "Linux only for now, and this is Darwin" in said


def test_it_needs_64_bits_and_room(machine: Machine, shell: str) -> None:
    machine.program("df", "echo head; echo / 9 1 1024 1 /")
    code, said = machine.up(shell)
    assert code == 1
    assert "1 MiB free" in said
    machine.program("getconf", "echo 32")
    assert "32 bits" in machine.up(shell)[1]


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt-get", "apt-get install -y python3 python3-venv git"),
        ("dnf", "dnf install -y python3.12 git"),
        ("pacman", "pacman -S --needed python git"),
        ("zypper", "zypper install -y python312 git"),
        ("apk", "apk add python3 git"),
    ],
)
def test_one_line_of_this_machines_package_manager_installs_all_that_is_missing(
    machine: Machine, shell: str, manager: str, line: str
) -> None:
    machine.program(manager, "exit 0")
    machine.program("python3", "exit 1")
    (machine.programs / "git").unlink()
    code, said = machine.up(shell)
    assert code == 1
    wanted = line if os.geteuid() == 0 else f"sudo {line}"
    assert said.splitlines()[-1].strip() == wanted


def test_a_python_without_venv_needs_that_alone(machine: Machine, shell: str) -> None:
    machine.program("apt-get", "exit 0")
    machine.program("python3", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    _, said = machine.up(shell)
    assert said.splitlines()[-1].strip().removeprefix("sudo ") == "apt-get install -y python3-venv"


def test_a_newer_python_beside_an_old_one_is_found(machine: Machine, shell: str) -> None:
    machine.program("python3", "exit 1")
    machine.program("python3.12", "exit 1")
    machine.program(
        "python3.13", '[ "$1" != -c ] || { shift 2; [ $# = 0 ] && exit 0; exec "$@"; }; echo "made by 3.13"; exit 7'
    )
    code, said = machine.up(shell)
    assert code == 1
    assert "made by 3.13" in said
    assert "Making .venv failed" in said
    assert "run ./up again" in said


SLOW_VENV = """
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin" && printf 'exit 1' >"$3/bin/python" && chmod +x "$3/bin/python"
    sleep 300 &
    printf '%s' "$!" >"$3.grandchild"
    wait
fi
"""


def _await(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True
    return state.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_during_the_install_leaves_no_half_environment_and_no_process(
    machine: Machine, shell: str, number: signal.Signals
) -> None:
    machine.program("python3", f'{SLOW_VENV}\nexec {sys.executable} "$@"')
    (machine.clone / "requirements.lock").write_text("")
    command = [str(shutil.which(shell)), *(["sh"] if shell == "busybox" else []), str(machine.clone / "up")]
    with subprocess.Popen(
        command, env={"PATH": str(machine.programs)}, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as up:
        noted = machine.clone / ".venv.grandchild"
        _await(lambda: noted.exists() and noted.read_text())
        up.send_signal(number)
        _, said = up.communicate(timeout=20)
    assert up.returncode == 130
    assert "Run ./up again" in said
    assert not (machine.clone / ".venv").exists()
    _await(lambda: _is_gone(int(noted.read_text())))


def test_an_environment_that_was_left_half_made_is_made_again(machine: Machine, shell: str) -> None:
    half = machine.clone / ".venv/bin/python"
    half.parent.mkdir(parents=True)
    half.write_text("#!/bin/sh\nexit 1")
    half.chmod(0o755)
    machine.program("python3", f'[ "$1 $2" != "-m venv" ] || {{ echo made anew; exit 7; }}\nexec {sys.executable} "$@"')
    code, said = machine.up(shell)
    assert code == 1
    assert "made anew" in said
    assert "run ./up again" in said
