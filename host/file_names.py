"""Names of files that somebody else chose, made safe for a path, a shell and a prompt."""

import re
import unicodedata

from mailboxes.media_types import extension_of

MAX_NAME_BYTES = 120

_UNSAFE = re.compile(r"[^\w.-]+")


def safe_name(name: str, kind: str = "") -> str:
    """One component of a path: letters, digits, dot, dash and underscore, at most MAX_NAME_BYTES of UTF-8, never empty
    and never a beginning that means something (dot, dash). A name without an extension gets that of its type."""
    last = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode()).replace("\\", "/").rstrip("/")
    plain = _UNSAFE.sub("_", last.rpartition("/")[2]).strip("._-")
    stem, dot, extension = plain.rpartition(".")
    if not dot or len(extension.encode()) > 12:
        stem, extension = plain, extension_of(kind)
    ending = f".{extension}" if extension else ""
    stem = stem.encode()[: MAX_NAME_BYTES - len(ending.encode())].decode(errors="ignore").rstrip("._-")
    return f"{stem or 'file'}{ending}"
