"""Finds the thing that a person means: its name first, then any unique beginning of its id, `last` for the newest."""

from collections.abc import Sequence

from host.failure import Code, Failure

Row = dict[str, object]

_NAMES = ("name", "folder")
_SHOWN = 5
_LISTS = {"setting": "config"}
"""Things whose list is not called as they are."""


def rows_of(answer: object) -> list[Row]:
    """The rows of a view's answer; anything else counts as none."""
    return [row for row in answer if isinstance(row, dict)] if isinstance(answer, list) else []


def find(rows: Sequence[Row], text: str, noun: str) -> Row:
    """The row that `text` names, among `rows` with the newest first. Raises Failure when there is none, or more than
    one."""
    if text == "last" and rows:
        return rows[0]
    named = [row for row in rows if any(row.get(field) == text for field in _NAMES)]
    found = named or [row for row in rows if row.get("id") == text]
    found = found or [row for row in rows if text and str(row.get("id", "")).startswith(text)]
    if len(found) == 1:
        return found[0]
    listing = f"See `host {_LISTS.get(noun, f'{noun}s')} list`."
    if not found:
        raise Failure(Code.NOT_FOUND, f"There is no {noun} {text!r}.", listing)
    ids = ", ".join(str(row.get("id")) for row in found[:_SHOWN])
    raise Failure(
        Code.AMBIGUOUS, f"{text!r} may be any of {len(found)} {noun}s ({ids}).", f"Write more of the id. {listing}"
    )
