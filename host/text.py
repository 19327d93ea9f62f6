"""Text from outside, made safe for a terminal, a log or a card."""

import unicodedata

_HIDDEN = frozenset(
    "\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)
"""Direction overrides, marks and isolates, invisible separators: what makes a line read otherwise than it is."""

_TAB = "    "


def printable(text: str, *, newlines: bool = False) -> str:
    """`text` without anything that moves a cursor, changes a colour, reorders or hides: control characters (escape
    sequences lose their ESC and with it their power), direction overrides, lone surrogates, private-use and unassigned
    characters.

    A newline stays where `newlines` is true and is a space otherwise; a tab is spaces. What is taken out leaves U+FFFD,
    so that nobody can hide a word in two halves.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character, newlines=newlines) for character in text.replace("\r\n", "\n"))


def _shown(character: str, *, newlines: bool) -> str:
    if character == "\n":
        return "\n" if newlines else " "
    if character == "\t":
        return _TAB if newlines else " "
    if character in _HIDDEN:
        return "\ufffd"
    category = unicodedata.category(character)
    # Cf also holds what scripts and emoji need (zero-width joiners, soft hyphens): only those of _HIDDEN are refused.
    if category in {"Cc", "Cs", "Co", "Cn"}:
        return "\ufffd"
    if "\U000e0000" <= character <= "\U000e007f":
        return "\ufffd"
    return character


def shorten(text: str, width: int) -> str:
    """At most `width` characters, the cut shown by an ellipsis."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
