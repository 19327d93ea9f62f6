"""What a test that needs an engine does where none answers."""

import pytest

NEEDS_AN_ENGINE = """
    import gc

    import pytest

    @pytest.mark.docker
    def test_that_needs_an_engine():
        raise AssertionError("it ran")

    def test_that_needs_none():
        gc.collect()  # a socket that the question left open is found here
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite on a machine without an engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{pytester.path}/nobody.sock")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("INNKEEPER_REQUIRE_DOCKER", raising=False)
    pytester.makeconftest('pytest_plugins = ["tests.plugins.docker"]')
    pytester.makepyprojecttoml(
        '[tool.pytest]\nmarkers = ["docker"]\n'
        'filterwarnings = ["error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning"]\n'
    )
    pytester.makepyfile(NEEDS_AN_ENGINE)
    return pytester


def test_it_is_skipped_with_the_engines_error(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-rs")

    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no Docker engine answers: *"])


@pytest.mark.parametrize("variable", ["CI=true", "INNKEEPER_REQUIRE_DOCKER=1"])
def test_it_fails_where_an_engine_is_required(
    suite: pytest.Pytester, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable.split("="))

    result = suite.runpytest_subprocess()

    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*No Docker engine answers, and this run requires one: *"])
