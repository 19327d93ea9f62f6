import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboxes.ids import derived_id, is_row_id, new_id


def test_new_ids_are_row_ids_and_differ() -> None:
    ids = {new_id("m") for _ in range(1000)}

    assert len(ids) == 1000
    assert all(is_row_id(made) and made.startswith("m-") and len(made) == 14 for made in ids)


@given(st.text(), st.text())
def test_a_derived_id_is_a_row_id_and_always_the_same(cause: str, purpose: str) -> None:
    made = derived_id(cause, purpose)

    assert is_row_id(made)
    assert made == derived_id(cause, purpose)
    assert uuid.UUID(made).version == 5


def test_cause_and_purpose_are_kept_apart() -> None:
    assert len({derived_id("a", "b"), derived_id("b", "a"), derived_id("ab", ""), derived_id("", "ab")}) == 4


@given(st.text(max_size=70))
def test_what_is_a_row_id_is_safe_as_a_name_in_a_path(text: str) -> None:
    if is_row_id(text):
        assert text.isascii()
        assert 1 <= len(text) <= 64
        assert not set(text) & set("./\\\0\n ~$'\"")


@pytest.mark.fault(110)
@pytest.mark.parametrize(
    "value", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\0", "a\n", "a b", "ä", "\u0661", "x" * 65, None, 7, b"a"]
)
def test_anything_else_is_none(value: object) -> None:
    assert not is_row_id(value)
