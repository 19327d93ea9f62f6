"""Which providers there are, by name. A provider's module is imported when its first turn needs it, not before."""

from collections.abc import Callable
from importlib import import_module

from agent_runner.providers.base import ProviderFactory

ENTRY_POINTS = "innkeeper.providers"

_BUILT_IN = {
    "claude": "agent_runner.providers.claude:make",
    "rehearsal": "agent_runner.providers.rehearsal:make",
}
_registered: dict[str, ProviderFactory] = {}


class UnknownProvider(Exception):
    """No provider has this name; the text names those there are."""


def provider(name: str) -> Callable[[ProviderFactory], ProviderFactory]:
    """Registers a factory of this process under `name`; a package announces one as an entry point of ENTRY_POINTS."""

    def register(factory: ProviderFactory) -> ProviderFactory:
        _registered[name] = factory
        return factory

    return register


def find_provider(name: str) -> Callable[[], ProviderFactory]:
    """A loader for the provider's factory: calling it imports the provider. Raises UnknownProvider at once."""
    if name in _registered:
        return lambda: _registered[name]
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return lambda: getattr(import_module(module), attribute)
    from importlib.metadata import entry_points  # slow, and needed for what is not ours alone

    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in installed:
        return installed[name].load
    known = ", ".join(sorted({*_BUILT_IN, *_registered, *installed}))
    raise UnknownProvider(f"There is no provider called {name!r}, only: {known}. Set AGENT_PROVIDER to one of them.")
