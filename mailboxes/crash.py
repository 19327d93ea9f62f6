"""Named crash points, so that "killed right here" is a test and not a hope.

`INNKEEPER_CRASH_AT=after_claim` kills the process with SIGKILL where it passes `crash_at("after_claim")`;
`after_claim:2` only the first two times, counted by files in the folder `INNKEEPER_CRASH_DIR`. Unset, a point costs one
comparison. A sandbox gets these variables only from a test: they are in no environment that the host makes by itself.
"""

import os
import signal
from pathlib import Path

_NAME, _, _times = os.environ.get("INNKEEPER_CRASH_AT", "").partition(":")


def _may_still_crash() -> bool:
    folder = Path(os.environ["INNKEEPER_CRASH_DIR"])
    for count in range(int(_times)):
        try:
            (folder / f"crashed-{_NAME}-{count}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return True
    return False


def crash_at(point: str) -> None:
    """Dies here and now if this point was named; returns otherwise."""
    if point == _NAME and (not _times or _may_still_crash()):
        os.kill(os.getpid(), signal.SIGKILL)
