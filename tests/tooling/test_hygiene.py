"""Nothing of the machine it was written on, and nothing unfinished, is in what is handed over."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

LOCKS = ["requirements.lock", "requirements-dev.lock", "requirements-runner.lock"]


def handed_over() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("this tree is no git clone")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def lines_with(pattern: str) -> list[str]:
    """Every line of what is handed over that matches, but for those of this file."""
    wanted = re.compile(pattern)
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in handed_over()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if wanted.search(line)
    ]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_registry_and_hashes_everything(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=sha256:)", text, re.MULTILINE)
    pinned = re.findall(r"^[a-z0-9][^\s=]*==", text, re.MULTILINE)
    assert pinned
    assert len(pinned) <= text.count("--hash=sha256:")


def test_nothing_names_a_registry_or_a_folder_of_the_machine_it_was_made_on() -> None:
    assert lines_with(r"--(extra-)?index-url|--find-links|PIP_INDEX_URL|/simple/?\b\"") == []
    here = (ROOT, ROOT.parent / "shared", sys.base_prefix, Path.home())
    deep = [
        str(path) for path in here if str(path).count("/") > 1 and not str(path).startswith("/usr")
    ]  # /root may be said
    assert lines_with("|".join(rf"(?<![\w.-]){re.escape(path)}\b" for path in deep)) == []


def test_nothing_is_left_for_later_in_the_code() -> None:
    assert lines_with(r"\b(TODO|FIXME|XXX)\b") == []


def test_no_secret_is_handed_over() -> None:
    assert lines_with(r"sk-ant-(?!test|fake|\.\.\.)[A-Za-z0-9]{6}|xox[bap]-\d{6}|-----BEGIN [A-Z ]*PRIVATE KEY") == []


def test_nothing_that_a_run_leaves_is_handed_over() -> None:
    names = {str(path.relative_to(ROOT)) for path in handed_over()}
    names -= {"mailboxes/outbound-1.db"}  # the runner's copy of it saves making the tables at each start
    assert [name for name in names if re.search(r"\.(db|db-wal|db-shm|log|pyc|sock)$|(^|/)\.env$", name)] == []
