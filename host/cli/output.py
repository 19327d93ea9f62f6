"""How a command speaks: one document of JSON, or plain narrow tables; colour only on a terminal that wants it."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from host.cli.hints import hint
from host.text import printable, shorten

Row = Mapping[str, object]

_RED, _YELLOW, _DIM, _PLAIN = "\033[31m", "\033[33m", "\033[2m", "\033[0m"
_PROGRESS_AFTER = 1.0
_CELL = 44
_LEAST = 8


def plain(value: object) -> str:
    """A value as it is; nothing for None."""
    return "" if value is None else str(value)


def day_and_time(value: object) -> str:
    """A canonical time stamp to the second, in UTC; "never" for None."""
    return f"{value[:10]} {value[11:19]}" if isinstance(value, str) else "never"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: the JSON field it shows, its heading, and how a value is written."""

    field: str
    heading: str
    show: Callable[[object], str] = plain
    width: int = _CELL


@dataclass(frozen=True, slots=True)
class Output:
    """Where and how to write. `as_json`: one document on standard output; `quiet`: results and errors only."""

    as_json: bool = False
    quiet: bool = False

    def document(self, data: object) -> None:
        """The result for programs."""
        print(json.dumps(data, ensure_ascii=True, indent=None))

    def line(self, text: str = "", *, newlines: bool = False) -> None:
        """One line for people; what came from outside is made safe here, whoever calls."""
        print(printable(text, newlines=newlines), flush=True)

    def note(self, text: str) -> None:
        """What a person may like to know and a program does not: standard error."""
        if not self.quiet and not self.as_json:
            print(printable(hint(text)), file=sys.stderr, flush=True)

    def red(self, text: str) -> None:
        """A line that is bad news."""
        print(paint(printable(hint(text), newlines=True), _RED, sys.stdout), flush=True)

    def yellow(self, text: str) -> None:
        """A line that asks for a look."""
        print(paint(printable(hint(text), newlines=True), _YELLOW, sys.stdout), flush=True)

    def table(self, columns: Sequence[Column], rows: Sequence[Row], empty: str) -> None:
        """Rows as JSON, or as an aligned table; `empty` is said where there are none."""
        if self.as_json:
            self.document(list(rows))
            return
        if not rows:
            self.line(hint(empty))
            return
        cells = [[shorten(printable(c.show(row.get(c.field))), c.width) for c in columns] for row in rows]
        widths = [max(len(c.heading), *(len(line[i]) for line in cells)) for i, c in enumerate(columns)]
        room = _room_for_last(widths) if sys.stdout.isatty() else widths[-1]
        heading = "  ".join(c.heading.ljust(w) for c, w in zip(columns, widths, strict=True)).rstrip()
        print(paint(heading, _DIM, sys.stdout))
        for line in cells:
            *others, last = line
            print(
                "  ".join(
                    [*(cell.ljust(w) for cell, w in zip(others, widths, strict=False)), shorten(last, room)]
                ).rstrip()
            )

    def card(self, columns: Sequence[Column], row: Row) -> None:
        """One thing: JSON, or a line a field."""
        if self.as_json:
            self.document(row)
            return
        width = max(len(c.heading) for c in columns)
        for column in columns:
            shown = printable(column.show(row.get(column.field)), newlines=True)
            first, *rest = shown.split("\n")
            print(f"{column.heading.ljust(width)}  {first}")
            for more in rest:
                print(f"{' ' * width}  {more}")

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """Says what goes on once it has taken over a second, and how long it took; nothing for what is quick."""
        if self.quiet or self.as_json:
            yield
            return
        done = threading.Event()
        started = time.monotonic()
        ticking = threading.Thread(target=self._tick, args=(what, started, done), daemon=True)
        ticking.start()
        try:
            yield
        finally:
            done.set()
            ticking.join()

    def _tick(self, what: str, started: float, done: threading.Event) -> None:
        if done.wait(_PROGRESS_AFTER):
            return
        on_terminal = sys.stderr.isatty()
        print(f"{what} ...", file=sys.stderr, end="" if on_terminal else "\n", flush=True)
        while not done.wait(1.0):
            if on_terminal:
                seconds = time.monotonic() - started
                print(f"\r{what} ... {seconds:.0f} s", file=sys.stderr, end="", flush=True)
        if on_terminal:
            print(f"\r{what} ... {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _room_for_last(widths: Sequence[int]) -> int:
    """Where a line would wrap its last column is cut, as long as something of it is left to read."""
    import shutil

    before = sum(widths[:-1]) + 2 * (len(widths) - 1)
    return max(shutil.get_terminal_size().columns - before, _LEAST)


def paint(text: str, colour: str, stream: object) -> str:
    """`text` in colour where `stream` is a terminal and NO_COLOR is not set."""
    on_terminal = hasattr(stream, "isatty") and stream.isatty()
    if not on_terminal or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"{colour}{text}{_PLAIN}"
