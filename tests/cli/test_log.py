"""The host's log: one event a line, no secret, no message's text."""

import json
import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from host.home import Home
from host.log import HostLog, Secrets, for_people

CANARY = "sk-ant-test-canary'/\"\\ é-123456"


def _lines(home: Home) -> list[dict[str, object]]:
    return [json.loads(line) for line in (home.logs / "host.log").read_text().splitlines()]


@pytest.fixture
def secrets() -> Secrets:
    return Secrets([CANARY])


@pytest.fixture
def host_log(home: Home, secrets: Secrets) -> Iterator[HostLog]:
    with HostLog(home.logs, secrets) as started:
        yield started


@pytest.mark.req("R191")
def test_one_event_is_one_line_with_its_fields_level_and_canonical_time(home: Home, host_log: HostLog) -> None:
    log = structlog.get_logger("host.somewhere")
    log.info("a message arrived", session="s-1", number=3)
    log.warning("two\nlines", why="a\x1b[31mb\u202ec")
    logging.getLogger("somebody.else").error("failed with %s", "reason")
    host_log.stop()
    first, second, third = _lines(home)
    assert first | {"time": ""} == {
        "time": "",
        "level": "info",
        "event": "a message arrived",
        "logger": "host.somewhere",
        "session": "s-1",
        "number": 3,
    }
    assert str(first["time"]).endswith("Z")
    assert len(str(first["time"])) == 24
    assert second["level"] == "warning"
    assert (third["event"], third["level"]) == ("failed with reason", "error")
    assert (home.logs / "host.log").read_bytes().isascii()


@pytest.mark.req("R191")
@pytest.mark.fault(124)
def test_no_secret_reaches_the_log_whoever_writes_it_and_in_whatever_form(home: Home, host_log: HostLog) -> None:
    import urllib.parse

    log = structlog.get_logger("host.somewhere")
    log.info(
        "key %s",
        CANARY,
        json=json.dumps({"key": CANARY}),
        field=CANARY,
        nested={"deep": [CANARY]},
        url=f"https://x/{urllib.parse.quote(CANARY)}",
    )
    logging.getLogger("httpx").warning("GET https://x/bot%s/getMe", urllib.parse.quote(CANARY, safe=""))
    logging.getLogger("httpx").info("GET https://x/%s", CANARY)
    try:
        raise ValueError(CANARY)
    except ValueError:
        log.exception("it broke", repr=repr(CANARY))
    host_log.stop()
    written = (home.logs / "host.log").read_text()
    assert "canary" not in written
    assert written.count("[secret]") >= 6
    assert "GET https://x/[secret]" not in written  # a library's chatter at INFO does not get in at all


@pytest.mark.fault(124)
def test_a_secret_that_comes_later_is_struck_out_from_then_on(home: Home, secrets: Secrets, host_log: HostLog) -> None:
    secrets.add("second-canary")
    structlog.get_logger("host").info("second-canary")
    host_log.stop()
    assert "second-canary" not in (home.logs / "host.log").read_text()


@pytest.mark.fault(125)
def test_a_messages_text_is_not_written_from_info_up(home: Home, host_log: HostLog) -> None:
    log = structlog.get_logger("host.somewhere")
    for field in ("text", "content", "prompt", "body"):
        log.error("could not deliver", **{field: "my diary"})
    host_log.stop()
    assert "diary" not in (home.logs / "host.log").read_text()
    assert _lines(home)[0]["text"] == "[8 characters]"


def test_the_log_is_ours_alone_and_its_size_has_a_cap(
    home: Home, monkeypatch: pytest.MonkeyPatch, secrets: Secrets
) -> None:
    monkeypatch.setattr("host.log.MAX_BYTES", 2000)
    monkeypatch.setattr("host.log.BACKUPS", 2)
    with HostLog(home.logs, secrets):
        for number in range(200):
            structlog.get_logger("host").info("filling", number=number)
    files = sorted(home.logs.glob("host.log*"))
    assert [file.name for file in files] == ["host.log", "host.log.1", "host.log.2"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert all(file.stat().st_size <= 2000 for file in files)
    assert _lines(home)[-1]["number"] == 199


def test_a_link_in_the_place_of_the_log_is_not_followed(home: Home, secrets: Secrets, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (home.logs / "host.log").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        HostLog(home.logs, secrets).start()
    assert victim.read_text() == "precious"


def test_people_read_time_level_event_and_fields_and_a_cut_line_as_it_is() -> None:
    line = json.dumps({"time": "2026-01-02T03:04:05.678Z", "level": "error", "event": "it broke", "session": "s-1\x1b"})
    assert for_people(line) == "2026-01-02 03:04:05 ERROR it broke session=s-1\ufffd"
    assert for_people('{"time": "2026') == '{"time": "2026'
    assert for_people("[1]") == "[1]"
