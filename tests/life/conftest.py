"""The life of a message is tried on what the whole is tried with."""

from tests.runtime.conftest import agent_image  # noqa: F401
from tests.whole.conftest import forge  # noqa: F401
