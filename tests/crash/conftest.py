"""Storms and crash points use what the whole is tried with."""

from tests.whole.conftest import forge, migrated_database, ready_home  # noqa: F401
