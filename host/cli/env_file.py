"""The home's .env: secrets and nothing else, yours to edit; what we write keeps every other line."""

import os
import re
import secrets
from pathlib import Path


def read_secret(path: Path, name: str) -> str | None:
    """The value of `name`; None where the file or the name is missing, or the value is empty."""
    from dotenv import dotenv_values

    return dotenv_values(path, interpolate=False).get(name) or None


def write_secret(path: Path, name: str, value: str) -> None:
    """Sets `name` to a one-line `value`: the file is replaced at once and whole, readable by us alone."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    assignment = re.compile(rf"\s*(export\s+)?{re.escape(name)}\s*=")
    kept = [line for line in lines if assignment.match(line) is None]
    text = "\n".join([*kept, f"{name}='{escaped}'"]) + "\n"
    building = path.with_name(f".env.{secrets.token_hex(6)}.new")
    descriptor = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        building.replace(path)
    except BaseException:
        building.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
