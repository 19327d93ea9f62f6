"""The sweep wakes what is due; a time that passed without anybody is looked at first."""

from datetime import timedelta

from host.due import DueIndex
from host.items import SessionRef
from host.sweep import Sweep
from mailboxes.clock import to_text
from tests.fakes.clock import FakeClock

A, B, C = (SessionRef("ag-1", name) for name in ("s-a", "s-b", "s-c"))


class Woken:
    """The fleet's ear."""

    def __init__(self) -> None:
        self.keys: list[SessionRef] = []

    def notify(self, key: SessionRef) -> None:
        self.keys.append(key)


async def nothing() -> None:
    return None


async def test_a_session_that_is_late_is_mended_first_and_woken_only_if_it_is_still_due(clock: FakeClock) -> None:
    due, woken, mended = DueIndex(), Woken(), []
    later = to_text(clock.now() + timedelta(hours=1))

    async def mend(key: SessionRef) -> str | None:
        mended.append(key)
        if key == A:
            return later
        raise OSError("the disk is gone")

    sweep = Sweep(due, woken, clock, nothing, mend)  # type: ignore[arg-type]
    due.set(A, to_text(clock.now() - timedelta(hours=3)))
    due.set(B, to_text(clock.now() - timedelta(hours=3)))
    due.set(C, to_text(clock.now() - timedelta(seconds=3)))
    await sweep.tick()
    await clock.advance(0)
    assert mended == [A, B]
    assert sorted(woken.keys, key=lambda key: key.session_id) == [B, C]
    assert due.take(later) == [A]
