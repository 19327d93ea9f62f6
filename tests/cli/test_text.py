"""Text from outside, before a person sees it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.log import for_people
from host.text import printable, shorten


@pytest.mark.parametrize(
    ("given_text", "shown"),
    [
        ("plain", "plain"),
        ("Grüße, 你好, שלום", "Grüße, 你好, שלום"),
        ("\x1b[31mred\x1b[0m", "\ufffd[31mred\ufffd[0m"),
        ("\x1b]0;title\x07", "\ufffd]0;title\ufffd"),
        ("\x9b31m", "\ufffd31m"),
        ("a\rb", "a\ufffdb"),
        ("a\x08b\x7f", "a\ufffdb\ufffd"),
        ("user\u202etxt.exe", "user\ufffdtxt.exe"),
        ("a\u2066b\u2069", "a\ufffdb\ufffd"),
        ("a\u200bb", "a\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ("tag\U000e0041", "tag\ufffd"),
        ("one\ntwo\tthree", "one two three"),
        ("family \U0001f468\u200d\U0001f469", "family \U0001f468\u200d\U0001f469"),
    ],
)
def test_what_moves_hides_or_reorders_is_taken_out_and_words_stay(given_text: str, shown: str) -> None:
    assert printable(given_text) == shown


def test_lines_stay_where_they_may() -> None:
    assert printable("one\r\ntwo\n\x1bthree", newlines=True) == "one\ntwo\n\ufffdthree"


@given(st.text(st.characters()))
def test_whatever_comes_the_result_can_be_written_and_holds_no_control_character(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in shown)
    assert printable(shown) == shown


def test_a_cut_is_shown() -> None:
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abc", 4) == "abc"


@given(st.text(st.characters()))
def test_a_line_of_the_log_never_moves_the_cursor(line: str) -> None:
    assert "\x1b" not in for_people(line)
