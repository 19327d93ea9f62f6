"""Extra folders for agents. An agent's configuration may ask for one; only the operator's list allows it.

The list is `<home>/mounts.toml`, which no agent, channel or command can change:

    [[folders]]
    path = "~/projects/site"
    readonly = false

It names whole folders, one by one: were their children allowed too, an agent that writes in one could make a child a
link to somewhere else before another agent is given it.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from host.db.agent_groups import ContainerConfig
from host.home import Home
from host.runtime.base import Mount, SandboxRefused
from host.runtime.cage import EXTRA

LIST = "mounts.toml"

_SYSTEM = ("/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/usr", "/var/run", "/var/lib/docker")
_PERSONAL = (".ssh", ".gnupg", ".aws", ".azure", ".config", ".docker", ".kube", ".local", ".netrc")


def extra_mounts(home: Home, agent: str, config: ContainerConfig, guarded: Sequence[Path] = ()) -> tuple[Mount, ...]:
    """What `additionalMounts` of an agent comes to: objects `{hostPath, containerPath, readonly}`.

    `hostPath` is a listed folder, `~` is the operator's home; `containerPath` (the folder's own name where it is
    missing) lies below /workspace/extra; `readonly` is true unless both it and the list say false. `guarded` are
    folders besides the home that nobody may be given. Reads files: for a worker thread. Raises SandboxRefused.
    """
    if not config.additional_mounts:
        return ()
    allowed = _allowed(home)
    forbidden = [home.root, home.runtime, *guarded, *map(Path, _SYSTEM), *(Path.home() / name for name in _PERSONAL)]
    mounts = tuple(_mount(home, agent, wish, allowed, forbidden) for wish in config.additional_mounts)
    targets = [mount.target for mount in mounts]
    if any(a == b or a.startswith(f"{b}/") for i, a in enumerate(targets) for j, b in enumerate(targets) if i != j):
        raise SandboxRefused(f"Two folders of the agent {agent} lie at one place. Give each a containerPath.")
    return mounts


def _allowed(home: Home) -> dict[Path, bool]:
    """The listed folders, and whether each is for reading only."""
    path = home.root / LIST
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("folders", [])
        allowed = {_plain(entry["path"]): entry.get("readonly", True) is not False for entry in entries}
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError, KeyError, AttributeError) as error:
        raise SandboxRefused(
            f"{path} cannot be read ({error}). It holds [[folders]] with a path and, if you like, readonly = false."
        ) from None
    for folder in allowed:
        if nested := next((other for other in allowed if other in folder.parents), None):
            raise SandboxRefused(f"{path} names {folder} and {nested}, in which it lies. Keep one of them.")
    return allowed


def _mount(
    home: Home, agent: str, wish: Mapping[str, object], allowed: Mapping[Path, bool], forbidden: Sequence[Path]
) -> Mount:
    source, target, read_only = wish.get("hostPath"), wish.get("containerPath"), wish.get("readonly", True)
    well_formed = isinstance(source, str) and isinstance(target, str | None) and isinstance(read_only, bool)
    if not well_formed or not wish.keys() <= {"hostPath", "containerPath", "readonly"}:
        raise SandboxRefused(
            f"A folder of the agent {agent} is configured as {dict(wish)!r}; "
            "it takes hostPath, containerPath and readonly (true or false)."
        )
    folder = _plain(str(source))
    if folder not in allowed:
        raise SandboxRefused(
            f"The agent {agent} asks for the folder {folder}, which {home.root / LIST} does not list. "
            "List it there, or take it out of the agent's configuration."
        )
    try:
        real = Path(os.path.realpath(folder, strict=True))
    except OSError as error:
        raise SandboxRefused(f"The folder {folder} of the agent {agent} cannot be used: {error.strerror}.") from None
    if real != folder or not real.is_dir():
        raise SandboxRefused(f"{folder} is no plain folder, or a link leads there. Name the folder itself: {real}")
    for guarded in map(_real, forbidden):
        if real == guarded or guarded in real.parents or real in guarded.parents:
            raise SandboxRefused(
                f"The folder {folder} of the agent {agent} holds or lies in {guarded}, which no agent may be given."
            )
    return Mount(real, str(EXTRA / (str(target) if target else real.name)), bool(read_only) or allowed[folder])


def _plain(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_absolute() or ".." in path.parts or "\0" in text:
        raise SandboxRefused(f"The folder {text!r} has to be an absolute path without .. (~ is your home).")
    return path


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
