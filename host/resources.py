"""Finds what the host reads besides its code: migrations, the agent template, the Dockerfile.

An installed wheel carries them in host/_data; a clone has them at its top level.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource(name: str) -> Path:
    """The path of a shipped file or folder, such as ``migrations`` or ``groups/template``."""
    installed = _PACKAGE / "_data" / name
    return installed if installed.exists() else _PACKAGE.parent / name


def source_of(package: str) -> Path:
    """The folder of one of our own packages, such as ``agent_runner``."""
    return _PACKAGE.parent / package
