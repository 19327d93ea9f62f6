"""JSON from a sandbox, read so strictly that no two parsers can read two things from it.

The reader's worker imports this: the standard library and `mailboxes` alone.
"""

import json
from collections.abc import Iterable

from mailboxes.limits import MAX_JSON_DEPTH


class NotStrict(ValueError):
    """The text cannot be used; the reason is the end of a sentence about it ("names a field twice")."""


def parse(text: str) -> object:
    """The value of a JSON text that names no field twice and holds neither NaN nor more than MAX_JSON_DEPTH levels.

    Raises NotStrict.
    """
    try:
        value: object = _DECODER.decode(text)
    except NotStrict:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise NotStrict("is no valid JSON") from None
    if text.count("{") + text.count("[") > MAX_JSON_DEPTH and _is_too_deep(value):
        raise _too_deep()
    return value


def dump(value: object) -> str:
    """The value as compact JSON text that is whole in UTF-8. Raises NotStrict."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except RecursionError:
        raise _too_deep() from None
    except UnicodeEncodeError:
        raise NotStrict("holds half a surrogate pair") from None
    except ValueError:
        raise NotStrict("holds a number that is no JSON") from None
    return text


def _no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise NotStrict("names a field twice")
    return made


def _no_constant(name: str) -> object:
    raise NotStrict(f"holds {name}, which is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_no_twins, parse_constant=_no_constant)


def _too_deep() -> NotStrict:
    return NotStrict(f"is nested deeper than {MAX_JSON_DEPTH}")


def _is_too_deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [child for outer in level for child in _children(outer)]
    return any(isinstance(rest, dict | list) for rest in level)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
