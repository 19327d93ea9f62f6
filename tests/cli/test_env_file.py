"""The home's .env."""

import stat

import pytest
from dotenv import dotenv_values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from host.cli.env_file import read_secret, write_secret
from host.home import Home


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1))
def test_a_key_is_read_as_it_was_written_whatever_it_holds(home: Home, value: str) -> None:
    write_secret(home.env_file, "ANTHROPIC_API_KEY", value)
    assert read_secret(home.env_file, "ANTHROPIC_API_KEY") == value


def test_other_lines_stay_and_the_file_is_ours_alone(home: Home) -> None:
    home.env_file.write_text("# mine\nOTHER=1\nexport ANTHROPIC_API_KEY=old\nANTHROPIC_API_KEY_2=two\n")
    home.env_file.chmod(0o644)
    write_secret(home.env_file, "ANTHROPIC_API_KEY", "new")
    assert home.env_file.read_text().startswith("# mine\nOTHER=1\n")
    assert dotenv_values(home.env_file) == {"OTHER": "1", "ANTHROPIC_API_KEY": "new", "ANTHROPIC_API_KEY_2": "two"}
    assert stat.S_IMODE(home.env_file.stat().st_mode) == 0o600
    assert [path.name for path in home.root.glob(".env*")] == [".env"]


@pytest.mark.parametrize("content", [None, "", "ANTHROPIC_API_KEY=\n"])
def test_a_missing_or_empty_key_is_none(home: Home, content: str | None) -> None:
    if content is not None:
        home.env_file.write_text(content)
    assert read_secret(home.env_file, "ANTHROPIC_API_KEY") is None
