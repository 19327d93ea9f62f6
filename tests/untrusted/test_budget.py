from host.reader import Budget
from host.reader.budget import BURST_SECONDS


def test_a_quiet_session_is_read_at_once() -> None:
    assert Budget().delay(1000.0) == 0


def test_a_burst_may_be_spent_at_once_and_no_more() -> None:
    budget = Budget()
    budget.spend(1000.0, BURST_SECONDS)
    assert budget.delay(1000.0) == 0

    budget.spend(1000.0, 0.005)

    assert round(budget.delay(1000.0), 6) == 0.1
    assert round(budget.delay(1000.06), 6) == 0.04
    assert budget.delay(1000.1001) == 0


def test_a_session_that_rings_without_end_gets_five_percent_of_the_time() -> None:
    budget, now, spent = Budget(), 0.0, 0.0
    while now < 100:
        now += budget.delay(now)
        budget.spend(now, 0.0007)
        spent += 0.0007

    assert 4.9 < spent < 5.1


def test_one_session_pays_nothing_for_another() -> None:
    greedy, quiet = Budget(), Budget()
    greedy.spend(1.0, 10.0)

    assert greedy.delay(1.0) > 100
    assert quiet.delay(1.0) == 0


def test_a_long_silence_saves_up_no_more_than_one_burst() -> None:
    budget = Budget()
    budget.spend(0.0, 0.001)
    budget.spend(100_000.0, BURST_SECONDS + 0.005)

    assert round(budget.delay(100_000.0), 6) == 0.1
