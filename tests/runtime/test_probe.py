"""What a probe makes of the things that a caged program says, and of one that says nothing."""

import json

import pytest

from host.runtime.probe import judge

GOOD = {
    **dict.fromkeys(("write outbound", "write state", "write agent/home"), "yes"),
    **dict.fromkeys(("no privileges", "no network", "runner"), "yes"),
    **dict.fromkeys(("protect inbound", "protect run", "protect agent", "protect ..", "protect ../dev"), "yes"),
    **dict.fromkeys(("memory limit", "process limit"), "yes"),
}


def test_a_cage_that_holds_is_usable() -> None:
    probe = judge("FACTS" + json.dumps(GOOD), 0, {"engine": "1"})
    assert (probe.usable, probe.problems, probe.facts["engine"]) == (True, (), "1")


@pytest.mark.fault(81)
@pytest.mark.parametrize(
    ("fact", "sentence"),
    [
        ("write outbound", "A sandbox cannot write its mailbox (Permission denied)."),
        ("protect inbound", "A sandbox can write what only the host may (Permission denied)."),
        ("no network", "A sandbox reaches the network (Permission denied)."),
        ("runner", "A sandbox cannot read the program that it should run (Permission denied)."),
    ],
)
def test_a_cage_with_a_hole_is_not(fact: str, sentence: str) -> None:
    probe = judge("FACTS" + json.dumps({**GOOD, fact: "Permission denied"}), 0, {})
    assert (probe.usable, probe.problems) == (False, (sentence,))


def test_a_limit_without_effect_is_told_and_does_not_stop_the_use() -> None:
    probe = judge("FACTS" + json.dumps({**GOOD, "memory limit": "no"}), 0, {})
    assert probe.usable
    assert "cgroup_enable=memory" in probe.problems[0]


def test_a_cage_that_does_not_start_shows_what_it_said_last() -> None:
    probe = judge("one\nbwrap: No permissions\n", 1, {})
    assert not probe.usable
    assert probe.problems[0].endswith("(exit 1): bwrap: No permissions")
