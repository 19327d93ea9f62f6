"""What `host setup` goes through: the key, the sandboxes, the time zone. Each step proves what it says."""

import asyncio
import getpass
from dataclasses import dataclass

from host import __version__
from host.broker.gateway import DEFAULT_BASE_URL
from host.broker.keys import KEY_NAME
from host.broker.proof import KeyNotProved, Proof, prove_key
from host.cli.env_file import read_secret, write_secret
from host.cli.hints import hint
from host.cli.hosted import hosted
from host.cli.invocation import DONE_BUT_LOOK, Invocation
from host.cli.looking import rows
from host.control_client import ControlClient, HostAbsent
from host.failure import Failure
from host.runtime.base import Probe
from host.settings import SettingRefused, parse

_INSTALLATION = "setup"
"""The installation id of the sandboxes that a probe starts."""

_ZONE = "time_zone"
_UNSET_ZONES = frozenset({"UTC", "Etc/UTC"})
"""What a machine says whose zone nobody has chosen."""


@dataclass(frozen=True, slots=True)
class Found:
    """What setup found: the key's origin ("" = none), whether nothing speaks against it, the sentence; each runtime's
    probe; the zone."""

    key_from: str
    key_ok: bool
    key_said: str
    process: Probe
    container: Probe
    time_zone: str
    zone_from: str

    @property
    def missing(self) -> list[str]:
        """What a person may want to do something about."""
        said = [] if self.key_ok else [self.key_said]
        said += self.container.problems
        if not self.container.usable:
            said += self.process.problems
        return said


def set_up(invocation: Invocation, *, ask: bool, chat_follows: bool) -> int:
    """Runs every step; with `ask` it asks for what is missing. The exit code: 0, or 3 where something is still
    missing."""
    output = invocation.output
    if ask:
        output.line(f"Innkeeper {__version__}, home {invocation.home.root}")
        invocation.home.prepare()
    key_from, key_ok, key_said = _key(invocation, ask=ask)
    if not output.as_json:
        output.line(f"key        {hint(key_said)}")
    with output.progress("Trying the sandboxes"):
        process, container = asyncio.run(_probes(invocation))
    if not output.as_json:
        output.line(f"container  {_said(container)}", newlines=True)
        output.line(f"process    {_said(process)}", newlines=True)
    zone, zone_from = _zone(invocation, ask=ask)
    found = Found(key_from, key_ok, key_said, process, container, zone, zone_from)
    if output.as_json:
        output.document(_document(found))
    else:
        output.line(f"time zone  {zone} (from {zone_from})")
        if not chat_follows:
            output.line(hint("Next: host chat"))
    return DONE_BUT_LOOK if found.missing else 0


def _document(found: Found) -> dict[str, object]:
    return {
        "key": {"present": bool(found.key_from), "from": found.key_from or None},
        "container": {"usable": found.container.usable, "problems": list(found.container.problems)},
        "process": {"usable": found.process.usable, "problems": list(found.process.problems)},
        "time_zone": {"value": found.time_zone, "from": found.zone_from},
        "missing": found.missing,
    }


_NO_KEY = "none: a rehearsal answers, which is no model. To enter one later: host setup"


def _key(invocation: Invocation, *, ask: bool) -> tuple[str, bool, str]:
    """Where the key is from, whether it works, and the sentence."""
    path = invocation.home.env_file
    value, source = invocation.environment.get(KEY_NAME), f"variable {KEY_NAME}"
    if not value:
        value, source = read_secret(path, KEY_NAME), ".env"
    if value and not ask:
        # Proving costs tokens, which is a change to somebody's bill: only a person at a terminal starts it.
        return source, True, f"there is one (from {source})"
    if value:
        try:
            return source, True, f"works (from {source}): {_prove(invocation, value)}"
        except KeyNotProved as refused:
            invocation.output.red(f"The key from {source} does not work. {refused}")
    if not ask:
        return "", False, _NO_KEY
    return _ask_for_key(invocation)


def _ask_for_key(invocation: Invocation) -> tuple[str, bool, str]:
    invocation.output.line(
        "A model key makes the agents think (console.anthropic.com, API keys). It stays in .env, on this machine."
    )
    while value := getpass.getpass("Model key (hidden; Enter to look around without one): ").strip():
        try:
            said = _prove(invocation, value)
        except KeyNotProved as refused:
            invocation.output.red(str(refused))
            continue
        write_secret(invocation.home.env_file, KEY_NAME, value)
        return ".env", True, f"works, and is in .env: {said}"
    return "", False, _NO_KEY


def _prove(invocation: Invocation, value: str) -> str:
    """One real completion; what answered and what it cost. Raises KeyNotProved."""
    base_url = invocation.environment.get("ANTHROPIC_BASE_URL", DEFAULT_BASE_URL)
    with invocation.output.progress("Asking the model for one word"):
        proof: Proof = asyncio.run(prove_key(value, base_url))
    tokens = proof.tokens
    price = "price unknown" if proof.price is None else f"${proof.price:.6f}"
    return f"{proof.model} answered with {tokens.input_tokens} tokens in, {tokens.output_tokens} out, {price}"


async def _probes(invocation: Invocation) -> tuple[Probe, Probe]:
    from host.runtime.docker import DockerRuntime
    from host.runtime.image import image_tag
    from host.runtime.process import ProcessRuntime
    from mailboxes.clock import SystemClock

    logs = invocation.home.logs
    process = ProcessRuntime(_INSTALLATION, logs)
    container = DockerRuntime(_INSTALLATION, image_tag(), logs, SystemClock())
    try:
        return await process.probe(), await container.probe()
    finally:
        await process.close()
        await container.close()


def _said(probe: Probe) -> str:
    problems = "\n".join(probe.problems).replace("\n", f"\n{' ' * 11}")
    if probe.usable:
        return f"works. {problems}".rstrip()
    return f"cannot be used. {problems}"


def _zone(invocation: Invocation, *, ask: bool) -> tuple[str, str]:
    """The time zone and where it is from; asked for where only the machine's UTC is known, and stored by a host."""
    from host.settings import Settings

    try:
        setting = next((row for row in rows(invocation, "settings.list") if row["name"] == _ZONE), None)
    except Failure:
        setting = None  # a new home: nothing is stored yet
    variable = invocation.environment.get(f"INNKEEPER_{_ZONE.upper()}")
    if variable:
        return variable, f"variable INNKEEPER_{_ZONE.upper()}"
    if setting is not None and setting["value"]:
        return str(setting["value"]), str(setting["source"])
    machine = str(Settings().zone)
    if not ask or machine not in _UNSET_ZONES:
        return machine, "this machine"
    while name := input("Your time zone, such as Europe/Berlin (Enter for UTC): ").strip():
        try:
            parse(_ZONE, name)
        except SettingRefused as refused:
            invocation.output.red(str(refused))
            continue
        _store_zone(invocation, name)
        return name, "database"
    return machine, "this machine"


def _store_zone(invocation: Invocation, name: str) -> None:
    try:
        with invocation.host() as client:
            client.call("settings.set", name=_ZONE, value=name)
    except HostAbsent:
        with (
            hosted(invocation.home, invocation.output.progress),
            ControlClient(invocation.home.control_socket) as client,
        ):
            client.call("settings.set", name=_ZONE, value=name)
