"""The settings that everything shares. A channel or a provider reads its own in its own module."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError


class SettingRefused(Exception):
    """A setting's value cannot be used; the text names the setting, the reason and the next step."""


def _machine_zone() -> str:
    zone = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return zone or "UTC"


@dataclass(frozen=True, slots=True)
class Settings:
    """One installation's settings, each with its default. Precedence: INNKEEPER_<NAME> variable > database > default.

    time_zone              an IANA name; what people's times mean
    max_sandboxes          how many sessions may be live at once
    idle_minutes           how long a sandbox stays warm without unprocessed messages (ledger R082)
    provider, model        what answers where neither session nor agent says otherwise ("" = the provider's own default)
    runtime                docker, process or auto (docker where usable and its image is built, process until then)
    memory_mib, cpus, processes   the limits of one sandbox
    disk_mib               what a session's files may take of the disk, and what an agent's home may
    turn_minutes           the longest turn
    unsafe_no_sandbox      tools in the process runtime although no cage works there; from the next start of the host
    """

    time_zone: str = ""
    max_sandboxes: int = 8
    idle_minutes: float = 30.0
    provider: str = ""
    model: str = ""
    runtime: str = "auto"
    memory_mib: int = 1024
    cpus: float = 1.0
    processes: int = 256
    disk_mib: int = 4096
    turn_minutes: float = 60.0
    unsafe_no_sandbox: bool = False

    @property
    def zone(self) -> ZoneInfo:
        """`time_zone`, the machine's where none is set."""
        return ZoneInfo(self.time_zone or _machine_zone())

    @classmethod
    def from_sources(cls, environment: Mapping[str, str], stored: Mapping[str, str]) -> Self:
        """Built from the environment and the database's table. Raises SettingRefused."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            variable = f"INNKEEPER_{field.name.upper()}"
            text = environment.get(variable, stored.get(field.name))
            if text is not None:
                values[field.name] = parse(field.name, text, variable if variable in environment else field.name)
        return cls(**values)


@dataclass(slots=True)
class CurrentSettings:
    """The settings in force; replaced as a whole when one is changed."""

    value: Settings


DEFAULTS = Settings()


def names() -> list[str]:
    """Every setting's name."""
    return [field.name for field in fields(Settings)]


def parse(name: str, text: str, shown: str | None = None) -> object:
    """A setting's value from text. Raises SettingRefused, with `shown` as the name that the person used."""
    shown = shown or name
    if name not in names():
        raise SettingRefused(f"There is no setting {shown}. The settings are: {', '.join(names())}.")
    default = getattr(DEFAULTS, name)
    try:
        if isinstance(default, bool):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        if isinstance(default, int | float):
            number = type(default)(text)
            if not number > 0:
                raise ValueError
            return number
    except (KeyError, ValueError):
        kind = "yes or no" if isinstance(default, bool) else "a number above 0"
        raise SettingRefused(f"{shown} is {text!r}; it takes {kind}.") from None
    if name == "runtime" and text not in ("auto", "docker", "process"):
        raise SettingRefused(f"{shown} is {text!r}; it takes auto, docker or process.")
    if name == "time_zone" and text:
        try:
            ZoneInfo(text)
        except (ZoneInfoNotFoundError, ValueError):
            raise SettingRefused(f"{shown} is {text!r}; it takes a zone such as Europe/Berlin.") from None
    return text
