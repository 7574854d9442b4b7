"""Times at which deadlocks between clients end, in virtual time: promise 24, and what the page on deadlocks says."""

from collections.abc import Iterator

import pytest
from support.quiet import play

from relock import Client, DeadlockError
from relock._core.flows.attempt import HEARTBEAT_SECONDS
from relock._options import OnDeadlock
from relock.testing import Lab

PROMISED_SECONDS = 1.0  # after `deadlock_after`
REPORTED_SECONDS = 8.0  # longer than that, if the caller that came last can be no victim
BEGINS = (1.0, 4.1, 5.3)  # of the waits


@pytest.fixture(params=[1, 3, 5], ids=lambda masters: f"{masters}-masters")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with Lab(masters=request.param) as made:
        yield made


def error_at(lab: Lab, clients: list[Client], last: OnDeadlock = "raise") -> list[float]:
    """Let as many callers as there are clients wait for each other; return when each error came."""
    errors = []

    def work(number: int) -> None:
        mode: OnDeadlock = last if number == len(clients) - 1 else "raise"
        with clients[number].lock(f"x{number}"):
            lab.sleep(BEGINS[number])
            try:
                with clients[number].lock(f"x{(number + 1) % len(clients)}", deadlock=mode):
                    pass
            except DeadlockError:
                errors.append(lab.now)

    play(lab, *[lambda number=number: work(number) for number in range(len(clients))])
    return errors


@pytest.mark.parametrize("after", [0.5, 2.5, 10.0])
@pytest.mark.parametrize("count", [2, 3])
def test_a_ring_of_several_clients_ends_in_time_by_one_error(lab: Lab, count: int, after: float) -> None:
    began = lab.now
    (at,) = error_at(lab, [lab.client(f"c{number}", deadlock_after=after) for number in range(count)])
    assert at - began <= BEGINS[count - 1] + max(after, HEARTBEAT_SECONDS) + PROMISED_SECONDS


def test_a_ring_whose_last_caller_only_reports_ends_later(lab: Lab) -> None:
    began = lab.now
    (at,) = error_at(lab, [lab.client("c0"), lab.client("c1")], last="report")
    assert at - began <= BEGINS[1] + 2.5 + PROMISED_SECONDS + REPORTED_SECONDS
