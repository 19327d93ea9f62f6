"""What a read of an outbound.db gives, and the frames in which host and worker talk."""

import struct
from dataclasses import dataclass

from mailboxes.rows import Claim, MessageOut, RunnerState

READY = b"r"
"""The first byte of a worker: it has confined itself."""

REQUEST = struct.Struct("!qI")
"""after_seq and the length of the image that follows."""

REPLY = struct.Struct("!I")
"""The length of the JSON that follows."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used. `id` is printable and cut; `seq` is None where that is what is wrong with it."""

    table: str
    id: str
    seq: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was read from one image.

    rows            of messages_out, by seq, at most 200 and 1 MiB; contents re-serialised, times canonical
    claims          all of them
    state           the runner's own row, None before its first
    bad_rows        set aside; the others are not affected
    more            there are rows beyond: read again with the highest seq seen here
    spent_seconds   processor time that this read took, to be charged to the session's budget
    """

    rows: tuple[MessageOut, ...]
    claims: tuple[Claim, ...]
    state: RunnerState | None
    bad_rows: tuple[BadRow, ...]
    more: bool
    spent_seconds: float

    @property
    def highest_seq(self) -> int | None:
        """The highest seq among good and bad rows."""
        bad = (row.seq for row in self.bad_rows if row.seq is not None)
        return max((*(row.seq for row in self.rows), *bad), default=None)
