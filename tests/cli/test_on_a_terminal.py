"""Setup and chat as a person at a terminal sees them."""

import os
import stat
import sys

import pytest

from host.cli.env_file import read_secret
from host.home import Home
from host.lock import holder
from tests.cli.screen import Screen
from tests.fakes.messages_api import MessagesApi

pytestmark = pytest.mark.timeout(150)

KEY = "sk-ant-right-key"


def _screen(*words: str, **environment: str) -> Screen:
    return Screen([sys.executable, "-m", "host", *words], {**os.environ, **environment})


def test_setup_asks_for_the_key_hidden_proves_it_and_keeps_it(home: Home) -> None:
    with (
        MessagesApi(KEY) as api,
        _screen("setup", ANTHROPIC_BASE_URL=api.url, INNKEEPER_TIME_ZONE="Europe/Berlin") as at,
    ):
        at.expect("Model key")
        at.type("sk-ant-wrong-key\n")
        at.expect("refused (401)")
        at.expect("Model key", after="refused (401)")
        at.type(f"{KEY}\n")
        at.expect("Next:")
        at.end()
    assert KEY not in at.said
    assert "wrong-key" not in at.said
    assert "10 tokens in, 5 out, $" in at.said
    assert "Europe/Berlin" in at.said
    assert read_secret(home.env_file, "ANTHROPIC_API_KEY") == KEY
    assert stat.S_IMODE(home.env_file.stat().st_mode) == 0o600
    assert len(api.calls) == 2


def test_setup_again_asks_nothing_and_proves_the_key_that_is_there(home: Home) -> None:
    home.env_file.write_text(f"ANTHROPIC_API_KEY={KEY}\n")
    with (
        MessagesApi(KEY) as api,
        _screen("setup", ANTHROPIC_BASE_URL=api.url, INNKEEPER_TIME_ZONE="Europe/Berlin") as at,
    ):
        at.expect("Next:")
        at.end()
    assert "Model key (hidden" not in at.said
    assert "works (from .env)" in at.said
    assert home.env_file.read_text() == f"ANTHROPIC_API_KEY={KEY}\n"


def test_enter_looks_around_without_a_key_and_writes_none(home: Home) -> None:
    with _screen("setup", INNKEEPER_TIME_ZONE="Europe/Berlin") as at:
        at.expect("Model key")
        at.type("\n")
        at.expect("a rehearsal answers")
        at.expect("Next:")
        at.end()
    assert not home.env_file.exists()


def test_a_chosen_time_zone_is_stored(home: Home) -> None:
    with _screen("setup", TZDIR="/usr/share/zoneinfo") as at:
        at.expect("Model key")
        at.type("\n")
        at.expect("time zone" if _machine_has_a_zone() else "Your time zone")
        if not _machine_has_a_zone():
            at.type("Nowhere/Land\n")
            at.expect("it takes a zone")
            at.type("Europe/Berlin\n")
            at.expect("Europe/Berlin (from database)")
        at.end()
    assert holder(home.lock_file) is None


def _machine_has_a_zone() -> bool:
    return os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2] not in {"", "UTC", "Etc/UTC"}


@pytest.mark.req("R066")
def test_at_the_prompt_one_writes_reads_the_answer_and_ctrl_d_ends_host_and_all(home: Home) -> None:
    with _screen("chat") as at:
        at.expect("you>")
        at.type("hello\r")
        at.expect("(rehearsal, no model) hello", after="you>")
        at.expect("agent> ")
        at.type("one\x1b\rtwo\r")
        at.expect("two", after="(rehearsal, no model) one")
        at.expect("you>", after="(rehearsal, no model) one")
        assert at.end(pressing="\x04") == 0
    assert holder(home.lock_file) is None


def test_quit_ends_the_prompt(home: Home) -> None:
    with _screen("chat") as at:
        at.expect("you>")
        at.type("/quit\r")
        assert at.end() == 0
    assert holder(home.lock_file) is None


def test_ctrl_c_on_an_empty_line_ends_it_cleanly(home: Home) -> None:
    with _screen("chat") as at:
        at.expect("you>")
        at.type("\x03")
        assert at.end() == 0
    assert "Traceback" not in at.said
    assert holder(home.lock_file) is None


def test_ctrl_c_stops_a_host_in_front_in_good_order(home: Home) -> None:
    with _screen("up") as at:
        at.expect("The host runs on")
        at.type("\x03")
        assert at.end() == 0
    assert "Traceback" not in at.said
    assert holder(home.lock_file) is None


def test_bare_host_in_a_new_home_is_the_setup(home: Home) -> None:
    with _screen(INNKEEPER_TIME_ZONE="Europe/Berlin") as at:
        at.expect("Model key")
        at.end(pressing="\x04")
    assert "Traceback" not in at.said


def test_a_table_does_not_wrap_in_a_narrow_terminal(home: Home) -> None:
    with _screen("chat", "--once", "a message that is longer than a narrow line has room for") as at:
        assert at.end() == 0
    with _screen("messages", COLUMNS="100") as at:
        assert at.end() == 0
    lines = at.said.splitlines()
    assert lines[0].startswith("ID")
    assert max(len(line) for line in lines) <= 100
    assert any(line.endswith("…") for line in lines)
