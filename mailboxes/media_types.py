"""What a file is, by what is in it. A name and a declared type are somebody's word; the first bytes are its own."""

import re

HEAD_BYTES = 4096
"""How much of a file `media_type` wants to see."""

UNKNOWN = "application/octet-stream"

_BEGINNINGS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"\xff\xf3", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
    (4, b"ftypheic", "image/heic"),
    (4, b"ftypmif1", "image/heic"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypM4A", "audio/mp4"),
    (4, b"ftypqt", "video/quicktime"),
    (4, b"ftyp", "video/mp4"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"BM", "image/bmp"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
    (0, b"\x7fELF", "application/x-executable"),
    (0, b"MZ", "application/vnd.microsoft.portable-executable"),
)
"""(place, bytes, type): the first that fits is it."""

_OFFICE = "application/vnd.openxmlformats-officedocument"
_INSIDE_ZIP = {
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "pptx": f"{_OFFICE}.presentationml.presentation",
    "odt": "application/vnd.oasis.opendocument.text",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "epub": "application/epub+zip",
}
_TEXTS = {
    "csv": "text/csv",
    "md": "text/markdown",
    "html": "text/html",
    "htm": "text/html",
    "json": "application/json",
    "xml": "application/xml",
    "svg": "image/svg+xml",
    "py": "text/x-python",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "toml": "application/toml",
}
_EXTENSIONS = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/heic": "heic",
    "application/pdf": "pdf",
    "application/zip": "zip",
    "audio/ogg": "ogg",
    "audio/mpeg": "mp3",
    "audio/mp4": "m4a",
    "audio/wav": "wav",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "text/plain": "txt",
}
_KNOWN_BY_CONTENT = {kind for _, _, kind in _BEGINNINGS}
_A_TYPE = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+-]{0,90}")


def media_type(head: bytes, name: str = "", declared: str = "") -> str:
    """The type of a file that begins with `head` (HEAD_BYTES of it, or all where it is shorter).

    Content decides; the name's extension says what kind of text or of archive it is; what was declared counts only for
    content that tells nothing, and never for a type that the content would have told.
    """
    extension = name.rpartition(".")[2].lower()
    for place, beginning, kind in _BEGINNINGS:
        if head[place : place + len(beginning)] == beginning:
            return _INSIDE_ZIP.get(extension, kind) if kind == "application/zip" else kind
    if _is_text(head):
        return _TEXTS.get(extension, "text/plain")
    declared = declared.partition(";")[0].strip().lower()
    if _A_TYPE.fullmatch(declared) and declared not in _KNOWN_BY_CONTENT and not declared.startswith("text/"):
        return declared
    return UNKNOWN


def extension_of(kind: str) -> str:
    """The usual ending of a file of that type, without a dot; "" where there is no need for one."""
    return _EXTENSIONS.get(kind, "")


def _is_text(head: bytes) -> bool:
    if b"\0" in head:
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) >= HEAD_BYTES and error.start > len(head) - 4  # a character that the end of `head` cuts
    return True
