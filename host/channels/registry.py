"""Which channels there are: those of this package by name, and those of other packages by the entry-point group
innkeeper.channels.

Nothing is imported until it is asked for: a platform's SDK costs a second, and who does not use it does not pay.
"""

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points

from host.channels.base import Manifest

GROUP = "innkeeper.channels"

_SHIPPED: Mapping[str, str] = {"terminal": "host.channels.terminal"}
"""channel_type -> the module whose MANIFEST announces it."""


class ChannelUnknown(Exception):
    """There is no such channel; the text names those that there are."""


def channel_types() -> list[str]:
    """Every channel that can be loaded, in order of name."""
    return sorted({*_SHIPPED, *(entry.name for entry in entry_points(group=GROUP))})


def manifest(channel_type: str) -> Manifest:
    """What a channel announces. Shipped ones come first: a plugin cannot take their place. Raises ChannelUnknown."""
    if module := _SHIPPED.get(channel_type):
        found: object = importlib.import_module(module).MANIFEST
    else:
        found = next((entry.load() for entry in entry_points(group=GROUP, name=channel_type)), None)
    if not isinstance(found, Manifest) or found.channel_type != channel_type:
        raise ChannelUnknown(f"There is no channel {channel_type!r}. There are: {', '.join(channel_types())}.")
    return found
