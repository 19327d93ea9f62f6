"""The rehearsal is a provider like any other, and says that it is no model."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_runner.providers.base import Provider
from agent_runner.providers.registry import UnknownProvider, find_provider, provider
from agent_runner.providers.rehearsal import PREFIX, echoes, make
from tests.runner.provider_conformance import ProviderConformance, prompt_of


class TestRehearsal(ProviderConformance):
    @pytest.fixture
    async def provider(self, tmp_path: Path) -> AsyncIterator[Provider]:
        made = make(tmp_path)
        yield made
        await made.close()


def test_each_message_of_a_prompt_has_its_echo_in_its_own_words() -> None:
    assert echoes(prompt_of("a < b", "&amp;")) == [f"{PREFIX} a < b", f"{PREFIX} &amp;"]


def test_other_sections_are_named() -> None:
    assert echoes("[SCHEDULED TASK]\n<task>\nx\n</task>") == [f"{PREFIX} I got a scheduled task."]


@pytest.mark.req("R124")
def test_a_package_can_add_a_provider_by_registering_it() -> None:
    provider("another")(make)
    assert find_provider("another")() is make
    with pytest.raises(UnknownProvider, match="another, claude, rehearsal"):
        find_provider("nobody")
