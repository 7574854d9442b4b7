"""Elections in virtual time: how soon another process leads, and how soon a campaign stops."""

import threading

import pytest

from relock import Term
from relock._elections import LOOK_SECONDS
from relock.testing import Lab

TTL = 10.0
SOON = 0.1  # more than a few virtual round trips


@pytest.mark.parametrize("masters", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_a_dead_leader_is_followed_within_its_ttl_and_a_second(masters: int, seed: int) -> None:
    with Lab(masters=masters, seed=seed) as lab:
        first, second = lab.client("first", ttl=TTL, max_hold=0.5), lab.client("second", ttl=TTL)
        stop, died_at, follows_at = threading.Event(), [0.0], [0.0]

        def lead(term: Term) -> None:
            while True:
                lab.sleep(0.5)
                term.ensure()

        def follow(_term: Term) -> None:
            follows_at[0] = lab.now
            stop.set()

        def crash() -> None:
            lab.sleep(5 * TTL)  # `max_hold` is long over
            assert follows_at == [0.0]
            died_at[0] = lab.now
            lab.crash("first")

        def stand_by() -> None:
            lab.sleep(1.0)
            second.elect("leader", follow, stop=stop)

        lab.run(lambda: first.elect("leader", lead), stand_by, crash)
        assert TTL / 2 < follows_at[0] - died_at[0] <= TTL + 1.0


@pytest.mark.parametrize("masters", [1, 3])
def test_a_candidate_stops_within_a_second_and_leads_no_more(masters: int) -> None:
    """The lock is given to it just after it was told to stop."""
    with Lab(masters=masters) as lab:
        first, second = lab.client("first", ttl=TTL), lab.client("second", ttl=TTL)
        stops = {name: threading.Event() for name in ("leader", "candidate", "told first")}
        ended_at: dict[str, float] = {}

        def lead(_term: Term) -> None:
            lab.sleep(5.0)
            stops["leader"].set()
            stops["told first"].set()

        def stand_by(name: str) -> None:
            lab.sleep(1.0)
            second.elect("a", lambda _term: pytest.fail("a candidate that was stopped leads"), stop=stops[name])
            ended_at[name] = lab.now

        def stop_one() -> None:
            lab.sleep(3.25)
            stops["candidate"].set()

        lab.run(
            lambda: first.elect("a", lead, stop=stops["leader"]),
            lambda: stand_by("candidate"),
            lambda: stand_by("told first"),
            stop_one,
        )
        assert ended_at["candidate"] <= 3.25 + LOOK_SECONDS + SOON
        assert ended_at["told first"] <= 5.0 + SOON
