"""Cuts a long text into chunks that a platform takes."""

import re
from bisect import bisect_right
from collections.abc import Callable

_FENCE = "```"


def split_text(text: str, limit: int, *, utf16: bool = False) -> list[str]:
    """The text in chunks of at most `limit` units (characters, or UTF-16 units where the platform counts so).

    Their concatenation is the text (chunks that would hold blanks alone are left out). A cut falls behind a paragraph
    if possible, else behind a line, else behind a word, and inside a code fence only when the fence alone is longer
    than a chunk. Blank text gives no chunk.
    """
    if not text.strip():
        return []
    measure = _utf16_units if utf16 else len
    chunks = []
    start = 0
    while measure(rest := text[start:]) > limit:
        window = rest[: _fitting(rest, limit, measure)]
        cut = _best_cut(window, within_fence=text.count(_FENCE, 0, start) % 2 == 1)
        chunks.append(rest[:cut])
        start += cut
    chunks.append(rest)
    return [chunk for chunk in chunks if chunk.strip()]


def _utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _fitting(text: str, limit: int, measure: Callable[[str], int]) -> int:
    """The most leading characters of `text` that measure at most `limit` (at least one)."""
    low, high = 1, min(len(text), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if measure(text[:middle]) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _best_cut(window: str, *, within_fence: bool) -> int:
    fences = [mark.end() for mark in re.finditer(_FENCE, window)]

    def outside(end: int) -> bool:
        return (bisect_right(fences, end) + within_fence) % 2 == 0

    for separator in ("\n\n", "\n", " "):
        cut = window.rfind(separator)
        while cut > 0:
            end = cut + len(separator)
            if outside(end):
                return end
            cut = window.rfind(separator, 0, cut)
    # A hard cut falls at the end, but not between the backticks of a fence.
    whole = max(len(window.rstrip("`")), fences[-1] if fences else 0) or len(window)
    if outside(whole):
        return whole
    if (opening := window.rfind(_FENCE)) > 0 and outside(opening):
        return opening
    for separator in ("\n", " "):
        cut = window.rfind(separator)
        if cut > 0:
            return cut + len(separator)
    return whole
