"""Options of the lock that a leader has."""

import math
import threading
from typing import Any

import pytest

from relock import ClientClosedError, aio_election, election


def test_a_leader_is_bound_by_no_max_hold_and_a_candidate_looks_each_second_if_it_must_stop() -> None:
    made: list[dict[str, Any]] = []

    def lock_of(**options: Any) -> Any:
        made.append(options)
        raise ClientClosedError

    for _ in range(2):
        with pytest.raises(ClientClosedError):
            election.campaign(lock_of, print, None, None)
        with pytest.raises(ClientClosedError):
            aio_election.campaign(lock_of, print, None, None).send(None)  # type: ignore[arg-type]
    assert {options["max_hold"] for options in made} == {math.inf}
    assert {options["timeout"] for options in made} == {1.0}
    assert len({options["owner"] for options in made}) == 4, "no two campaigns share a hold"
    assert {options.get("cancel_on_lost") for options in made} == {True, None}


def test_a_campaign_that_is_stopped_before_it_begins_makes_no_lock() -> None:
    stop = threading.Event()
    stop.set()
    election.campaign(lambda **_options: pytest.fail("a lock"), print, stop, None)
