"""How a command looks: through the running host, and without one from the files."""

from host.cli.finding import Row, rows_of
from host.cli.invocation import Invocation
from host.control_client import HostAbsent


def ask(invocation: Invocation, view: str, **params: object) -> object:
    """A view of host.looking by its name. Raises Failure."""
    try:
        with invocation.host() as client:
            return client.call(view, **params)
    except HostAbsent:
        from host.looking import look_offline

        return look_offline(view, params, invocation.home, invocation.environment)


def rows(invocation: Invocation, view: str, **params: object) -> list[Row]:
    """The rows of a view that has many."""
    return rows_of(ask(invocation, view, **params))
