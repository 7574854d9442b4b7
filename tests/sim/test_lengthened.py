"""Holds whose owner asks for a longer lease while no master answers."""

import pytest
from support.quiet import play, warm_up

from relock import QuorumError
from relock.testing import Lab

TTL_SECONDS = 3.0


@pytest.mark.parametrize("masters", [1, 3])
@pytest.mark.parametrize("how", ["extend", "nested"])
def test_a_hold_that_could_not_be_lengthened_goes_on(masters: int, how: str) -> None:
    """The watchdog renews the hold as soon as the masters are back, well within its present lease."""
    lab = Lab(masters=masters)
    client = lab.client(ttl=TTL_SECONDS, restart_guard=1000.0)
    lock = client.lock("a")

    def away() -> None:
        for master in lab.masters:
            master.stop()
        lab.sleep(TTL_SECONDS / 3)
        for master in lab.masters:
            master.go_on()

    def work() -> bool:
        warm_up(lab, client)
        lock.acquire()
        lab.sleep(0.1)
        if how == "nested":
            client.lock("a", ttl=100 * TTL_SECONDS).acquire()
        else:
            with pytest.raises(QuorumError):
                lock.extend(100 * TTL_SECONDS)
        lab.sleep(2 * TTL_SECONDS)
        return lock.owned()

    def look_away() -> None:
        while not lock.locked():
            lab.sleep(0.05)
        away()

    owned, _ = play(lab, work, look_away)
    lab.close()
    assert owned
