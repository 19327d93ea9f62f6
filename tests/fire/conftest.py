"""Fire is tried on what the whole is tried with."""

from tests.whole.conftest import forge  # noqa: F401
