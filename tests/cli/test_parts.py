"""The small parts of the command line, as tables."""

from pathlib import Path

import pytest

from host.cli.commands.agents import folder_of
from host.cli.finding import find
from host.cli.hints import hint, program
from host.cli.main import COMMANDS, Words, page, split
from host.failure import EXIT_CODES, Code, Failure

ROWS: list[dict[str, object]] = [
    {"id": "a-777", "name": "main", "folder": "main"},
    {"id": "a-789", "name": "porter", "folder": "night-porter"},
    {"id": "main-1", "name": "other", "folder": "other"},
]


@pytest.mark.parametrize(
    ("text", "found"),
    [("main", "a-777"), ("night-porter", "a-789"), ("a-78", "a-789"), ("a-777", "a-777"), ("last", "a-777")],
)
def test_a_thing_is_found_by_name_first_then_by_the_beginning_of_its_id(text: str, found: str) -> None:
    assert find(ROWS, text, "agent")["id"] == found


@pytest.mark.parametrize(("text", "code"), [("a-7", Code.AMBIGUOUS), ("zzz", Code.NOT_FOUND), ("", Code.NOT_FOUND)])
def test_what_is_not_found_or_ambiguous_says_so_with_exit_code_5(text: str, code: Code) -> None:
    with pytest.raises(Failure) as caught:
        find(ROWS, text, "agent")
    assert caught.value.code is code
    assert EXIT_CODES[code] == 5


@pytest.mark.parametrize(
    ("name", "folder"), [("Night porter", "night-porter"), ("Ünder", "nder"), ("a" * 80, "a" * 64), ("x_1", "x_1")]
)
def test_a_folder_is_made_from_the_name(name: str, folder: str) -> None:
    assert folder_of(name) == folder


def test_a_name_of_which_nothing_is_left_needs_a_folder() -> None:
    with pytest.raises(Failure) as caught:
        folder_of("你好")
    assert "--folder" in caught.value.next


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["status", "--json"], Words(None, frozenset({"--json"}), ("status",))),
        (["chat", "hi", "--home", "/x", "-q"], Words("/x", frozenset({"--quiet"}), ("chat", "hi"))),
        (["--home=/x", "-y", "agents", "add"], Words("/x", frozenset({"--yes"}), ("agents", "add"))),
        (["chat", "--", "-y"], Words(None, frozenset(), ("chat", "--", "-y"))),
        ([], Words(None, frozenset(), ())),
    ],
)
def test_options_of_the_program_may_stand_behind_the_command(words: list[str], found: Words) -> None:
    assert split(words) == found


def test_a_home_without_a_folder_is_wrong_usage() -> None:
    with pytest.raises(Failure) as caught:
        split(["status", "--home"])
    assert caught.value.code is Code.USAGE


def test_the_help_fits_a_terminal_and_names_every_command_and_option() -> None:
    lines = page().splitlines()
    assert [line for line in lines if len(line) > 80] == []
    shown = {line.split()[0].rstrip(",") for line in lines if line.startswith("  ")}
    assert shown >= {*COMMANDS, "--home", "--json", "-q", "-y", "--dry-run", "--debug", "-h"}


def test_a_hint_names_the_program_as_it_is_called_in_this_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INNKEEPER_PROGRAM", ".venv/bin/host --home .")
    program.cache_clear()
    try:
        assert hint("See `host logs`, then host up. The host is away.") == (
            "See `.venv/bin/host --home . logs`, then .venv/bin/host --home . up. The host is away."
        )
    finally:
        program.cache_clear()


def test_another_program_called_host_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    for folder, names in ((ours, ("host", "innkeeper")), (other, ("host",))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(ours / "host")])
    for path, called in (
        (f"{other}:{ours}", "innkeeper"),
        (f"{ours}:{other}", "host"),
        (str(other), str(ours / "host")),
    ):
        monkeypatch.setenv("PATH", path)
        program.cache_clear()
        assert program() == called
    program.cache_clear()
