"""A run that leaves a process behind fails, in one process and with workers."""

import os
import signal

import pytest

LEAVES_A_CHILD = """
    import subprocess

    def test_passes_but_leaves_a_child():
        child = subprocess.Popen(["sleep", "600"])
        with open("pid", "w") as file:
            file.write(str(child.pid))
"""
REAPS_ITS_CHILD = """
    import subprocess

    def test_waits_for_its_child():
        subprocess.run(["true"], check=True)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest("""
        from tests.plugins import leftovers

        leftovers._GRACE_SECONDS = 0.2
        pytest_plugins = ["tests.plugins.leftovers"]
    """)
    return pytester


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_child_that_outlives_the_run_fails_it(suite: pytest.Pytester, workers: str) -> None:
    suite.makepyfile(LEAVES_A_CHILD)
    result = suite.runpytest_subprocess("-n", workers, "-W", "ignore::ResourceWarning")
    pid = int((suite.path / "pid").read_text())
    os.kill(pid, signal.SIGKILL)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*left behind*", f"process {pid}: sleep 600"])


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_child_that_was_waited_for_is_no_leftover(suite: pytest.Pytester, workers: str) -> None:
    suite.makepyfile(REAPS_ITS_CHILD)
    result = suite.runpytest_subprocess("-n", workers)

    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*left behind*")
