"""`./up`: what it says about machines that will not do. (Its install is tried by hand and in CI on a fresh machine.)"""

import os
import shutil
import subprocess
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
    machine.program("python3.13", 'case "$1" in -c) exit 0 ;; esac; echo "made by 3.13"; exit 7')
    code, said = machine.up(shell)
    assert code == 1
    assert "made by 3.13" in said
    assert "Making .venv failed" in said
    assert "run ./up again" in said
