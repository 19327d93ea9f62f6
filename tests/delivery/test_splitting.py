"""Text is cut to what a platform takes, and nothing of it is lost."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.splitting import split_text
from mailboxes.limits import MAX_CONTENT_BYTES

TEXTS = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(["\n\n", "\n", " ", "```", "``", "`", "```py\nx = 1\n```", "😀" * 5, "wörd " * 4, "a\n\nb"]),
    ),
    max_size=30,
).map("".join)


def units(text: str, *, utf16: bool) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2 if utf16 else len(text)


@pytest.mark.req("R138")
@given(text=TEXTS, limit=st.integers(2, 60), utf16=st.booleans())
def test_every_chunk_fits_and_only_blanks_are_lost(text: str, limit: int, utf16: bool) -> None:
    chunks = split_text(text, limit, utf16=utf16)
    assert all(units(chunk, utf16=utf16) <= limit for chunk in chunks)
    assert all(chunk.strip() for chunk in chunks)
    rest = text
    for chunk in chunks:
        before, found, rest = rest.partition(chunk)
        assert found
        assert not before.strip()
    assert not rest.strip()
    if all(part.strip() for part in text):
        assert "".join(chunks) == text


@pytest.mark.req("R138")
@given(text=st.text(max_size=40))
def test_a_limit_of_one_character_still_ends(text: str) -> None:
    assert "".join(split_text(text, 1)) == "".join(char for char in text if char.strip())


@pytest.mark.req("R138")
@pytest.mark.fault(26)
@pytest.mark.parametrize("length", [4095, 4096, 4097, 20_000])
def test_a_text_around_the_limit_arrives_whole_and_in_order(length: int) -> None:
    text = "".join(str(number % 10) for number in range(length))
    chunks = split_text(text, 4096)
    assert "".join(chunks) == text
    assert len(chunks) == -(-length // 4096)


@pytest.mark.req("R138")
@pytest.mark.parametrize("text", ["", " ", "\n\n\t ", "\u3000"])
def test_blank_text_gives_no_chunk(text: str) -> None:
    assert split_text(text, 10) == []


@pytest.mark.req("R138")
def test_a_character_beyond_the_first_plane_counts_twice_where_the_platform_counts_so_and_is_never_cut() -> None:
    assert split_text("😀" * 5, 4, utf16=True) == ["😀😀", "😀😀", "😀"]
    assert split_text("a" + "😀" * 2, 4, utf16=True) == ["a😀", "😀"]
    assert split_text("😀" * 5, 4) == ["😀" * 4, "😀"]


@pytest.mark.req("R138")
@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("one two\n\nthree\nfour five", ["one two\n\n", "three\nfour five"]),
        ("one two three\nfour five six", ["one two three\n", "four five six"]),
        ("one two three four five six", ["one two three four ", "five six"]),
        ("x" * 25, ["x" * 20, "x" * 5]),
    ],
    ids=["paragraph", "line", "word", "hard"],
)
def test_a_cut_falls_behind_a_paragraph_then_a_line_then_a_word(text: str, chunks: list[str]) -> None:
    assert split_text(text, 20) == chunks


def fence_spans(text: str) -> list[tuple[int, int]]:
    marks = []
    at = text.find("```")
    while at >= 0:
        marks.append(at)
        at = text.find("```", at + 3)
    return [(opens, closes + 3) for opens, closes in zip(marks[::2], marks[1::2], strict=False)]


WORDS = st.text("ab \n", max_size=40)
FENCES = st.text("xy \n", max_size=60).map(lambda code: f"```\n{code}\n```")


@pytest.mark.req("R138")
@given(parts=st.lists(st.tuples(WORDS, FENCES), max_size=6), limit=st.integers(20, 50))
def test_a_fence_that_fits_into_a_chunk_is_never_cut(parts: list[tuple[str, str]], limit: int) -> None:
    text = "".join(before + fence for before, fence in parts)
    chunks = split_text(text, limit)
    for opens, closes in fence_spans(text):
        if closes - opens <= limit:
            assert any(text[opens:closes] in chunk for chunk in chunks)


@pytest.mark.req("R138")
def test_a_fence_behind_one_that_was_too_long_is_kept_whole() -> None:
    long, short = "```\n" + "line\n" * 10 + "```", "```\nkept whole\n```"
    chunks = split_text(f"{long}\nbetween\n{short}", 30)
    assert any(short in chunk for chunk in chunks)


@pytest.mark.req("R138")
@pytest.mark.parametrize(
    "text", ["word " * 50_000, "```\n" + "x " * 120_000, "😀\n" * 50_000], ids=["words", "fence", "emoji"]
)
def test_the_longest_row_is_split_without_holding_up_the_loop(text: str) -> None:
    assert len(text.encode()) <= MAX_CONTENT_BYTES
    began = time.thread_time()
    split_text(text, 4096, utf16=True)
    assert time.thread_time() - began < 2.0  # the work grows with the length, not with its square
