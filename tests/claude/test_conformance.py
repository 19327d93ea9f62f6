import pytest

from agent_runner.providers.base import Provider
from tests.claude.conftest import Desk
from tests.runner.provider_conformance import ProviderConformance


class TestClaude(ProviderConformance):
    @pytest.fixture
    def provider(self, desk: Desk) -> Provider:
        return desk.provider
