"""The host that a test kills while it takes the end of an occurrence over: `python -m tests.time.children FOLDER`."""

import sys
from pathlib import Path

from host.mailbox import Mailbox
from mailboxes.ids import derived_id
from mailboxes.rows import ClaimState
from tests.fakes.clock import FakeClock
from tests.mailbox.made import KEY, claim, snapshot, take

mailbox = Mailbox(KEY, Path(sys.argv[1]), FakeClock().now)
occurrence = derived_id("task-1 2026-01-01T00:00:00.000Z", "occurrence")
take(mailbox, snapshot(claims=[claim(occurrence, ClaimState.COMPLETED)]))
