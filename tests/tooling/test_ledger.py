"""The ledger counts by pytest's own report, with and without workers."""

import json

import pytest

from tests.plugins import ledger

CASES = """
    import pytest

    @pytest.mark.req("R001", "R002")
    def test_passes():
        pass

    @pytest.mark.req("R003")
    def test_fails():
        assert False

    @pytest.mark.req("R004")
    @pytest.mark.skip(reason="not here")
    def test_is_skipped():
        pass

    @pytest.fixture
    def breaks_at_the_end():
        yield
        raise OSError

    @pytest.mark.req("R005")
    @pytest.mark.fault(7)
    def test_breaks_at_its_end(breaks_at_the_end):
        pass

    @pytest.mark.req("R006")
    @pytest.mark.xfail
    def test_is_expected_to_fail():
        assert False

    @pytest.mark.req("R007")
    @pytest.mark.fault(9)
    def test_passes_too():
        # R008 in a comment counts nothing
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest("""
        import pathlib
        from tests.plugins import ledger

        ledger.ROWS_FILE = pathlib.Path("rows.txt").absolute()
        ledger.REPORT_FILE = pathlib.Path("build/ledger.json").absolute()
        pytest_plugins = ["tests.plugins.ledger"]
    """)
    pytester.makefile(".txt", rows="R001-R008\n")
    pytester.makepyprojecttoml("""
        [tool.pytest]
        testpaths = ["."]
        markers = ["req(*ids)", "fault(*numbers)"]
    """)
    pytester.makepyfile(CASES)
    return pytester


@pytest.mark.parametrize("workers", ["0", "2"])
def test_only_a_test_that_ran_and_passed_to_its_end_counts(suite: pytest.Pytester, workers: str) -> None:
    result = suite.runpytest_subprocess("-n", workers, "-p", "no:randomly")

    report = json.loads((suite.path / "build" / "ledger.json").read_text())
    assert report["rows_open"] == ["R003", "R004", "R005", "R006", "R008"]
    assert list(report["rows"]) == ["R001", "R002", "R007"]
    assert list(report["faults"]) == ["9"]
    assert report["passed"] == 2
    result.stdout.fnmatch_lines(["tests passed: 2", "docker tests passed: 0", "ledger rows covered: 3 of 8"])


def test_a_run_of_a_part_of_the_suite_leaves_no_report(suite: pytest.Pytester) -> None:
    suite.runpytest_subprocess("-k", "passes")

    assert not (suite.path / "build" / "ledger.json").exists()


def test_a_mark_that_is_no_row_is_refused(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_wrong="""
        import pytest

        @pytest.mark.req("R1")
        def test_marked_wrongly():
            pass
    """
    )

    assert suite.runpytest_subprocess().ret == pytest.ExitCode.USAGE_ERROR


def test_the_list_of_rows_is_read_with_its_ranges_and_comments() -> None:
    rows = ledger.wanted_rows("# the list\nR001-R003, R007\nR010 # and no more")
    assert rows == ["R001", "R002", "R003", "R007", "R010"]


def test_a_word_that_is_no_row_in_the_list_is_refused() -> None:
    with pytest.raises(ValueError, match="'R12'"):
        ledger.wanted_rows("R12")


def test_the_list_names_each_row_once_and_none_of_the_first_stage_has_left_it() -> None:
    rows = ledger.wanted_rows(ledger.ROWS_FILE.read_text())
    assert len(rows) == len(set(rows))
    first = (
        "R001-R009 R011-R013 R015-R034 R036-R046 R066 R075-R089 R091-R103 R105-R111 R123-R125 R133-R136 R138-R141 "
        "R151-R158 R188-R194 R196-R200 R202 R203 R206 R207 R241 R242 R271 R273 R274"
    )
    assert set(ledger.wanted_rows(first)) <= set(rows)
