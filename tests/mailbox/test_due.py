"""The index of due times says which stopped session to look at, and when."""

import pytest

from host.due import DueIndex
from host.items import SessionRef

A, B, C = (SessionRef("ag-1", name) for name in ("s-a", "s-b", "s-c"))


@pytest.mark.req("R133")
def test_sessions_come_out_in_order_of_time_each_once() -> None:
    index = DueIndex()
    for key, due in ((A, "2026-01-01T00:00:30.000Z"), (B, ""), (C, "2026-01-01T00:00:10.000Z")):
        index.set(key, due)
    assert len(index) == 3
    assert index.take("2026-01-01T00:00:10.000Z") == [B, C]
    assert index.take("2026-01-01T00:00:10.000Z") == []
    assert index.take("2026-01-01T00:01:00.000Z") == [A]
    assert len(index) == 0


@pytest.mark.req("R133")
def test_the_last_time_set_is_the_one_that_counts() -> None:
    index = DueIndex()
    for due in ("2026-01-01T00:00:10.000Z", "2026-01-01T00:00:40.000Z", "2026-01-01T00:00:10.000Z"):
        index.set(A, due)
    assert index.take("2026-01-01T00:00:20.000Z") == [A]
    assert index.take("2026-01-01T00:01:00.000Z") == []


@pytest.mark.req("R133")
def test_a_session_with_nothing_due_any_more_is_not_looked_at() -> None:
    index = DueIndex()
    index.set(A, "")
    index.set(A, None)
    index.set(B, None)
    assert index.take("2026-01-01T00:00:00.000Z") == []
    index.set(A, "")
    assert index.take("2026-01-01T00:00:00.000Z") == [A]
