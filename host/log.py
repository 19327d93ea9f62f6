"""The host's log: one event a line, as JSON, in logs/host.log; `log.info("what happened", session=...)`.

Written by a thread of its own, so a slow disk never holds up the loop. Two promises hold for every line, whoever wrote
it (a library's own log included): no secret that the host was given is in it, and from INFO up no message's text.
"""

import io
import json
import logging
import os
import queue
import sys
import urllib.parse
from collections.abc import Iterable, MutableMapping
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any, Self

import structlog

from host.text import printable
from mailboxes.clock import to_text

LOG_NAME = "host.log"
MAX_BYTES = 10 * 1024 * 1024
BACKUPS = 4
"""host.log and four older ones: 50 MiB at most."""

_SHORTEST_SECRET = 6
_CONTENT_FIELDS = frozenset({"text", "content", "prompt", "body"})
_LOUD_LIBRARIES = ("httpx", "httpcore", "docker", "urllib3", "alembic", "asyncio", "anthropic")
"""They log whole URLs at INFO, and a URL may hold a token."""


class Secrets:
    """The values that must not appear in a log: every key the host was given, in each form that a library might
    print."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._forms: list[str] = []
        for value in values:
            self.add(value)

    def add(self, value: str) -> None:
        """From here on `value` is struck out."""
        if len(value) < _SHORTEST_SECRET:
            return
        forms = {value, urllib.parse.quote(value, safe=""), urllib.parse.quote(value)}
        forms |= {repr(form)[1:-1] for form in forms}
        for _ in range(2):  # as a value of the line, and inside a JSON text that is one
            forms |= {json.dumps(form)[1:-1] for form in forms}
        # Longest first: a form that holds another must not leave its rest behind.
        self._forms = sorted({*self._forms, *forms}, key=len, reverse=True)

    def strike(self, line: str) -> str:
        """`line` with every secret replaced."""
        for form in self._forms:
            line = line.replace(form, "[secret]")
        return line


class HostLog:
    """Owns the file and its thread between `start` and `stop`; `stop` returns when every line is written."""

    def __init__(self, folder: Path, secrets: Secrets, *, console: bool = False, debug: bool = False) -> None:
        self._folder = folder
        self._secrets = secrets
        self._console = console
        self._level = logging.DEBUG if debug else logging.INFO
        self._listener: QueueListener | None = None
        self._handler: QueueHandler | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Every logger of this process writes here from now on."""
        lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        handlers: list[logging.Handler] = [_PrivateFile(self._folder / LOG_NAME, MAX_BYTES, BACKUPS)]
        if self._console:
            handlers.append(_Console())
        self._listener = QueueListener(lines, *handlers)
        self._handler = QueueHandler(lines)
        self._handler.setFormatter(_formatter(self._secrets))
        root = logging.getLogger()
        root.addHandler(self._handler)
        root.setLevel(self._level)
        for name in _LOUD_LIBRARIES:
            logging.getLogger(name).setLevel(logging.WARNING)
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.PositionalArgumentsFormatter(),
                *_SHARED,
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        self._listener.start()

    def stop(self) -> None:
        """Writes what waits, then lets go of the loggers."""
        if self._listener is None or self._handler is None:
            return
        logging.getLogger().removeHandler(self._handler)
        self._listener.stop()
        for handler in self._listener.handlers:
            handler.close()
        self._listener = None
        structlog.reset_defaults()


def _stamp(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event["time"] = to_text(datetime.now(UTC))
    return event


def _without_content(_logger: Any, name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if name != "debug":
        for field in _CONTENT_FIELDS & event.keys():
            event[field] = f"[{len(str(event[field]))} characters]"
    return event


_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    _without_content,
    _stamp,
    structlog.processors.format_exc_info,
]


def _formatter(secrets: Secrets) -> logging.Formatter:
    def render(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> str:
        first = {key: event.pop(key) for key in ("time", "level", "event", "logger") if key in event}
        # ASCII alone: no control character, no direction override, no line break survives in a line.
        return secrets.strike(json.dumps({**first, **event}, default=repr))

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *_SHARED],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
    )


class _PrivateFile(RotatingFileHandler):
    """host.log, readable by us alone, never through a link."""

    def __init__(self, path: Path, max_bytes: int, backups: int) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=backups, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")


class _Console(logging.StreamHandler[Any]):
    """`host up` in front: the same lines for people."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        return for_people(record.getMessage())


def for_people(line: str) -> str:
    """A line of host.log as a person reads it: time, level where it matters, event, fields; safe for a terminal.

    A line that is no JSON (cut by a crash) is shown as it is.
    """
    try:
        fields = json.loads(line)
    except ValueError:
        return printable(line)
    if not isinstance(fields, dict):
        return printable(line)
    time, level = str(fields.pop("time", ""))[:19].replace("T", " "), str(fields.pop("level", ""))
    event, exception = str(fields.pop("event", "")), str(fields.pop("exception", ""))
    fields.pop("logger", None)
    shown = " ".join(f"{key}={value}" for key, value in fields.items())
    mark = "" if level in {"info", "debug"} else f"{level.upper()} "
    text = printable(" ".join(part for part in (time, f"{mark}{event}", shown) if part))
    return f"{text}\n{printable(exception, newlines=True)}" if exception else text
