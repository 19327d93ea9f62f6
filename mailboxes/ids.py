"""Row ids: random for what is new, derived for what follows from another row (doing it twice is doing it once)."""

import re
import secrets
import uuid

_NAMESPACE = uuid.UUID("6f0b7a52-7f0e-4c7e-9a55-1d6a52b4f7c1")
_ROW_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_DERIVED_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str, length: int = 12) -> str:
    """A random id such as ``m-3k9x0v2m1abc``: `length` characters of 5 bits each behind the prefix."""
    return f"{prefix}-{''.join(_ALPHABET[byte % 32] for byte in secrets.token_bytes(length))}"


def derived_id(cause: str, purpose: str) -> str:
    """The id of the row that `cause` brings about for `purpose`: the same each time it is asked for."""
    return str(uuid.uuid5(_NAMESPACE, f"{purpose}\0{cause}"))


def is_derived_id(text: str) -> bool:
    """Whether `text` has the form of a derived id. What it is derived from is known to many, so whoever may choose ids
    freely must not choose one of these: it would keep the row that it stands for from being written."""
    return _DERIVED_ID.fullmatch(text) is not None


def is_row_id(text: object) -> bool:
    """Whether `text` may be a row id; only such text ever becomes part of a path."""
    return isinstance(text, str) and _ROW_ID.fullmatch(text) is not None
