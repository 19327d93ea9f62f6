"""Log lines of the runner: one JSON object a line on standard error; facts that it can name, never a message's text."""

import json
import os
import sys

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_threshold = _LEVELS.get(os.environ.get("LOG_LEVEL", "").lower(), _LEVELS["info"])


def log(event: str, level: str = "info", **facts: object) -> None:
    """Writes one line; `facts` are ids, counts, names and reasons of our own making."""
    if _LEVELS[level] >= _threshold:
        sys.stderr.write(json.dumps({"level": level, "event": event, **facts}, default=str) + "\n")
